#!/usr/bin/env bash
# Starts a training job on all of its hosts, after checks that find what is wrong with them. README.md tells about it.
#   launch/run.sh --hostfile hosts -- train --config configs/gpt2_124m.cfg --data.path /fsx/docs.h5 --run.dir /fsx/runs
#   launch/run.sh --help
set -euo pipefail
true >&2 || exec 2>/dev/null  # what is opened next would get the number of a closed one, and all that is said
trap 'echo "run: ended with 85 before the ranks were started" >&2 || true; exit 85' TERM INT HUP USR1
hold=(env "--block-signal=TERM,INT,HUP,USR1")  # signals wait until main.py can answer
"${hold[@]}" true 2>/dev/null || hold=()     # coreutils before 8.31 cannot
exec "${hold[@]}" python3 "$(dirname "$(realpath "$0")")/run/main.py" "$@"
