#!/usr/bin/env bash
# Wraps one rank: lets it open 65,536 files, or as many as the machine allows, binds it to the CPUs next to its GPU, if the
# machine says which these are and allows them, and runs it.
#   rank.sh PROGRAM [ARGUMENT...]
# TANDEM_SYS: another folder than /sys, for tests.
set -euo pipefail
trap '' USR1  # run.sh sends the signal again; the program takes it from its first line on
# Shows run.sh that this rank was started: mpirun and srun may end with 0 when none was.
started=${TANDEM_STARTED:-} number=${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:-}}
[ -z "$started" ] || { mkdir -p "$started" && : >"$started/$number"; } 2>/dev/null || true
# A login often allows 1,024 at first.
[ "$(ulimit -Sn)" = unlimited ] || [ "$(ulimit -Sn)" -ge 65536 ] || ulimit -Sn 65536 2>/dev/null || ulimit -Sn "$(ulimit -Hn)"
rank=${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID:-}}
sys=${TANDEM_SYS:-/sys}

# The NUMA nodes of NVIDIA's GPUs, by PCI address: the order of CUDA_DEVICE_ORDER=PCI_BUS_ID.
nodes=()
for device in "$sys"/bus/pci/devices/*; do
  if [ "$(cat "$device/vendor" 2>/dev/null)" = 0x10de ] && [[ $(cat "$device/class") == 0x030[02]* ]]; then
    nodes+=("$(cat "$device/numa_node" 2>/dev/null || echo -1)")
  fi
done
if [ -n "$rank" ] && [ ${#nodes[@]} -gt 0 ]; then
  export CUDA_DEVICE_ORDER=PCI_BUS_ID
  IFS=, read -ra visible <<<"${CUDA_VISIBLE_DEVICES:-}"
  gpu=${visible[rank]:-$rank}
  node=$([[ $gpu =~ ^[0-9]{1,4}$ ]] && echo "${nodes[10#$gpu]:--1}" || echo -1)
  if [ "$node" -ge 0 ] && { cpus=$(cat "$sys/devices/system/node/node$node/cpulist") && taskset -c "$cpus" true; } 2>/dev/null; then
    exec taskset -c "$cpus" "$@"
  fi
fi
exec "$@"
