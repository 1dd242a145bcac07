#!/usr/bin/env bash
# Makes the image's final stage: EFA, packages, and the user that launch/eks/render.py names. No keys and no lists stay.
#   runtime.sh EFA_VERSION|none FILE_OF_PACKAGES
set -euo pipefail
cd "$(dirname "$0")"
./efa.sh "$1"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
xargs apt-get install -y -qq --no-install-recommends openssh-client openssh-server python3 <"$2" >/dev/null
rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
if other=$(getent passwd 1000); then userdel --remove "${other%%:*}"; fi  # some bases have a user 1000
useradd --create-home --uid 1000 --user-group --shell /bin/bash tandem
install -d -o tandem -g tandem /work
