#!/usr/bin/env bash
# Kills what is left of a job on this host, and waits until it is gone, 5 s and a bit: end_job.sh TANDEM_JOB
tries=50
while mapfile -t found < <(grep -lszxF "TANDEM_JOB=$1" /proc/[0-9]*/environ | tr -dc '0-9\n') && [ ${#found[@]} -gt 0 ] && [ $((tries -= 1)) -gt 0 ]; do
  kill -KILL "${found[@]}" 2>/dev/null
  for pid in "${found[@]}"; do  # a dead process has no environment any more, but may still hold a GPU
    while grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$pid/task/"*/status && [ $((tries -= 1)) -gt 0 ]; do sleep 0.1; done
  done
done
