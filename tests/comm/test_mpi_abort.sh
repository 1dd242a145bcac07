#!/usr/bin/env bash
# However a rank ends, the whole job ends: soon, with the right exit code and message, and without
# leaving processes behind. Usage: test_mpi_abort.sh PROGRAM [MPIRUN] (PROGRAM: tests/comm/mpi_abort.cpp)
set -u
program=$1
mpirun=${2:-mpirun}
out=$(mktemp)
trap 'rm -f "$out"' EXIT
failures=0

# True if the process still runs three seconds after the job. A zombie (state Z) does not count.
alive() {
  for _ in {1..30}; do
    grep -q '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status" 2>/dev/null || return 1
    sleep 0.1
  done
  return 0
}

# expect RANKS WAY SECONDS EXIT_CODE PATTERN
expect() {
  local ranks=$1 way=$2 seconds=$3 code=$4 pattern=$5 status start pid
  start=$SECONDS
  timeout -k 5 30 "$mpirun" -np "$ranks" "$program" "$way" >"$out" 2>&1
  status=$?
  local problem=""
  [ "$status" -eq "$code" ] || problem+=" exit code $status, not $code;"
  [ $((SECONDS - start)) -le "$seconds" ] || problem+=" took $((SECONDS - start)) s;"
  grep -qE "$pattern" "$out" || problem+=" no line matches '$pattern';"
  [ "$(grep -c '^pid ' "$out")" -eq "$ranks" ] || problem+=" not $ranks ranks;"
  while read -r pid; do
    if alive "$pid"; then
      problem+=" process $pid is still there;"
      kill -9 "$pid"
    fi
  done < <(sed -n 's/^pid //p' "$out")
  if [ -n "$problem" ]; then
    echo "FAILED: $ranks ranks, $way:$problem"
    sed 's/^/    /' "$out"
    failures=$((failures + 1))
  else
    echo "ok: $ranks ranks, $way"
  fi
}

expect 3 nothing 10 0 '^pid '
expect 3 throw 10 3 "\[rank 1\] this rank's file is broken"
expect 3 throw-while-computing 10 64 '\[rank 1\] loss is not finite'
# The rank that times out first names the rank that is really missing.
expect 4 late 15 75 'all_reduce of 400000 bytes \(collective 1 .* nothing for 1 s; missing: rank 1 \('
expect 4 late-in-split 15 75 'all_reduce of 400000 bytes \(collective 1 of ranks 1, 3, rank 3 of 4\): rank 1 .* nothing for 1 s; missing: rank 1 \('
expect 2 other-size 10 70 'all_reduce of .* (sent 100000 bytes where 200000 were expected|MPI_ERR_TRUNCATE)'
expect 2 other-collective 15 75 '(all_reduce|all_gather) of 400000 bytes .* nothing for 1 s; all ranks wait'
expect 3 leave 15 7 'pid '
exit $((failures > 0))
