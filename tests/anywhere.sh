#!/usr/bin/env bash
# Quickstart and the tests where users have them: in a new clone below the folder for temporary files, in a path with a space.
#   tests/anywhere.sh root            as it is
#   tests/anywhere.sh user            as an ordinary user who may not become root
#   tests/anywhere.sh jobs            eight tests at a time
#   tests/anywhere.sh busy            with the lowest priority, beside as much other work of that priority on each core
#   tests/anywhere.sh user -R style   only some tests; what stands after the case goes to ctest
set -euo pipefail
[ "${1:-}" != --help ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit; }
as=() case=${1:-}
case $case in
  root | jobs) ;;
  user) as=(setpriv --reuid 65534 --regid 65534 --clear-groups) ;;
  busy) as=(nice -n 19) ;;
  *) echo "anywhere: $case is no case: root, user, jobs or busy" >&2; exit 2 ;;
esac
shift
[ "$case" != jobs ] || export JOBS=8
top=$(cd "$(dirname "$0")/.." && pwd)
"$top/launch/setup.sh" --tests
folder=$(mktemp -d "${TMPDIR:-/tmp}/tandem anywhere-XXXXXX")
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
if [ "$case" = busy ]; then
  for _ in $(seq "$(nproc)"); do
    nice -n 19 bash -c "while :; do :; done" &
  done
fi
git clone -q "$top" "$folder/clone"
if [ "$case" = user ]; then
  chown -R 65534:65534 "$folder"
  export HOME=$folder
fi
cd "$folder/clone"
"${as[@]}" launch/quickstart.sh
"${as[@]}" tests/run.sh "$@"
