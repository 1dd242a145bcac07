#!/usr/bin/env bash
# Records what three ranks write, and tries each state that a power failure may leave of it (test_crash_states.cpp).
#   crash_states.sh PATH_TO_TEST_CRASH_STATES MPIEXEC
set -euo pipefail
. "$(dirname "$0")/../../launch/mpi_env.sh"
TANDEM_CRASH_FOLDER=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/tandem-crash-XXXXXX")
export TANDEM_CRASH_FOLDER
trap 'rm -rf "$TANDEM_CRASH_FOLDER"' EXIT
timeout -k 5 120 "$2" -np 3 "$1" --gtest_filter='*.Record'
"$1" --gtest_filter='*.EachGoesOnToTheSameEnd'
