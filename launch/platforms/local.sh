#!/usr/bin/env bash
# This machine alone. README.md lists what a platform answers.
set -euo pipefail
case $1 in
  hosts) tr , '\n' <<<"${TANDEM_HOSTS:-localhost}" | sed 's/^[[:space:]]*[^:[:space:]]\{1,\}/localhost/' ;;
  reach) exec "${@:3}" ;;
  launcher) printf '%s\n' mpirun -np "$2" --hostfile "$3" ;;
  shared) echo / ;;
esac
