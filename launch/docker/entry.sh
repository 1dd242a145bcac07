#!/usr/bin/env bash
# What the image runs: `train ...` on the hosts of the job, `worker` in an MPIJob, `serve` alone behind a SageMaker endpoint, or
# another command of tandem.
# Docker starts it as root; then it becomes the owner of the working folder, to whom the new files shall belong.
set -euo pipefail
tandem=$(dirname "$(dirname "$(dirname "$(realpath "$0")")")")
case ${1:-} in
  train)
    if [ -e /opt/ml/input/config/resourceconfig.json ]; then
      exec "$tandem/launch/sagemaker/train" "${@:2}"  # stays root, to whom the service's folders belong
    fi
    set -- "$tandem/launch/run.sh" -- "$@" ;;
  serve)
    if [ $# = 1 ]; then
      set -- "$tandem/launch/sagemaker/serve"
    else
      set -- "$tandem/build/tandem" "$@"
    fi ;;
  worker) set -- "$tandem/launch/eks/worker.sh" "${@:2}" ;;
  *) set -- "$tandem/build/tandem" "$@" ;;
esac
owner=$(stat -c %u .)
if [ "$(id -u)" -eq 0 ] && [ "$owner" -ne 0 ]; then
  exec env HOME=/tmp setpriv --reuid "$owner" --regid "$(stat -c %g .)" --clear-groups --no-new-privs "$@"
fi
exec "$@"
