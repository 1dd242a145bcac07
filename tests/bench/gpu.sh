#!/usr/bin/env bash
# Tests and times Tandem on a machine that has a GPU, CUDA and little else: no MPI, HDF5 or compiler is needed there.
#   tests/bench/gpu.sh --pack FOLDER [--emulated]   here: builds, and packs programs and sources into FOLDER (at most 60 MiB);
#                                                   --emulated: for the emulated GPU, to try this script
#   FOLDER/gpu.sh --run FOLDER [--part N]           there, in order of value: part 1, correctness; part 2, ceilings, kernels and
#                                                   the step of GPT-2 124M; part 3, PyTorch, and other models
# A part ends within 9 minutes, and what no longer fits is left out. Results appear in FOLDER/results/ one by one; its summary.txt
# says of each item what became of it. Without a GPU it does what a CPU can do. Exit codes: 0 all went well, 1 something failed or
# there is no GPU, 2 it could not start.
set -uo pipefail

largest_mib=60
part_seconds=540
programs=(tandem_gpu_check tandem_gpu_bench)
# Libraries that are not packed: a machine with CUDA has them, or its driver brings them.
elsewhere='^(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|cublas|cublasLt|cudart|cuda|nccl)\.)'

fail() { echo "gpu.sh: $*" >&2; exit 2; }

# Prints the libraries that a program needs, "NAME PATH" on each line. PATH is "not" where a library is not found.
libraries() {
  LD_TRACE_LOADED_OBJECTS=1 "$1" | while read -r name arrow place _; do [ "$arrow" != "=>" ] || echo "$name $place"; done
}

# --- On the machine that packs ---

pack() {  # FOLDER
  local folder library path size
  [ -z "$(ls -A "$1" 2>/dev/null)" ] || fail "$1 is not empty"
  mkdir -p "$1/bin" "$1/lib" || fail "cannot make $1"
  folder=$(cd "$1" && pwd)
  cd "$(dirname "$0")/../.." || fail "no sources"
  build=$PWD/${BUILD:-build}-portable
  [ -z "$emulated" ] || { build=$build-simt; touch "$folder/emulated"; }
  mkdir -p "$build"
  rm -f "$build/CMakeCache.txt"
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTANDEM_PORTABLE=ON -DTANDEM_TESTS=ON \
    -DTANDEM_CUDA=REQUIRED -DTANDEM_SIMT="${emulated:-OFF}" >"$build/configure.log" 2>&1 || {
    tail -20 "$build/configure.log" >&2
    fail "configuring failed ($build/configure.log)"
  }
  cmake --build "$build" --target "${programs[@]}" || fail "building failed"
  for program in "${programs[@]}"; do
    strip -o "$folder/bin/$program" "$build/$program" || fail "no $program"
    while read -r library path; do
      [[ $library =~ $elsewhere ]] || cp -L "$path" "$folder/lib/" || fail "$program needs $library, which is not here"
    done < <(libraries "$build/$program")
  done
  git archive --format=tar.gz --prefix=tandem/ -o "$folder/tandem.tar.gz" HEAD || fail "no sources from git"
  cp tests/bench/gpu.sh tests/bench/gpu/torch_gpu.py "$folder/"
  { git log -1 --format='commit %H'; git status --short; grep -E '^-- Tandem' "$build/configure.log"
    ldd --version | head -1; } >"$folder/built.txt"
  size=$(du -sk "$folder" | cut -f1)
  echo "gpu.sh: $folder holds $((size / 1024)) MiB:"
  (cd "$folder" && du -ah . | sort -k2)
  [ "$size" -le $((largest_mib * 1024)) ] || fail "$folder is larger than $largest_mib MiB"
}

# --- On the machine with the GPU ---

# Prints the folders where pip's packages and toolkits have libraries; last, the folder of those that were packed.
library_folders() {
  local packages place
  packages=$(python3 -c 'import sys; print("\n".join(sys.path))' 2>/dev/null)
  for place in $packages /opt/*/lib/python3*/site-packages /opt/*/.venv/lib/python3*/site-packages \
    /usr/local/lib/python3*/*-packages /usr/lib/python3/dist-packages; do
    printf '%s\n' "$place"/nvidia/*/lib
  done
  printf '%s\n' ${CUDA_HOME:+"$CUDA_HOME/lib64"} /usr/local/cuda*/lib{,64} /usr/local/cuda*/targets/x86_64-linux/lib "$folder/lib"
}

# Prints a search path on which each program finds all its libraries: the user's, and the folders of those missing there.
library_path() {
  local found=${LD_LIBRARY_PATH:-} library place missing
  for _ in 1 2 3; do  # a library that was found may need another
    missing=
    while read -r library place; do
      [ "$place" = not ] || continue
      place=$(library_folders | while read -r place; do
        [ ! -e "$place/$library" ] || { echo "$place"; break; }
      done)
      if [ -z "$place" ]; then
        missing="$missing $library"
      elif [[ :$found: != *:$place:* ]]; then
        found=${found:+$found:}$place
      fi
    done < <(for program in "$folder"/bin/*; do LD_LIBRARY_PATH=$found libraries "$program"; done | sort -u)
  done
  [ -z "$missing" ] || fail "missing here:$missing (pip's packages nvidia-cublas and nvidia-nccl-cu13 have cuBLASLt and NCCL;" \
    "other folders: LD_LIBRARY_PATH)"
  echo "$found"
}

# tandem PROGRAM ARGUMENT...: runs the program with the search path, which other programs do not get.
tandem() {
  env LD_LIBRARY_PATH="$path" HDF5_USE_FILE_LOCKING=FALSE TANDEM_REQUIRE_DEVICES=cpu,cuda CUBLASLT_LOG_LEVEL=1 \
    "$folder/bin/$1" "${@:2}"
}

# left_out NAME REASON...: an item that is not done.
left_out() { echo "$1: left out, ${*:2}" | tee -a "$results/summary.txt"; }

# item NAME SECONDS COMMAND...: its output goes to results/NAME.txt, success or failure to results/summary.txt.
item() {
  local name=$1 limit=$2 begin=$SECONDS code word
  shift 2
  [ $((part_end - SECONDS)) -ge 10 ] || { left_out "$name" "no time"; return; }
  [ "$limit" -le $((part_end - SECONDS)) ] || limit=$((part_end - SECONDS))
  echo "--- $name"
  export -f tandem "${1?}"
  folder=$folder path=$path timeout -k 10 "$limit" bash -c '"$@"' item "$@" 2>&1 | tee "$results/$name.txt"
  code=${PIPESTATUS[0]}
  case $code in
    0) word="good" ;;
    124 | 137) word="FAILED: not finished after $limit s" ;;
    *) word="FAILED: exit code $code" ;;
  esac
  [ "$code" = 0 ] || failures=$((failures + 1))
  echo "$name: $word ($((SECONDS - begin)) s)" | tee -a "$results/summary.txt"
}

machine() {
  cat "$folder/built.txt"
  nvidia-smi
  uname -srm
  for program in "$folder"/bin/*; do
    LD_TRACE_LOADED_OBJECTS=1 LD_LIBRARY_PATH=$path "$program"
  done
}

# Runs all device tests, and writes a hash of each tensor that came from the GPU.
check() {  # RUN
  rm -f "$folder/results/bits.$1"
  TANDEM_TEST_BITS=$folder/results/bits.$1 tandem tandem_gpu_check --limit 120 --log "$folder/results/check_$1.log"
}

same_bits() {
  local different
  [ -s "$folder/results/bits.1" ] || { echo "no tensor came back from the GPU"; return 1; }
  different=$(comm -3 <(sort "$folder/results/bits.1") <(sort "$folder/results/bits.2"))
  [ -z "$different" ] || { echo "tensors of one run alone: test, elements, hash"; echo "$different"; return 1; }
  echo "$(wc -l <"$folder/results/bits.1") tensors had the same bits twice"
}

# The tests of one layer under a tool of compute-sanitizer. Their shapes are small; memory is not reused, so that it sees each
# use before the allocation and after the free.
sanitized() {  # TOOL SUITE
  TANDEM_MEMORY_CACHE=0 LD_LIBRARY_PATH=$path "$sanitizer" --tool "$1" --target-processes all --error-exitcode 9 \
    "$folder/bin/tandem_gpu_check" --only "$2" --limit 100
}

bench() { tandem tandem_gpu_bench "$@"; }

torch() { python3 "$folder/torch_gpu.py" "$@"; }

correctness() {
  local suite
  item check_1 300 check 1
  sanitizer=$(PATH=$PATH:$(printf '%s:' /usr/local/cuda*/bin) command -v compute-sanitizer)
  export sanitizer
  if [ -z "$sanitizer" ]; then
    left_out sanitizer "no compute-sanitizer here"
  else
    for suite in Attention Norm CrossEntropy Embedding Conv2d; do
      item "memcheck_$suite" 60 sanitized memcheck "$suite"
      item "racecheck_$suite" 60 sanitized racecheck "$suite"
    done
  fi
  item check_2 300 check 2
  item same_bits 10 same_bits
}

ceilings_and_kernels() {  # the sizes, tiny on the emulated GPU
  item ceilings 60 bench copy "${small[@]}"
  item gemm_50304 120 bench gemm "${gpt2[@]}" --vocab 50304 --choose
  item kernels 120 bench kernels "${gpt2[@]}"
  item attention 90 bench attention "${shape[@]}"
  item step_gpt2_124m_tuned 120 bench step "${gpt2[@]}" --vocab 50304 --choose --profile
  item step_gpt2_124m_50304 60 bench step "${gpt2[@]}" --vocab 50304
  item step_gpt2_124m 60 bench step "${gpt2[@]}"
  if [ -e "$folder/emulated" ]; then
    left_out cudnn "the emulated GPU does not execute it"
  else
    item attention_cudnn 90 bench attention --attention cudnn
    item step_gpt2_124m_cudnn 120 bench step "${gpt2[@]}" --vocab 50304 --choose --attention cudnn
  fi
  item gemm_50257 120 bench gemm "${gpt2[@]}" --choose
}

others() {
  local case
  if [ -z "$gpu" ] || ! python3 -c 'import torch; torch.compile' 2>/dev/null; then
    left_out torch "no GPU, or python3 has no PyTorch 2 here"
  else
    item torch_gpt2_124m 200 torch step
    item torch_attention 90 torch attention
  fi
  for case in "${models[@]}"; do
    item "step_$case" 90 bench step --case "$case" "${once[@]}" --profile
  done
}

run() {  # FOLDER PART
  local device gpu='' part=$2
  local once=() gpt2=(--case gpt2_124m) small=() shape=() models=(gpt2_350m gpt2_774m gpt2_1.5b llama_1b resnet20)
  folder=$(cd "$1" 2>/dev/null && pwd) || fail "no folder $1"
  [ -x "$folder/bin/tandem_gpu_check" ] || fail "$1 was not made by --pack"
  results=$folder/results failures=0 part_end=$((SECONDS + part_seconds))
  mkdir -p "$results"
  path=$(library_path) || exit 2
  device=$(tandem tandem_gpu_check --device 2>&1) && gpu=1
  printf 'gpu.sh: %(%F %T)T, %s\n' -1 "$device" | tee -a "$results/summary.txt"
  if [ -e "$folder/emulated" ]; then
    once=(--warm-up 0 --runs 1) small=("${once[@]}" --mib 1) shape=("${once[@]}" --shape "1,8,2,2,8")
    gpt2=("${once[@]}" --case tiny_gpt) models=(tiny_llama tiny_resnet)
  fi
  item machine 60 machine
  if [ -z "$gpu" ]; then
    failures=$((failures + 1))
    left_out "correctness, sanitizer, ceilings, products, kernels, attention, PyTorch" "no GPU"
    item forecast 10 bench forecast --vocab 50304
    for case in shakespeare_char gpt_384 resnet20; do
      item "cpu_step_$case" 120 bench step --device cpu --precision f32 --case "$case" --warm-up 2 --runs 5 --profile
    done
  else
    [ "$part" = 2 ] || [ "$part" = 3 ] || correctness
    [ "$part" != all ] || part_end=$((SECONDS + part_seconds))
    [ "$part" = 1 ] || [ "$part" = 3 ] || ceilings_and_kernels
    [ "$part" != all ] || part_end=$((SECONDS + part_seconds))
    [ "$part" = 1 ] || [ "$part" = 2 ] || others
  fi
  echo "--- summary"
  cat "$results/summary.txt"
  [ $failures = 0 ] || { echo "gpu.sh: $failures failed" >&2; exit 1; }
}

usage() { fail "usage: gpu.sh --pack FOLDER [--emulated], or gpu.sh --run FOLDER [--part 1|2|3]"; }

emulated='' part=all
case "${1:-}" in
  --pack) [ $# -ge 2 ] || usage
    [ "${3:-}" != --emulated ] || emulated=ON
    [ $# = 2 ] || { [ $# = 3 ] && [ -n "$emulated" ]; } || usage
    pack "$2" ;;
  --run) [ $# -ge 2 ] || usage
    if [ $# -gt 2 ]; then
      [[ $# = 4 && $3 = --part && $4 =~ ^[123]$ ]] || usage
      part=$4
    fi
    run "$2" "$part" ;;
  *) usage ;;
esac
