#!/usr/bin/env bash
# The hosts of a SageMaker training job, asked inside the container of one of them; the first of them starts the ranks.
# README.md lists what a platform answers.
set -euo pipefail
config=${TANDEM_OPT_ML:-/opt/ml}/input/config/resourceconfig.json
[ -r "$config" ] || { echo "$config is not there: this is no container of a SageMaker training job" >&2; exit 2; }
# The service may name the hosts in another order on each of them.
read -r here hosts < <(python3 -c 'import json, sys
config = json.load(open(sys.argv[1]))
print(config["current_host"], ",".join(sorted(config["hosts"])))' "$config")

platform=ssh
[[ $hosts == *,* ]] || platform=local
# A container may have another host name than the service gives it.
if [ "$1" = reach ] && [ "$2" = "$here" ]; then platform=local; fi
TANDEM_HOSTS=$hosts exec "$(dirname "$0")/$platform.sh" "$@"
