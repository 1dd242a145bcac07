#!/usr/bin/env bash
# The hosts of a Slurm job, for a script that runs inside it. README.md lists what a platform answers.
set -euo pipefail
slots=${SLURM_NTASKS_PER_NODE:-${SLURM_GPUS_ON_NODE:-}}
# srun would hold each of its steps to these: numbers of ranks and GPUs, and the variables that it passes on.
of_job=(SLURM_NTASKS_PER_NODE SLURM_NTASKS_PER_GPU SLURM_GPUS SLURM_EXPORT_ENV)
unset "${of_job[@]}"
gpus=()  # a step of an exclusive job has no GPUs unless it asks for them
[ -z "${SLURM_GPUS_ON_NODE:-}" ] || gpus=(--gres "gpu:$SLURM_GPUS_ON_NODE")

case $1 in
  hosts)
    [ -n "${SLURM_JOB_NODELIST:-}" ] || { echo "this is no Slurm job: start it with sbatch or in salloc" >&2; exit 2; }
    scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/\$/ $slots/" ;;
  reach)
    if [ "$2" = "${SLURMD_NODENAME:-}" ]; then exec "${@:3}"; fi
    exec srun --quiet --overlap --nodes 1 --ntasks 1 --nodelist "$2" --cpu-bind none --mpi none "${gpus[@]}" "${@:3}" ;;
  launcher)
    if srun --mpi=list 2>&1 | grep -qw pmix; then
      # A line for each rank puts the ranks where mpirun would.
      while read -r host count; do
        for ((i = 0; i < ${count#slots=}; i++)); do echo "$host"; done
      done <"$3" | head -n "$2" >"$3.ranks"
      printf '%s\n' env "${of_job[@]/#/-u}" "SLURM_HOSTFILE=$3.ranks" srun --mpi pmix --ntasks "$2" \
        --nodes "$(sort -u "$3.ranks" | wc -l)" --distribution arbitrary --kill-on-bad-exit=1 --cpu-bind none "${gpus[@]}"
      [ ! -e /opt/sagemaker_cluster ] || echo --auto-resume=1  # HyperPod repairs the hosts of this step
    else
      ! grep _ "$3" >&2 || { echo "Open MPI takes no underscore in a host's name: use a Slurm with PMIx, or other names" >&2; exit 2; }
      # mpirun starts its daemons on the hosts through srun, from the batch shell.
      printf '%s\n' env "${of_job[@]/#/-u}" mpirun -np "$2" --hostfile "$3"
      [ ${#gpus[@]} -eq 0 ] || printf '%s\n' --mca plm_slurm_args "${gpus[*]}"
    fi ;;
  shared) ;;
esac
