#!/usr/bin/env bash
# The first process of a worker's pod: an sshd for the launcher, at port 2222. SIGTERM, as at an eviction, asks the ranks in
# this pod to save, after which all ranks of the job end; sshd outlives them. Exit code 1: they had not ended after
# TANDEM_GRACE (110) seconds. The operator mounts ~/.ssh/authorized_keys. Needs no root.
set -uo pipefail
grace=${TANDEM_GRACE:-110} stop=""
say() { echo "worker: $*" >&2; }
trap 'stop=yes' TERM INT

keys=$(mktemp -d)
ssh-keygen -q -t ed25519 -N "" -f "$keys/host" || exit 2
[ "$(id -u)" -ne 0 ] || mkdir -p /run/sshd
# Commands that come through sshd find what the image has set.
/usr/sbin/sshd -D -e -f /dev/null -p 2222 -h "$keys/host" -o PidFile=none -o StrictModes=no -o PasswordAuthentication=no \
  -o KbdInteractiveAuthentication=no -o MaxStartups=1000 -o LogLevel=ERROR \
  -o "SetEnv=PATH=$PATH LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}" &
sshd=$!

# Asks the ranks that are ready for it: SIGUSR1 would end what does not catch it.
ask_ranks() {
  local file pid caught
  while read -r file; do
    pid=${file//[!0-9]/}
    caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null)
    if [ $((0x${caught:-0} >> 9 & 1)) -eq 1 ]; then kill -USR1 "$pid"; fi
  done < <(grep -lsz '^OMPI_COMM_WORLD_RANK=' /proc/[0-9]*/environ)
}
has_job() { grep -qsx orted /proc/[0-9]*/comm; }  # mpirun's daemon ends after the ranks

code=0
while [ -z "$stop" ] && kill -0 "$sshd" 2>/dev/null; do
  wait "$sshd"
  code=$?
done
if [ -z "$stop" ]; then
  say "sshd ended with $code"
  exit $((code ? code : 1))
fi

code=0 began=$SECONDS asked=-2
if has_job; then say "asked to end: asks the ranks to save, and waits for their end"; fi
while has_job; do
  waited=$((SECONDS - began))
  if [ "$waited" -ge "$grace" ]; then
    say "the ranks have not ended $grace s after the request"
    code=1
    break
  fi
  if [ "$waited" -ge $((asked + 2)) ]; then
    asked=$waited
    ask_ranks
  fi
  sleep 0.2
done
kill "$sshd"
rm -rf "$keys"
exit "$code"
