#!/usr/bin/env bash
# From nothing to a trained model: packages, build, data, training on two ranks, generated text.
#   launch/quickstart.sh [--gpu] [TEXT...]   trains on Debian's fortunes, or on your own text files
#   launch/quickstart.sh --help
# It takes about six minutes on two cores, most of them for the build.
# Without a driver for NVIDIA GPUs it builds no CUDA code, which takes most of the time of a build; --gpu builds it anyway.
set -euo pipefail
[ "${1:-}" != --help ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit; }
gpu=OFF
if [ "${1:-}" = --gpu ]; then
  gpu=REQUIRED
  shift
elif [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null; then
  gpu=ON
fi
for text in "$@"; do
  [[ $text != --* ]] || { echo "quickstart: unknown option $text: --help shows how" >&2; exit 2; }
  [[ -f $text && -r $text ]] || { echo "quickstart: $text is no file that can be read" >&2; exit 2; }
done
texts=()
[ $# -eq 0 ] || mapfile -t texts < <(realpath -- "$@")
cd "$(dirname "$0")/.."

begin=$SECONDS
phase() { printf '== quickstart: %s; %d:%02d min so far\n' "$1" $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60)); }

phase "1 of 5, packages"
launch/setup.sh
phase "2 of 5, build"
launch/build.sh release -DTANDEM_TESTS=OFF -DTANDEM_CUDA=$gpu
[ -z "${CONFIGURE_ONLY:-}" ] || exit 0  # for tests/style/check_orders.sh
. launch/mpi_env.sh

phase "3 of 5, data"
name=quickstart
if [ ${#texts[@]} -eq 0 ]; then
  # The fortunes package: about 2 MB of short plain texts, each ended by a line with a single %.
  folder=data/fortunes
  if [ ! -s "$folder/fortunes.txt" ]; then
    mkdir -p "$folder"
    echo "quickstart: fetching the fortunes package"
    (cd "$folder" && apt-get download -qq fortunes 2>/dev/null) || {
      sudo=(); [ "$(id -u)" -eq 0 ] || sudo=(sudo)
      "${sudo[@]}" apt-get update -qq
      (cd "$folder" && apt-get download -qq fortunes)
    }
    dpkg-deb -x "$folder"/fortunes_*.deb "$folder/package"
    find "$folder/package" -type f -path '*games/fortunes/*' ! -name '*.dat' ! -name '*.u8' | sort |
      xargs cat | tr -d '\010\r' | tr '\t' ' ' >"$folder/fortunes.txt"
  fi
  texts=("$folder/fortunes.txt") tokenizer=(bpe --vocab-size 1024)
else
  tokenizer=(char)  # good for any size and language
  name=quickstart-$(basename "${texts[0]}" | tr -c '[:alnum:]\n' '-')-$(cat "${texts[@]}" | cksum | cut -d ' ' -f 1)  # another text is another run
fi

mkdir -p data
build/tandem prepare text --input "${texts[@]}" --output "data/$name.h5" --tokenizer "${tokenizer[@]}" --force
phase "4 of 5, training"
mpirun -np 2 build/tandem train --config configs/quickstart.cfg --run.name "$name" --data.path "data/$name.h5"

phase "5 of 5, text from the trained model"
if [ $# -eq 0 ]; then
  echo "Freshly invented fortunes:"
  for seed in 1 2 3; do
    echo
    build/tandem generate --checkpoint "runs/$name" --prompt $'\n%\n' --tokens 250 --temperature 0.7 --seed $seed --stop $'\n%\n'
  done
else
  echo "A sample:"
  build/tandem generate --checkpoint "runs/$name" --tokens 400 --temperature 0.7
fi
