#!/usr/bin/env bash
# Starts a training job on all of its hosts, after checks that find what is wrong with them. README.md tells about it.
#   launch/run.sh --hostfile hosts -- train --config configs/gpt2_124m.cfg --data.path /fsx/docs.h5 --run.dir /fsx/runs
#   launch/run.sh --help
set -euo pipefail
exec python3 "$(dirname "$(realpath "$0")")/run/main.py" "$@"
