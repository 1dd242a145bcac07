#!/usr/bin/env bash
# The workers of an MPIJob, for its launcher: the operator writes their names, and eks/worker.sh answers ssh. README.md lists
# what a platform answers. TANDEM_MPI_HOSTFILE: another hostfile than the operator's, for tests.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
export TANDEM_HOSTS="" TANDEM_HOSTFILE=${TANDEM_MPI_HOSTFILE:-/etc/mpi/hostfile} TANDEM_SSH_CONFIG=$here/../eks/ssh_config
[ -r "$TANDEM_HOSTFILE" ] || { echo "$TANDEM_HOSTFILE is not there: this is not the launcher of an MPIJob" >&2; exit 2; }
exec "$here/ssh.sh" "$@"
