#!/usr/bin/env bash
# Which folders each folder may include, and no circle among them (READMEs say why); which files may include a library; sizes.
set -euo pipefail
cd "$(dirname "$0")/../.."
export LC_ALL=C
failed=0

# Which folders each folder includes, sub-rooms named by themselves: FOLDER...: FOLDER...
allowed='
src/device:                 src/core
src/device/ranks:           src/core src/device
src/telemetry:              src/core src/device
src/kernels:                src/core src/device
src/device/host:            src/core src/device
src/product:                src/core src/device src/kernels
src/autograd:               src/core src/device src/device/host src/kernels
src/trace:                  src/core src/device src/device/ranks src/kernels
layers/activation layers/add layers/batchnorm2d layers/embedding layers/pool2d layers/shortcut:
                            src/autograd src/device src/kernels
layers/conv2d:              src/autograd src/device src/kernels src/product
layers/lora:                src/autograd src/core src/product
layers/linear:              src/kernels src/product layers/exchange layers/lora
layers/attention:           src/autograd src/core src/device src/kernels src/product
layers/cross_entropy:       src/autograd src/core src/device src/device/ranks src/kernels layers/exchange
layers/image_input:         src/core src/device src/kernels
layers/exchange:            src/autograd src/device src/device/ranks src/kernels
layers/norm:                src/autograd src/device src/kernels layers/add
layers/dropout:             src/core src/autograd src/device src/kernels
layers/rope:                src/core src/kernels layers/attention
layers/models:              src/core src/autograd src/device layers/activation layers/add layers/attention layers/batchnorm2d layers/conv2d
                            layers/cross_entropy layers/dropout layers/embedding layers/linear layers/lora layers/norm layers/pool2d
                            layers/rope layers/shortcut
comm/transport:             src/core src/device src/device/ranks src/trace
comm/sharding/exact:        src/core src/device src/device/ranks src/kernels src/autograd src/trace
comm/sharding/eight_bits:   src/core src/device src/kernels
comm/sharding/matrices:     src/device src/kernels comm/sharding
comm/sharding:              src/core src/device src/device/ranks src/kernels src/autograd src/trace comm/transport
                            comm/sharding/exact comm/sharding/eight_bits
comm:                       src/core src/device/ranks src/trace comm/transport comm/sharding
optim:                      src/core src/device src/kernels
optim/muon:                 src/device src/kernels src/product optim
src/io src/serve/http src/stop: src/core
src/io/hdf5 src/io/safetensors: src/core src/io
src/io/checkpoint:          src/core src/device src/io src/io/hdf5
src/data:                   src/core src/device src/io src/io/hdf5
src/data/bpe:               src/core src/io src/data
src/prepare:                src/core src/io src/io/hdf5 src/data src/data/bpe
src/prepare/images:         src/core src/io src/io/hdf5 src/data src/prepare
src/options:                src/core src/data
src/step:                   src/core src/device src/device/host src/device/ranks src/trace src/kernels src/autograd src/data src/options layers/batchnorm2d
                            layers/image_input layers/models comm/sharding comm/sharding/exact comm/sharding/matrices optim
                            optim/muon
src/settings:               src/core src/device src/data src/stop src/options src/step layers/attention layers/models optim
src/machine:                src/core src/device src/device/ranks src/product src/autograd src/io layers/attention comm comm/transport
                            src/settings
src/weights/kinds:          layers/models src/settings
src/weights/hugging_face:   src/core src/device src/io src/io/checkpoint src/io/hdf5 src/io/safetensors src/data src/data/bpe
                            layers/models src/settings
src/weights:                src/core src/device src/device/ranks src/kernels src/product src/io src/io/checkpoint src/data layers/models
                            comm/sharding optim src/step src/settings src/weights/hugging_face
src/inference:              src/core src/device src/device/ranks src/kernels src/io src/io/checkpoint src/data src/prepare layers/models comm/sharding
                            src/step src/settings src/machine src/weights src/weights/hugging_face
src/serve:                  src/core src/io src/data src/prepare src/prepare/images src/inference src/serve/http
src/estimate:               src/core src/device src/product src/data layers/attention layers/models comm
                            comm/transport src/step src/settings src/machine src/weights
src/report/writers:         src/core src/io src/options
src/report/trace:           src/core src/io src/trace
src/report:                 src/core src/device src/device/ranks src/telemetry src/trace src/io src/io/checkpoint src/data layers/models
                            src/options src/settings src/machine src/weights src/inference src/report/writers
src/train:                  src/core src/device src/device/ranks src/trace src/kernels src/io src/io/checkpoint src/data src/stop layers/attention
                            layers/models comm src/step src/settings src/machine src/weights src/weights/hugging_face
                            src/inference src/estimate src/report src/report/trace
src/commands:               src/core src/device src/device/ranks src/trace src/io src/io/checkpoint src/data src/prepare
                            src/options src/stop comm src/settings src/machine src/weights src/weights/hugging_face src/inference
                            src/estimate src/report src/report/trace src/report/writers src/serve src/serve/http src/train
'
listed=$(awk '/^[^ ]/ { n = split(substr($0, 1, index($0, ":") - 1), from); sub(/.*:/, "") }
  { for (i = 1; i <= n; ++i) for (j = 1; j <= NF; ++j) print from[i], $j }' <<<"$allowed" | sort -u)
used=$(git ls-files {src,layers,comm,optim}/\*.{h,cpp,cu,cuh} | xargs grep -H '^#include "' |
  sed -E 's|/[^/:]*:#include "(.*)/.*"| \1|' | awk '$1 != $2' | sort -u)
while read -r from to; do
  echo "include direction: $from may not include $to"
  git grep -n "^#include \"$to/[^/]*\"" -- ":(glob)$from/*"
  failed=1
done < <(join -v1 -t, <(echo "$used") <(echo "$listed"))
unused=$(join -v2 -t, <(echo "$used") <(echo "$listed"))
[ -z "$unused" ] || { echo "listed, but no file includes it:"; echo "$unused"; failed=1; }
circle=$(tsort <<<"$used"$'\n'"$listed" 2>&1 >/dev/null | sed -n 1,9p || true)
[ -z "$circle" ] || { echo "a circle of includes: $circle"; failed=1; }

# only HEADER 'PATTERN': only the named files, and the emulated GPU, may include the library header.
only() { only_line "^#include <$1" "<$1>" "$2"; }
# only_line 'LINE' NAME 'PATTERN': the same for lines that match LINE.
only_line() {
  local bad
  bad=$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' ':!tests/simt/' | xargs grep -lE "$1" | grep -vE "^($3)$" || true)
  [ -z "$bad" ] || { echo "$2 may stand only in $3, not in: $bad"; failed=1; }
}
only 'mpi\.h' 'comm/(world\.cpp|transport/mpi_wire\..*)'
only 'hdf5\.h' 'src/io/hdf5/writer\.cpp|tests/(io/test_hostile_hdf5|fuzz/support/hdf5_file|support/foreign_dataset)\.cpp'
only 'archive' 'src/prepare/tar_reader\.(h|cpp)'
only 'boost/' '(src/options/options|src/stop/instance_metadata|src/serve/http/http_(outbox|server))\.cpp|src/serve/http/http_connection\.(h|cpp)'
only 'cuda_runtime' 'src/device/(cuda\.cpp|cuda_check\.h)|src/kernels/launch\.cuh'
only 'cublas' 'src/product/cublas_lt\.h'
only 'cudnn' 'layers/attention/cudnn_attention\.cpp'
only 'nccl\.h' 'comm/transport/nccl_(collectives\.cpp|stream\..*)'
only 'nvtx3/' 'src/device/cuda\.cpp'
only_line '^#include "src/autograd/(block|op|parameter_sums|say_where|tape|variable)\.h"' 'the tape' \
  '(src/(autograd|step)|layers|tests)/.*'
only_line '\b_*asm_*( volatile)? *\(' 'assembly' 'src/device/(ptx\.cuh|global\.h)|src/core/float16\.h'
only_line '<<<' 'a kernel launch' 'src/kernels/launch\.cuh'
only_line '^ *# *(el)?if.*(__CUDA|TANDEM_CUDA)' 'a test for CUDA' 'src/(core|device)/(dispatch|host_device|float16|global|math)\.h'

long=$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' '*.py' '*.sh' | xargs wc -l | awk '$2 != "total" && $1 > 400 { print $2, $1 }')
[ -z "$long" ] || { echo "files over 400 lines:"; echo "$long"; failed=1; }
full=$(git ls-files src layers comm optim tests | sed 's|/[^/]*$||' | sort | uniq -c | awk '$1 > 25 { print $2, $1 }')
[ -z "$full" ] || { echo "folders of over 25 files:"; echo "$full"; failed=1; }
[ $failed = 0 ] && echo "includes: good"
exit $failed
