#!/usr/bin/env bash
# Each script that users call says with --help how it is called, from any folder, and does nothing else; what it does not know is
# one line and exit code 2.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
cd "$here"
failed=0
wrong() { echo "$*"; failed=1; }

scripts=(launch/quickstart.sh launch/setup.sh launch/build.sh launch/run.sh launch/supervise.sh launch/scaling.py launch/recommend.py launch/track.py
  launch/sagemaker/submit.py launch/eks/render.py tests/run.sh tests/nightly.sh tests/anywhere.sh tests/fuzz/run.sh tests/mutants/run.py)
for script in "${scripts[@]}"; do
  relative=$(realpath --relative-to . "$top/$script")
  timeout 20 "$relative" --help >help 2>errors || wrong "$script --help ends with $?"
  grep -q "${script##*/}" help || wrong "$script --help does not show how it is called"
  if grep -q '^#' help || [ -s errors ]; then wrong "$script --help has more to say than help"; fi
done

refuses() {
  local code=0
  timeout 20 "$top/$1" "${@:2}" >help 2>errors || code=$?
  if [ "$code" -ne 2 ] || [ -s help ] || [ "$(wc -l <errors)" -ne 1 ]; then
    wrong "$*: ends with $code and says: $(cat help errors)"
  fi
}
for script in launch/{quickstart.sh,setup.sh,build.sh,run.sh,supervise.sh,scaling.py,track.py,sagemaker/submit.py,eks/render.py} \
    tests/nightly.sh; do
  refuses "$script" --unknown
done
refuses launch/build.sh unknown
refuses launch/build.sh -x
"$top/launch/build.sh" -h | grep -q 'release  build' || wrong "launch/build.sh -h does not help"
refuses launch/quickstart.sh "$here"
refuses launch/quickstart.sh --gpu none.txt
rm -f help errors
[ -z "$(ls -A)" ] || wrong "they left $(ls -A)"
[ $failed = 0 ] && echo "help: ${#scripts[@]} scripts"
exit $failed
