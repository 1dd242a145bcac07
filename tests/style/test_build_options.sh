#!/usr/bin/env bash
# CMake refuses an unknown value of an option, and CUDA or tests that are required and cannot be built.
set -euo pipefail
cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

refuses() {  # 'PATTERN' CMAKE-ARGUMENT...: an error that matches
  local pattern=$1
  if cmake -S . -B "$scratch/build" "${@:2}" >"$scratch/log" 2>&1; then
    echo "build options: ${*:2} was accepted" >&2
    exit 1
  fi
  # CMake breaks its messages into lines.
  tr -s ' \n' ' ' <"$scratch/log" | grep -qE "$pattern" || { cat "$scratch/log" >&2; exit 1; }
  rm -rf "$scratch/build"
}
refuses 'TANDEM_CUDA = MAYBE must be one of: ON;REQUIRED;OFF' -DTANDEM_CUDA=MAYBE
refuses 'TANDEM_SANITIZE = memory must be one of: OFF;address;thread;fuzzer' -DTANDEM_SANITIZE=memory
CUDACXX=$scratch/none refuses 'TANDEM_CUDA is REQUIRED, and not found: CMAKE_CUDA_COMPILER' -DTANDEM_CUDA=REQUIRED
refuses 'Not all tests can be built \(MPI_C_FOUND' -DTANDEM_CUDA=OFF -DTANDEM_TESTS=REQUIRED -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
refuses 'Not all tests can be built \(GTest_FOUND' -DTANDEM_CUDA=OFF -DTANDEM_TESTS=REQUIRED -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON
echo "build options: good"
