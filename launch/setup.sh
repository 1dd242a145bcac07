#!/usr/bin/env bash
# Installs what Tandem needs on Debian and Ubuntu. Prints what it does; quick when nothing is missing.
#   launch/setup.sh            what building and running needs
#   launch/setup.sh --tests    also what the tests compare against (clang-format, NumPy, h5py, PyTorch)
set -euo pipefail

packages=(build-essential cmake ninja-build ccache
  openmpi-bin libopenmpi-dev libhdf5-dev libboost-program-options-dev libopenblas-dev
  nlohmann-json3-dev libxxhash-dev zlib1g-dev libjpeg-dev libpng-dev libpcre2-dev
  libgtest-dev libbenchmark-dev)
[ "${1:-}" = --tests ] && packages+=(clang-format python3-numpy python3-h5py python3-torch)

if ! command -v apt-get >/dev/null; then
  echo "setup: no apt-get here. Install with your package manager: ${packages[*]}" >&2
  exit 2
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: everything is installed"
  exit 0
fi

sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
echo "setup: installing ${missing[*]}"
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "setup: done"
