#!/usr/bin/env bash
# Set-up, build, all tests: first of the program as users build it, then of the same sources on the emulated GPU
# (tests/simt). With arguments, which go to ctest, only what the chosen tests need is built: tests/run.sh -R attention
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath -m "${BUILD:-build}")
configurations=(release simt) folders=("$build" "$build-simt")
launch/setup.sh --tests
. launch/mpi_env.sh
export OMPI_MCA_btl="${OMPI_MCA_btl:-self,vader}" OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
export OMPI_MCA_mpi_yield_when_idle=1

# What the chosen tests in a folder name of what its build makes.
targets() {
  comm -12 <(ctest --test-dir "$1" -N -V "${@:2}" | tr '" ' '\n\n' | sed -n "s|^$1/||p" | sort -u) \
    <(ninja -C "$1" -t targets all | sed -n 's/: [^:]*$//p' | sort -u)
}

chosen=("$@")
# Some of the tests cannot run every kernel, so the test that asks for it is left out.
[ $# -eq 0 ] || chosen+=(--fixture-exclude-cleanup coverage)
total=0
for i in "${!folders[@]}"; do
  folder=${folders[i]}
  CONFIGURE_ONLY=1 launch/build.sh "${configurations[i]}" -DTANDEM_TESTS=REQUIRED
  tests=$(ctest --test-dir "$folder" -N "${chosen[@]}" | sed -n 's/^Total Tests: //p')
  total=$((total + tests))
  if [ $# -gt 0 ] && [ "$tests" = 0 ]; then
    continue  # the other build may have them
  fi
  if [ -n "${CONFIGURE_ONLY:-}" ]; then
    :
  elif [ $# -eq 0 ]; then
    cmake --build "$folder"
  else
    targets "$folder" "${chosen[@]}" | xargs -r cmake --build "$folder" --target
  fi
  ctest --test-dir "$folder" --output-on-failure --no-tests=error "${chosen[@]}"
done
[ $total -gt 0 ] || { echo "run: no test is chosen by: $*" >&2; exit 1; }
