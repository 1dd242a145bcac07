#!/usr/bin/env bash
# The direction of includes (DESIGN of the tree: README, "The house"), and which file may include which library.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0

# allow FOLDER 'PATTERN': project includes in FOLDER must match the pattern.
allow() {
  local bad
  bad=$(git ls-files "$1/*.h" "$1/*.cpp" "$1/*.cu" "$1/*.cuh" |
    xargs -r grep -nE '^#include "' | grep -vE "#include \"($2)" || true)
  [ -z "$bad" ] || { echo "include direction: $1 may include only $2"; echo "$bad"; failed=1; }
}
allow src/core 'src/core/'
allow src/autograd 'src/(core|autograd)/'
allow layers 'layers/|src/(core|autograd)/'
allow comm 'comm/|src/core/|src/autograd/(parameter|context|gate)\.h'
allow optim 'optim/|src/core/'
allow src/io 'src/(core|io)/'
allow src/data 'src/(core|data)/|src/io/(hdf5|content_hash)\.h'
allow src/train 'src/(core|autograd|data|io|train)/|layers/|comm/|optim/'

# only HEADER 'PATTERN': the library header may stand in the named files alone, and in the emulated GPU.
only() { only_line "^#include <$1" "<$1>" "$2"; }
# only_line 'LINE' NAME 'PATTERN': the same for lines of code.
only_line() {
  local bad
  bad=$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' ':!tests/simt/' | xargs grep -lE "$1" | grep -vE "^($3)$" || true)
  [ -z "$bad" ] || { echo "$2 may stand only in $3, not in: $bad"; failed=1; }
}
only 'mpi\.h' 'comm/(world\.cpp|mpi_wire\..*)'
only 'hdf5\.h' 'src/io/hdf5.*'
only 'boost/' 'src/train/options\.cpp'
only 'cblas\.h' 'src/core/gemm_cblas\.cpp'
only 'cuda_runtime' 'src/core/(cuda\.cpp|cuda_check\.h|launch\.cuh)'
only 'cublas' 'src/core/gemm_cuda\.cpp'
only 'nccl\.h' 'comm/nccl_(collectives\.cpp|stream\..*)'
only 'nvtx3/' 'src/core/nvtx\.cpp'
only_line '\b_*asm_*( volatile)? *\(' 'assembly' 'src/core/(ptx\.cuh|float16\.h)'
only_line '<<<' 'a kernel launch' 'src/core/launch\.cuh'
only_line '^ *# *(el)?if.*(__CUDA|TANDEM_CUDA)' 'a test for CUDA' 'src/core/(dispatch|host_device|float16|global|math)\.h'

long=$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' '*.py' '*.sh' | xargs wc -l | awk '$2 != "total" && $1 > 420 { print $2, $1 }')
[ -z "$long" ] || { echo "files over 420 lines:"; echo "$long"; failed=1; }
[ $failed = 0 ] && echo "includes: good"
exit $failed
