#!/usr/bin/env bash
# What takes too long for every change: whether the tests notice mistakes. Arguments go to tests/mutants/run.py.
set -euo pipefail
cd "$(dirname "$0")/.."
launch/setup.sh --tests
tests/mutants/run.py "$@"
