#!/usr/bin/env bash
# Installs what Tandem needs on Debian and Ubuntu. Prints what it does; quick when nothing is missing.
#   launch/setup.sh            what building and running needs
#   launch/setup.sh --tests    also what the tests need: clang-format, matplotlib, fibers for the emulated GPU; PyTorch, clang 16,
#                              an SSH server and Slurm if the system has them; where there is nvcc, headers
#                              for cuDNN's attention and a disassembler
set -euo pipefail
[ "${1:-}" != --help ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit; }

packages=(build-essential cmake ninja-build ccache
  openmpi-bin libopenmpi-dev libhdf5-dev libboost-program-options-dev
  nlohmann-json3-dev libxxhash-dev zlib1g-dev libarchive-dev libjpeg-dev libpng-dev libpcre2-dev libicu-dev
  libgmock-dev libgtest-dev)
wanted=()
case $* in
  "") ;;
  --tests)
    packages+=(clang-format python3 python3-matplotlib python3-yaml libboost-context-dev)
    wanted=(python3-torch python3-h5py    # without them the parity tests are skipped, and say so
      clang-16 clang-tidy-16 libclang-rt-16-dev libomp-16-dev llvm-16   # for the fuzzers and clang-tidy
      shellcheck
      iproute2 iputils-ping openssh-server  # for pretend hosts
      python3-boto3  # the model of requests to SageMaker
      slurmctld slurmd slurm-client munge libslurm-dev) ;;
  *) echo "setup: unknown option $*: --help shows how" >&2; exit 2 ;;
esac

if ! command -v apt-get >/dev/null; then
  echo "setup: no apt-get here. Install with your package manager: ${packages[*]}" >&2
  exit 2
fi

installed() { dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }

missing=()
for package in "${packages[@]}"; do
  installed "$package" || missing+=("$package")
done
extra=()
for package in "${wanted[@]}"; do
  installed "$package" || extra+=("$package")
done
from_pip=()
if [ "$*" = --tests ] && command -v nvcc >/dev/null; then
  for package in nvidia-cudnn-frontend==1.32.0 nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37; do
    python3 -c "import importlib.metadata as it; it.version('${package%%=*}')" 2>/dev/null || from_pip+=("$package")
  done
fi
if [ ${#missing[@]} -eq 0 ] && [ ${#extra[@]} -eq 0 ] && [ ${#from_pip[@]} -eq 0 ]; then
  echo "setup: everything is installed"
  exit 0
fi

sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
install() {
  echo "setup: installing $*"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
[ $((${#missing[@]} + ${#extra[@]})) -eq 0 ] || "${sudo[@]}" apt-get update -qq
[ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
for package in "${extra[@]}"; do
  if apt-cache show "$package" >/dev/null 2>&1; then
    install "$package"
  else
    echo "setup: this system has no $package; tests that need it cannot run"
  fi
done
for package in "${from_pip[@]}"; do
  echo "setup: installing $package"
  PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore python3 -m pip install -q --no-deps --retries 1 \
    --disable-pip-version-check "$package" ||
    echo "setup: no $package; the build leaves out cuDNN's attention without nvidia-cudnn-frontend, and the check of machine code" \
      "is skipped without the other two"
done
echo "setup: done"
