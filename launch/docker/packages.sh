#!/usr/bin/env bash
# Prints the packages of Debian or Ubuntu that hold the libraries of a program, and mpirun, a line each. NVIDIA's have a
# version: its archive keeps all of them, and another NCCL is another program.
#   packages.sh PROGRAM
set -euo pipefail
program=${1:?}
cublas=$(grep -aom1 'libcublasLt\.so\.[0-9]*' "$program" || true)  # loaded when it is used
needed=$cublas$'\n'$(readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
files=$(LD_PRELOAD=$cublas ldd "$program" 2>/dev/null | grep -wF "${needed#$'\n'}" | awk '{print $3}' | xargs realpath "$(command -v mpirun)")
[[ $files == *"$cublas"* ]] || { echo "packages: $cublas is not found" >&2; exit 1; }
for file in $files; do
  # /lib is a link to /usr/lib; packages may still name the link.
  if ! owner=$(dpkg-query -S "$file" 2>/dev/null || dpkg-query -S "${file#/usr}" 2>/dev/null); then
    echo "packages: $file is of no package" >&2
    exit 1
  fi
  package=${owner%%:*}
  case $package in
    libcublas* | libnccl*) dpkg-query -W -f '${Package}=${Version}\n' "$package" ;;
    *) echo "$package" ;;
  esac
done | sort -u
