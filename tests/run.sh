#!/usr/bin/env bash
# Set-up, build, all tests: first of the program as users build it, then of the same sources on the emulated GPU
# (tests/simt). Arguments go to ctest: tests/run.sh -R attention
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}
launch/setup.sh --tests
launch/build.sh
BUILD=$build-simt launch/build.sh -DTANDEM_SIMT=ON
. launch/mpi_env.sh
export OMPI_MCA_btl="${OMPI_MCA_btl:-self,vader}" OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
export OMPI_MCA_mpi_yield_when_idle=1
ctest --test-dir "$build" --output-on-failure "$@"
ctest --test-dir "$build-simt" --output-on-failure "$@"
