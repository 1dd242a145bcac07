#!/usr/bin/env bash
# Every __global__ function of the project must be in the list of kernels that the tests executed on the emulated GPU.
set -euo pipefail
executed=$(readlink -f "$1")
cd "$(dirname "$0")/../.."
# Kernels are found by their names, which end in _kernel.
written=$(git ls-files 'src/*.cu' 'src/*.cuh' 'layers/*.cu' 'layers/*.cuh' 'comm/*.cu' 'optim/*.cu' 'optim/*.cuh' |
  xargs grep -hoE '\b[a-z0-9_]+_kernel\(' | tr -d '(' | sort -u)
missing=$(comm -23 <(echo "$written") <(sort -u "$executed"))
[ -z "$missing" ] || { echo "kernels that no test executed:"; echo "$missing"; exit 1; }
echo "$(echo "$written" | wc -l) kernels, all executed"
