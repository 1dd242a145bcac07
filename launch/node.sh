#!/usr/bin/env bash
# Prints what run/checks.py must know of this machine: a line `key value` for each fact, several lines for several GPUs.
#   node.sh PROGRAM RANK_SCRIPT DATASET RUN_DIR
# A fact that cannot be had is missing. The last line is "end".
program=$1 rank_script=$2 dataset=$3 run_dir=$4
fact() { if [ -n "${2:-}" ]; then echo "$1 $2"; fi; }
has() { command -v "$1" >/dev/null 2>&1; }

fact hostname "$(hostname)"
# SageMaker tells its containers the type, as ml.p4d.24xlarge.
type=$(sed -n 's/.*"current_instance_type": *"ml\.\([^"]*\)".*/\1/p' "${TANDEM_OPT_ML:-/opt/ml}/input/config/resourceconfig.json" 2>/dev/null)
fact machine "${type:-$(cat /sys/devices/virtual/dmi/id/product_name 2>/dev/null)}"
fact cores "$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)"  # nproc obeys both

# The program, which must be the same everywhere, and start.
if [ -x "$program" ] && [ -r "$rank_script" ]; then
  fact program "$(cat "$program" "$rank_script" | sha256sum | cut -c1-16)"
  fact missing_library "$(ldd "$program" | awk '/not found/ {print $1; exit}')"
  # cuBLASLt is loaded when it is used.
  cublas=$(grep -aom1 'libcublasLt\.so\.[0-9]*' "$program")
  fact cuda "${cublas##*.}"
  if [ -n "$cublas" ] && ! LD_PRELOAD=$cublas ldd "$program" 2>/dev/null | grep -qF "$cublas => /"; then fact missing_library "$cublas"; fi
  if ! said=$(timeout 8 "$program" --help 2>&1 >/dev/null); then fact cannot_start "$(tail -n 1 <<<"${said:-it ended without a word}")"; fi
fi
fact open_mpi "$(mpirun --version 2>/dev/null | sed -n 's/^mpirun (Open MPI) //p')"

# GPUs and what they need.
# Without the persistence daemon each question wakes all GPUs, which takes seconds: all at once, they are woken once.
ask_gpus() { timeout 8 nvidia-smi "--query-$1" --format=csv,noheader,nounits 2>/dev/null | sed -nu "$2" & }
if has nvidia-smi; then
  ask_gpus gpu=memory.total,driver_version 's/^\([0-9]*\), \(.*\)/gpu \1 \2/p'
  ask_gpus compute-apps=pid,process_name 's/^/gpu_process /p'
  ask_gpus remapped-rows=gpu_bus_id,remapped_rows.pending 's/^\(.*\), *\(1\|[Yy]es\)$/gpu_remapping \1/p'
  wait
fi
if has systemctl; then
  manager=$(systemctl is-active nvidia-fabricmanager 2>/dev/null)
  [ "$manager" != activating ] || { echo "nvidia-fabricmanager is still starting" >&2; exit 1; }  # run.sh asks again
  fact fabric_manager "$manager"
fi

# The network.
efa=0
for device in /sys/class/infiniband/*; do
  if [ "$(basename "$(readlink -f "$device/device/driver")")" = efa ]; then efa=$((efa + 1)); fi
done
fact efa "$efa"
# Prints the file that the loader finds for a library, or nothing.
library() {
  local folder
  for folder in ${LD_LIBRARY_PATH//:/ } /opt/amazon/ofi-nccl/lib /opt/amazon/ofi-nccl/lib/*-linux-gnu /opt/aws-ofi-nccl/lib /opt/amazon/efa/lib /opt/amazon/efa/lib64; do
    if [ -e "$folder/$1" ]; then readlink -f "$folder/$1"; return; fi
  done
  ldconfig -p 2>/dev/null | awk -v name="$1" '$1 == name {print $NF; exit}' | xargs -r readlink -f
}
# Prints the version that a library's own text says after these words, or nothing.
version_in() {
  if [ -n "$1" ]; then grep -aom1 "$2[0-9][0-9.]*" "$1" | sed "s/^$2//"; fi
}
plugin=$(library libnccl-net.so)
fact nccl_plugin "$plugin"
fact nccl_plugin_version "$(version_in "$plugin" 'aws-ofi-nccl ')"
fact nccl_version "$(version_in "$(library libnccl.so.2)" 'NCCL version ')"
fact libfabric "$(/opt/amazon/efa/bin/fi_info --version 2>/dev/null | sed -n 's/^libfabric: //p')"

# Limits.
fact memlock "$(ulimit -l)"
fact open_files "$(ulimit -Hn)"  # rank.sh takes what is allowed
fact shared_memory "$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $2}')"

# Data and disk. Datasets are the same when their sizes and the hashes of their first and last megabytes are.
if [ -f "$dataset" ] && [ -r "$dataset" ]; then
  fact dataset "$(stat -Lc %s "$dataset") $({ head -c 1048576 "$dataset"; tail -c 1048576 "$dataset"; } | sha256sum | cut -c1-16)"
fi
folder=$run_dir
while [ ! -d "$folder" ] && [ "$folder" != / ] && [ "$folder" != . ]; do folder=$(dirname "$folder"); done
fact free_disk "$(df -Pk "$folder" 2>/dev/null | awk 'NR == 2 {print $4}')"

# Variables that change how NCCL and libfabric behave; an ssh login may set its own.
env | sed -n 's/^\(\(RDMAV\|NCCL\|FI\)_[A-Z0-9_]*\)=.*/variable \1/p'
echo "end"
