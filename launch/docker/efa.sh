#!/usr/bin/env bash
# Installs AWS's software for EFA in an image: libfabric, Open MPI and NCCL's network plugin. The host brings the kernel module.
#   efa.sh VERSION|none
set -euo pipefail
version=${1:?}
[ "$version" != none ] || exit 0
if ! [[ $version =~ ^[0-9]+(\.[0-9]+)+$ ]]; then
  echo "efa: '$version' must be a version of the EFA installer, as 1.49.0, or none" >&2
  exit 2
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends ca-certificates curl >/dev/null
folder=$(mktemp -d)
curl -fsSL "https://efa-installer.amazonaws.com/aws-efa-installer-$version.tar.gz" | tar -xz -C "$folder"
cd "$folder/aws-efa-installer"
./efa_installer.sh -y -g --skip-kmod --skip-limit-conf --no-verify --disable-build-ngc
rm -rf "$folder"
