#!/usr/bin/env bash
# Fails if shellcheck has something to say about a shell script, or if a script cannot be called by its name.
set -euo pipefail
cd "$(dirname "$0")/../.."
find .ci launch tests -type f ! -perm -u+x -exec awk '/^#!/ { print FILENAME ": chmod +x"; bad = 1 } { nextfile } END { exit bad }' {} +
command -v shellcheck >/dev/null || { echo "skipped: shellcheck is not installed (launch/setup.sh --tests)"; exit 77; }
mapfile -t scripts < <(find .ci launch tests -type f \( -name '*.sh' -o -name '*.sbatch' -o -path .ci/run \) | sort)
[ "${#scripts[@]}" -gt 20 ] || { echo "only ${#scripts[@]} scripts found"; exit 1; }
shellcheck -x -P SCRIPTDIR "${scripts[@]}"
echo "${#scripts[@]} scripts"
