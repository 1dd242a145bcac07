#!/usr/bin/env bash
# Kills what is left of a job on this host, and waits for it: end_job.sh TANDEM_JOB
for _ in {1..20}; do
  mapfile -t found < <(grep -lszxF "TANDEM_JOB=$1" /proc/[0-9]*/environ | tr -dc '0-9\n')
  [ ${#found[@]} -gt 0 ] || break
  kill -KILL "${found[@]}" 2>/dev/null
  sleep 0.1
done
