#!/usr/bin/env bash
# Runs a test program on the emulated GPU under several thread schedules, stream schedules and contents of fresh memory.
# It must pass under all of them and give the same bits; in one of them the host cannot touch device memory.
# tests/simt/agree.sh PROGRAM
set -euo pipefail
bits=$(mktemp -d)
trap 'rm -rf "$bits"' EXIT

run() {  # NAME THREADS STREAMS COPIES POISON PROTECT PROGRAM
  echo "--- threads $2, streams $3, copies $4, poison $5, protect $6"
  TANDEM_TEST_BITS="$bits/$1" TANDEM_SIMT_THREADS=$2 TANDEM_SIMT_STREAMS=$3 TANDEM_SIMT_COPIES=$4 \
    TANDEM_SIMT_POISON=$5 TANDEM_SIMT_PROTECT=$6 "${@:7}"
}
run first forward in-order late 0xff 0 "$@"
run second backward compute-late at-once 0x7b 0 "$@"
run third shuffled:7 comm-late late 0x00 1 "$@"
[ -s "$bits/first" ] || echo "agree: no tensors came back from the GPU, so there are no bits to compare"
touch "$bits"/{first,second,third}
for other in second third; do
  diff "$bits/first" "$bits/$other" || { echo "agree: the $other run gave other bits than the first" >&2; exit 1; }
done
