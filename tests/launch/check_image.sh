#!/usr/bin/env bash
# Builds launch/docker/Dockerfile and trains in the image, without a daemon: buildah on a bare Debian of apt's mirror instead of
# CUDA's base, without EFA and CUDA. Says how large the image is. Needs root; ten minutes on two idle cores.
#   check_image.sh       by hand: apt-get install buildah debootstrap
set -euo pipefail
cd "$(dirname "$0")/../.."
for program in buildah debootstrap; do
  command -v "$program" >/dev/null || { echo "check_image: not installed: $program" >&2; exit 2; }
done
folder=$(mktemp -d /var/tmp/tandem-image-XXXXXX)
image() { buildah --root "$folder/storage" --runroot "$folder/run" --storage-driver vfs "$@"; }
trap 'image rm --all >/dev/null; rm -rf "$folder"' EXIT
export BUILDAH_ISOLATION=chroot

echo "a base"
system=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
mirror=$(apt-get indextargets --format "\$(REPO_URI)" "Codename: $system" | sort -u | head -1)
debootstrap --variant=minbase "$system" "$folder/base" "$mirror" >"$folder/log" || { tail -n 20 "$folder/log"; exit 1; }
base=$(image from scratch)
image add --quiet "$base" "$folder/base" / >/dev/null
image commit --quiet "$base" tandem-base >/dev/null
rm -rf "$folder/base"

echo "the image"
image build --quiet --file launch/docker/Dockerfile --ignorefile launch/docker/Dockerfile.dockerignore --tag tandem \
  --build-arg BUILD_BASE=localhost/tandem-base --build-arg FINAL_BASE=localhost/tandem-base --build-arg EFA=none \
  --build-arg TANDEM_CMAKE_ARGS=-DTANDEM_CUDA=OFF . >"$folder/log" 2>&1 || { tail -n 50 "$folder/log"; exit 1; }
image images --format '{{.Name}} {{.Size}}'
layers=$(image inspect --type image --format '{{len .OCIv1.RootFS.DiffIDs}}' tandem)
echo "$layers layers, the base's among them"

echo "a run"
container=$(image from --ulimit nofile=8192:8192 tandem)
root=$(image mount "$container")
folder_of_runs=$root$(image inspect --type image --format '{{.OCIv1.Config.WorkingDir}}' tandem)
keys=$(find "$root" -xdev \( -name 'ssh_host_*' -o -name 'id_*' -o -name '*.pem' \) -not -path '*/usr/share/*' -not -path '*/etc/ssl/*')
[ -z "$keys" ] || { echo "keys in the image: $keys"; exit 1; }
[ ! -e "$root/opt/tandem/src" ] || { echo "sources in the image"; exit 1; }
entry=$(image inspect --type image --format '{{index .OCIv1.Config.Entrypoint 0}}' tandem)
in_image() { image run "$container" -- "$entry" "$@"; }
in_image --help | grep -q train
seq 5000 >"$folder_of_runs/words.txt"
in_image prepare text --input words.txt --output words.h5 --tokenizer char
in_image train --data.path words.h5 --run.dir runs --run.name one --model.layers 1 --model.width 16 --model.heads 2 --model.context 16 \
  --train.steps 3 --train.global_batch 4 --log.progress none --run.watch_spot off
owner=$(stat -c %u "$folder_of_runs/runs/one/config.cfg")
[ "$owner" -eq 1000 ] || { echo "the run belongs to user $owner, not to the working folder's 1000"; exit 1; }

echo "a SageMaker job"
mkdir -p "$root"/opt/ml/{input/config,input/data/train,checkpoints,model,output}
cp "$folder_of_runs/words.h5" "$root/opt/ml/input/data/train"
echo '{"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "eth0"}' >"$root/opt/ml/input/config/resourceconfig.json"
echo '{"train": {"TrainingInputMode": "File"}}' >"$root/opt/ml/input/config/inputdataconfig.json"
echo '{"run.name": "two", "model.layers": "1", "model.width": "16", "model.heads": "2", "model.context": "16", "train.steps": "3",
  "train.global_batch": "4", "run.watch_spot": "off"}' >"$root/opt/ml/input/config/hyperparameters.json"
in_image train
find "$root/opt/ml/model" -name tokenizer.h5 | grep -q .
echo good
