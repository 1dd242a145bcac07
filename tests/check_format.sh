#!/usr/bin/env bash
# Every C++ file is as clang-format writes it.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror
echo "format: good"
