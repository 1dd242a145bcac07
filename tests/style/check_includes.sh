#!/usr/bin/env bash
# Which rooms each room may include (its README says the same), which files may include a library; sizes of files and folders.
set -euo pipefail
cd "$(dirname "$0")/../.."
failed=0

# allow FOLDER 'PATTERN': project includes in FOLDER must match the pattern.
allow() {
  local bad
  bad=$(git ls-files "$1/*.h" "$1/*.cpp" "$1/*.cu" "$1/*.cuh" |
    xargs -r grep -nE '^#include "' | grep -vE "#include \"($2)" || true)
  [ -z "$bad" ] || { echo "include direction: $1 may include only $2"; echo "$bad"; failed=1; }
}
allow src/core 'src/core/'
allow src/device 'src/(core|device)/'
allow src/kernels 'src/(core|device|kernels)/'
allow src/product 'src/(core|device|kernels|product)/'
allow src/autograd 'src/(core|device|kernels|autograd)/'
engine='src/(core|device|kernels|product)/'
allow layers "layers/|src/autograd/|$engine"
allow comm "comm/|src/autograd/(parameter|context|gate)\.h|$engine"
allow optim "optim/|$engine"
allow src/step "src/step/|src/autograd/|layers/|comm/|optim/|$engine"
allow src/io 'src/(core|device|io)/'
allow src/data 'src/(core|data)/|src/io/(byte_stream|content_hash|hdf5)\.h'
allow src/prepare 'src/(core|data|io|prepare)/'
allow src/stop 'src/(core|stop)/'
training='src/(autograd|data|io|step|settings|stop|train|estimate|inference|report)/|layers/|comm/|optim/'
for room in settings train estimate inference report; do allow "src/$room" "$training|$engine"; done

# only HEADER 'PATTERN': only the named files, and the emulated GPU, may include the library header.
only() { only_line "^#include <$1" "<$1>" "$2"; }
# only_line 'LINE' NAME 'PATTERN': the same for lines that match LINE.
only_line() {
  local bad
  bad=$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' ':!tests/simt/' | xargs grep -lE "$1" | grep -vE "^($3)$" || true)
  [ -z "$bad" ] || { echo "$2 may stand only in $3, not in: $bad"; failed=1; }
}
only 'mpi\.h' 'comm/(world\.cpp|transport/mpi_wire\..*)'
only 'hdf5\.h' 'src/io/hdf5.*|tests/(io/test_hostile_hdf5|fuzz/support/hdf5_file)\.cpp'
only 'archive' 'src/prepare/tar_reader\.(h|cpp)'
only 'boost/' '(src/settings/options|src/stop/instance_metadata)\.cpp'
only 'cuda_runtime' 'src/device/(cuda\.cpp|cuda_check\.h)|src/kernels/launch\.cuh'
only 'cublas' 'src/product/cublas_lt\.h'
only 'cudnn' 'layers/attention/cudnn_backend\.h'
only 'nccl\.h' 'comm/transport/nccl_(collectives\.cpp|stream\..*)'
only 'nvtx3/' 'src/device/nvtx\.cpp'
only_line '\b_*asm_*( volatile)? *\(' 'assembly' 'src/device/ptx\.cuh|src/core/float16\.h'
only_line '<<<' 'a kernel launch' 'src/kernels/launch\.cuh'
only_line '^ *# *(el)?if.*(__CUDA|TANDEM_CUDA)' 'a test for CUDA' 'src/(core|device)/(dispatch|host_device|float16|global|math)\.h'

long=$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' '*.py' '*.sh' | xargs wc -l | awk '$2 != "total" && $1 > 400 { print $2, $1 }')
[ -z "$long" ] || { echo "files over 400 lines:"; echo "$long"; failed=1; }
full=$(git ls-files src layers comm optim tests | sed 's|/[^/]*$||' | sort | uniq -c | awk '$1 > 25 { print $2, $1 }')
[ -z "$full" ] || { echo "folders of over 25 files:"; echo "$full"; failed=1; }
[ $failed = 0 ] && echo "includes: good"
exit $failed
