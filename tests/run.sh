#!/usr/bin/env bash
# Sets up, builds and tests. Further arguments go to ctest; then only what the chosen tests need is built.
#   tests/run.sh              all tests but nightly ones: of the program as users build it, then on the emulated GPU
#   tests/run.sh -R attention
#   tests/run.sh -L nightly   those that tests/nightly.sh runs
#   JOBS=8 tests/run.sh       eight tests at a time; otherwise as many as there are cores
#   tests/run.sh --asan       unit and MPI tests under AddressSanitizer and UndefinedBehaviorSanitizer, without a GPU
#   tests/run.sh --tsan       the same under ThreadSanitizer
set -euo pipefail
[ "${1:-}" != --help ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit; }
cd "$(dirname "$0")/.."
build=$(realpath -m "${BUILD:-build}")
configurations=(release simt) folders=("$build" "$build-simt") labels=() fixed_addresses=()
jobs=${JOBS:-$(nproc)}  # nproc obeys OMP_NUM_THREADS, which is set below
case "${1:-}" in
  --asan | --tsan)
    configurations=("${1#--}") folders=("$build-${1#--}") labels=(-L '^(unit|mpi)$')
    shift
    # The sanitizers of GCC 12 fail with the address randomization of newer kernels.
    ! setarch -R true 2>/dev/null || fixed_addresses=(setarch -R) ;;
esac
suppressions=suppressions=$PWD/tests/sanitizers
case ${configurations[0]} in
  asan)
    export ASAN_OPTIONS=fast_unwind_on_malloc=0:strict_string_checks=1:detect_stack_use_after_return=1:check_initialization_order=1
    export LSAN_OPTIONS=$suppressions/lsan.supp:print_suppressions=0 UBSAN_OPTIONS=print_stacktrace=1 ;;
  tsan)
    export TSAN_OPTIONS=$suppressions/tsan.supp:second_deadlock_stack=1
    # GCC's OpenMP library is not instrumented, so what its threads share looks like data races.
    export OMP_NUM_THREADS=1 OMP_THREAD_LIMIT=1 ;;
esac
launch/setup.sh --tests
. launch/mpi_env.sh
export OMPI_MCA_btl="${OMPI_MCA_btl:-self,vader}" OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
export OMPI_MCA_mpi_yield_when_idle=1
# Each job of Open MPI removes their common folder when it finds it empty, perhaps just when another one enters it.
host=$(uname -n)
mkdir -p "${TMPDIR:-/tmp}/ompi.${host%%.*}.$(id -u)/kept"

# Prints the build's targets that the commands of the chosen tests name. Spaces in the path stand as they are, or escaped.
targets() {
  comm -12 <(ctest --test-dir "$1" -N -V "${@:2}" | sed -e 's/\\ / /g' -e "s|$1/|\n@|g" | tr '" ' '\n' |
      sed -n 's/^@//p' | sort -u) \
    <(ninja -C "$1" -t targets all | sed -n 's/: [^:]*$//p' | sort -u)
}

chosen=("${labels[@]}" "$@")
some=${#chosen[@]}
if [ "$some" = 0 ]; then
  chosen=(-LE '^nightly$')
else  # a selection does not run every kernel, so the test that requires this is left out
  chosen+=(--fixture-exclude-cleanup coverage)
fi
total=0
for i in "${!folders[@]}"; do
  folder=${folders[i]}
  CONFIGURE_ONLY=1 launch/build.sh "${configurations[i]}" -DTANDEM_TESTS=REQUIRED
  tests=$(ctest --test-dir "$folder" -N "${chosen[@]}" | sed -n 's/^Total Tests: //p')
  total=$((total + tests))
  if [ "$some" != 0 ] && [ "$tests" = 0 ]; then
    continue  # the other build may have them
  fi
  if [ -n "${CONFIGURE_ONLY:-}" ]; then
    :
  elif [ "$some" = 0 ]; then
    cmake --build "$folder"
  else
    targets "$folder" "${chosen[@]}" | xargs -r cmake --build "$folder" --target
  fi
  "${fixed_addresses[@]}" ctest --test-dir "$folder" --parallel "$jobs" --output-on-failure --no-tests=error \
    "${chosen[@]}"
done
[ $total -gt 0 ] || { echo "run: no test is chosen by: $*" >&2; exit 1; }
