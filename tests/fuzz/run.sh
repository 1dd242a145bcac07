#!/usr/bin/env bash
# Fuzzes: gives each target a million inputs, or inputs for ten minutes, within 512 MiB and a minute an input. Prints a
# table, and fails if an input ended a target.
#   tests/fuzz/run.sh [--seconds 600] [TARGET...]      tests/fuzz/run.sh --seconds 60 tar utf8
set -euo pipefail
[ "${1:-}" != --help ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit; }
cd "$(dirname "$0")/../.."
seconds=600
if [ "${1:-}" = --seconds ]; then
  seconds=$2
  shift 2
fi
targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(ls tests/fuzz/corpus)
clang=$(command -v "${CLANG:-clang++-16}") ||
  { echo "fuzz: no ${CLANG:-clang++-16}: launch/setup.sh --tests installs it on Debian, CLANG=NAME names another" >&2; exit 1; }
llvm=$(dirname "$(readlink -f "$clang")")
build=$(realpath -m "${BUILD:-build}")-fuzz
CONFIGURE_ONLY=1 launch/build.sh fuzz
cmake --build "$build" --target "${targets[@]/#/fuzz_}"

work=$(mktemp -d /dev/shm/tandem-fuzz-XXXXXX)  # what targets write stays in memory
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=quarantine_size_mb=4:detect_stack_use_after_return=1

# The lines of the target's sources, which its first line names, that these folders of inputs execute, in percent.
lines_covered() {
  local program=$build/fuzz_$1 sources
  read -ra sources < <(sed -n '1s/^[^:]*: //p' "tests/fuzz/targets/fuzz_$1.cpp")
  LLVM_PROFILE_FILE=$work/profraw "$program" -runs=0 -artifact_prefix="$work/" "${@:2}" >/dev/null 2>&1 || { echo -; return; }
  "$llvm/llvm-profdata" merge -o "$work/profile" "$work/profraw"
  "$llvm/llvm-cov" report "$program" -instr-profile="$work/profile" -sources "${sources[@]}" |
    awk '$1 == "TOTAL" { print $10 }'
}

failed=()
printf '%-14s %9s %8s %5s %8s  %s\n' target inputs seconds MiB lines findings
for target in "${targets[@]}"; do
  inputs=$build/inputs/$target findings=$build/findings/$target log=$build/$target.log
  folders=("$inputs" "tests/fuzz/corpus/$target" "$findings")  # new inputs go to the first
  mkdir -p "$inputs" "$findings"
  options=(-runs=1000000 -max_total_time="$seconds" -timeout=60 -rss_limit_mb=512 -artifact_prefix="$findings/"
    -print_final_stats=1)
  dictionary=tests/fuzz/dictionaries/$target.dict
  [ ! -f "$dictionary" ] || options+=(-dict="$dictionary")
  begin=$SECONDS found=none
  LLVM_PROFILE_FILE=/dev/null "$build/fuzz_$target" "${options[@]}" "${folders[@]}" >"$log" 2>&1 ||
    { failed+=("$target"); found="$findings, $log"; }
  printf '%-14s %9s %8s %5s %8s  %s\n' "$target" "$(awk '/number_of_executed_units/ { print $2 }' "$log")" \
    $((SECONDS - begin)) "$(awk '/peak_rss_mb/ { print $2 }' "$log")" "$(lines_covered "$target" "${folders[@]}")" "$found"
done
[ ${#failed[@]} -eq 0 ] || { echo "fuzz: findings in: ${failed[*]}" >&2; exit 1; }
