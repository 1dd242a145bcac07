#!/usr/bin/env bash
# Every C++ file is as clang-format writes it. Skipped (77) outside a git checkout, because git lists the files.
set -euo pipefail
cd "$(dirname "$0")/../.."
git rev-parse --is-inside-work-tree >/dev/null 2>&1 || { echo "format: skipped, not a git checkout"; exit 77; }
git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror
echo "format: good"
