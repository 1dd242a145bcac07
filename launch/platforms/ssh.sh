#!/usr/bin/env bash
# Hosts that ssh reaches without a password: a list in TANDEM_HOSTS, or a file in TANDEM_HOSTFILE. TANDEM_SSH_CONFIG: another
# configuration file of ssh than the user's. README.md lists what a platform answers.
set -euo pipefail
ssh=(ssh ${TANDEM_SSH_CONFIG:+-F "$TANDEM_SSH_CONFIG"}
  -o BatchMode=yes -o StrictHostKeyChecking=accept-new -o ConnectTimeout=5 -o ServerAliveInterval=5 -o ServerAliveCountMax=2)
case $1 in
  hosts)
    if [ -n "${TANDEM_HOSTS:-}" ]; then
      tr , '\n' <<<"$TANDEM_HOSTS"
    else
      cat "$TANDEM_HOSTFILE"
    fi ;;
  reach)
    if [ "$2" = "$(hostname)" ]; then exec "${@:3}"; fi
    exec "${ssh[@]}" -- "$2" "$(printf '%q ' "${@:3}")" ;;
  launcher)
    printf '%s\n' mpirun -np "$2" --hostfile "$3" --prefix "$(dirname "$(dirname "$(command -v mpirun)")")" \
      --mca plm_rsh_agent "${ssh[*]}" --mca plm_rsh_no_tree_spawn 1 --mca plm_rsh_num_concurrent 256 ;;
  shared) ;;
esac
