#!/usr/bin/env bash
# Set-up, build, all tests. Arguments go to ctest: tests/run.sh -R Attention
set -euo pipefail
cd "$(dirname "$0")/.."
launch/setup.sh --tests
launch/build.sh
. launch/mpi_env.sh
export OMPI_MCA_btl="${OMPI_MCA_btl:-self,vader}" OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
export OMPI_MCA_mpi_yield_when_idle=1
ctest --test-dir "${BUILD:-build}" --output-on-failure "$@"
