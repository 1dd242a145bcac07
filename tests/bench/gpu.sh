#!/usr/bin/env bash
# Tests and times Tandem on a machine that has a GPU, CUDA and little else: no MPI, HDF5 or compiler is needed there.
#   tests/bench/gpu.sh --pack FILE.tar.xz [--from BUILD]
#       here: builds, and packs the programs, their libraries and a text into one file of at most 48 MiB.
#       --from: packs the programs in this build folder; build-simt gives a pack for the emulated GPU, to try it
#   tar -xf FILE.tar.xz; tandem-gpu/gpu.sh --run [--minutes N] [--only REGEX] [--out FOLDER]
#       there: does its items in order of value, each within a time limit
#       --minutes: what does not fit into this time is left out (default: it takes its time); 0 names all items
#       --only: items whose names match. The runs of an earlier call are there, its results are not
#       --out: this folder gets tandem-results.tar.gz, with all results; it is written again after each item (default: beside
#       gpu.sh)
# Without a GPU it does what a CPU can do. Exit codes: 0 all went well, 1 something failed or there is no GPU, 2 it could not start.
set -uo pipefail

largest_mib=48
programs=(tandem tandem_gpu_bench tandem_gpu_check)
# Libraries that are not packed: a machine with CUDA has them, or its driver brings them.
elsewhere='^(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|resolv|util|cublas|cublasLt|cudart|cuda|nccl)\.)'

fail() { echo "gpu.sh: $*" >&2; exit 2; }

# Prints the libraries that a program needs, "NAME PATH" on each line. PATH is "not" where a library is not found.
libraries() {
  LD_TRACE_LOADED_OBJECTS=1 "$1" | while read -r name arrow place _; do [ "$arrow" != "=>" ] || echo "$name $place"; done
}

# --- On the machine that packs ---

pack() {  # FILE BUILD
  local file=$1 build=$2 folder library path size tokenizer=(bpe --vocab-size 24576)
  file=$(realpath "$file") || fail "no folder for $1"
  cd "$(dirname "$0")/../.." || fail "no sources"
  if [ -z "$build" ]; then
    build=${BUILD:-build}-portable
    mkdir -p "$build"
    rm -f "$build/CMakeCache.txt"
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTANDEM_PORTABLE=ON -DTANDEM_TESTS=ON \
      -DTANDEM_CUDA=REQUIRED >"$build/configure.log" 2>&1 || {
      tail -20 "$build/configure.log" >&2
      fail "configuring failed ($build/configure.log)"
    }
    cmake --build "$build" --target "${programs[@]}" || fail "building failed"
  fi
  temporary=$(mktemp -d) || fail "no temporary folder"
  trap 'rm -rf "$temporary"' EXIT
  folder=$temporary/tandem-gpu
  mkdir -p "$folder/bin" "$folder/lib"
  for program in "${programs[@]}"; do
    strip -o "$folder/bin/$program" "$build/$program" || fail "no $build/$program"
    while read -r library path; do
      [[ $library =~ $elsewhere ]] || cp -L "$path" "$folder/lib/" || fail "$program needs $library, which is not here"
    done < <(libraries "$build/$program")
  done
  cp configs/gpt2_124m.cfg "$folder/model.cfg"
  if [[ $("$build/tandem_gpu_check" --device 2>&1) == emulated* ]]; then
    tokenizer=(char)
    sed -i -E 's/^(layers|heads) = .*/\1 = 2/; s/^width = .*/width = 16/; s/^context = .*/context = 8/' "$folder/model.cfg"
  fi
  # The text is Tandem's own sources.
  find comm layers optim src tests -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.py' -o -name '*.md' | LC_ALL=C sort |
    xargs cat >"$temporary/text.txt" || fail "the sources cannot be read"
  "$build/tandem" prepare text --input "$temporary/text.txt" --output "$folder/text.h5" --tokenizer "${tokenizer[@]}" ||
    fail "the text was not prepared"
  cp tests/bench/gpu.sh tests/bench/gpu/torch_gpu.py tests/bench/gpu/torch_losses.py \
    tests/parity/{packages,reference,run_files,sample_order}.py "$folder/"
  { git log -1 --format='commit %H'; git status --short; grep -E '^-- Tandem' "$build/configure.log"
    ldd --version | head -1; } >"$folder/built.txt"
  # The programs hold the same kernels, which a window of 64 MiB finds again.
  XZ_OPT=${XZ_OPT:--9} tar -cJf "$file" -C "$temporary" --sort=name tandem-gpu || fail "cannot write $file"
  size=$(stat -c %s "$file")
  echo "gpu.sh: $file has $((size / 1048576 + 1)) MiB; unpacked: $(du -sm "$folder" | cut -f1)"
  [ "$size" -le $((largest_mib * 1048576)) ] || fail "$file is larger than $largest_mib MiB"
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

# A line of the summary; the archive of results then has all that is known.
say() {
  echo "$*" | tee -a "$results/summary.txt"
  { tar -czf "$out/tandem-results.tar.gz.part" -C "$folder" results &&
    mv "$out/tandem-results.tar.gz.part" "$out/tandem-results.tar.gz"; } || fail "cannot write results to $out"
}
left_out() { [[ ! $1 =~ $only ]] || say "$1: left out, ${*:2}"; }  # NAME REASON...

# item NAME SECONDS COMMAND...: its output goes to results/NAME.txt. A command whose exit code is 77 says in its last line why
# it cannot be done here. Returns 0 if all went well, or nobody asked for the item.
item() {
  local name=$1 limit=$2 begin=$SECONDS left=$((end - SECONDS)) code
  shift 2
  [[ $name =~ $only ]] || return 0
  [ "$left" -ge 10 ] || { left_out "$name" "no time"; return 1; }
  [ "$limit" -le "$left" ] || limit=$left
  echo "--- $name"
  timeout -k 10 "$limit" bash -c '"$@"' item "$@" 2>&1 | tee "$results/$name.txt"
  code=${PIPESTATUS[0]}
  case $code in
    0) say "$name: good ($((SECONDS - begin)) s)"; return ;;
    77) left_out "$name" "$(tail -1 "$results/$name.txt")"; return 1 ;;
    124 | 137) [ "$limit" -lt "$left" ] || { left_out "$name" "not finished in the $limit s that were left"; return 1; } ;;
  esac
  failures=$((failures + 1))
  case $code in
    124 | 137) say "$name: FAILED: not finished after $limit s" ;;
    *) say "$name: FAILED: exit code $code ($((SECONDS - begin)) s)" ;;
  esac
  return 1
}

machine() {
  cat "$folder/built.txt"
  nvidia-smi
  uname -srm
  for program in "$folder"/bin/*; do
    LD_TRACE_LOADED_OBJECTS=1 LD_LIBRARY_PATH=$path "$program"
  done
}

# Runs the device tests of some suites, and writes a hash of each tensor that came from the GPU.
check() {  # NAME SUITES
  TANDEM_TEST_BITS=$results/$1.bits tandem tandem_gpu_check --only "$2" --jobs 4 --limit 120 --log "$results/$1.log"
}

same_bits() {  # NAME NAME
  local different
  [ -s "$results/$1.bits" ] || { echo "no tensor came back from the GPU"; return 1; }
  different=$(comm -3 <(sort "$results/$1.bits") <(sort "$results/$2.bits"))
  [ -z "$different" ] || { echo "tensors of one run alone: test, elements, hash"; echo "$different"; return 1; }
  echo "$(wc -l <"$results/$1.bits") tensors had the same bits twice"
}

bench() { tandem tandem_gpu_bench "$@"; }

torch() {
  if [ -n "$emulated" ] || ! python3 -c 'import torch; torch.compile'; then
    echo "a GPU and PyTorch 2 in python3 are needed"
    return 77
  fi
  python3 "$folder/torch_gpu.py" "$@"
}

choices() {
  rm -rf "$runs/choices"
  train choices --train.global_batch "$batch" --train.steps 20 --checkpoint.at_end false &&
    tandem tandem inspect "$runs/choices"
}

# Trains the model on the packed text. Choices that the run measured go to the results.
train() {  # NAME ARGUMENT...
  tandem tandem train --config "$folder/model.cfg" --data.path "$folder/text.h5" --run.dir "$runs" --run.name "$1" \
    --run.device cuda --train.log_every 1 --train.eval_every 0 --optim.schedule constant --optim.warmup_steps 20 \
    --run.watch_spot off --log.tensorboard false --log.progress none "${@:2}" || return
  cp "$runs/$1/metrics.jsonl" "$results/$1.jsonl"
  [ ! -e "$runs/$1/choices.json" ] || cp "$runs/$1/choices.json" "$results/$1.choices.json"
}
# Trains from the weights that all of these runs begin with.
train_on() { train "$1" --train.global_batch 8 --checkpoint.init_from "$runs/start" "${@:2}"; }

# Losses of Tandem and of PyTorch from the same weights on the same samples. The first run only writes its weights.
losses() {
  rm -rf "$runs/start" "$runs/losses"
  train start --train.global_batch 8 --train.steps 1 --optim.lr 0 &&
    train_on losses --train.steps "$steps" && tandem tandem inspect "$runs/losses"
}
torch_losses() {
  python3 "$folder/torch_losses.py" --data "$folder/text.h5" --start "$runs/start" --run "$runs/losses" \
    --device "$([ -n "$emulated" ] && echo cpu || echo cuda)"
}

# The first 20 losses of a run are those of the run `losses`, bit for bit.
same_losses() {  # NAME
  local name found=()
  for name in losses "$1"; do
    found+=("$(sed -nE 's/^\{"step":([0-9]+),.*"loss":([^,}]+).*/\1 \2/p' "$runs/$name/metrics.jsonl" | head -20)")
  done
  diff <(echo "${found[0]}") <(echo "${found[1]}") || { echo "losses of runs losses and $1 differ"; return 1; }
  [ "$(wc -l <<<"${found[0]}")" = 20 ] && echo "20 steps had the same losses, bit for bit"
}
nccl() {
  rm -rf "$runs/nccl"
  train_on nccl --train.steps 20 --dist.backend nccl --run.choices "$runs/losses/choices.json" && same_losses nccl
}
eager() {  # steps that are no CUDA graphs
  rm -rf "$runs/eager"
  train_on eager --train.steps 20 --train.graphs off --run.choices "$runs/losses/choices.json" && same_losses eager
}
resumed() {
  rm -rf "$runs/resumed"
  local last
  for last in 10 20; do
    train_on resumed --train.steps $last --run.choices "$runs/losses/choices.json" || return
  done
  tandem tandem inspect "$runs/resumed/checkpoints/step-00000020" --verify && same_losses resumed
}

# The tests of one layer under a tool of compute-sanitizer. Their shapes are small; memory is not reused, so that it sees each
# use before the allocation and after the free.
sanitized() {  # TOOL SUITE
  "$sanitizer" --tool "$1" --target-processes all --error-exitcode 9 env TANDEM_MEMORY_CACHE=0 LD_LIBRARY_PATH="$path" \
    "$folder/bin/tandem_gpu_check" --only "$2" --limit 100
}
# On some virtual machines it cannot reach the GPU, which the smallest suite shows.
sanitizer_trial() {
  local output
  output=$(sanitized memcheck Shortcut 2>&1)
  local code=$?
  echo "$output"
  ! grep -qi 'device not supported' <<<"$output" || { echo "compute-sanitizer cannot reach the GPU here"; return 77; }
  return $code
}

sanitizers() {
  local suite tool
  [ -n "$sanitizer" ] || { left_out sanitizers "no compute-sanitizer here"; return; }
  item sanitizer_trial 60 sanitizer_trial || { left_out "memcheck, racecheck" "see sanitizer_trial"; return; }
  for suite in "${suites[@]}"; do
    for tool in memcheck racecheck; do
      item "${tool}_$suite" 60 sanitized $tool "$suite"
    done
  done
}

# Counters of the first launch of a kernel. The clocks stay as they are, because the machine may not be ours.
captured() {  # KERNEL MODE ARGUMENT...
  local output
  output=$("$ncu" --target-processes all --clock-control none --kernel-name "$1" --launch-count 1 --section SpeedOfLight \
    --section Occupancy --section MemoryWorkloadAnalysis --section WarpStateStats --section LaunchStats \
    env LD_LIBRARY_PATH="$path" "$folder/bin/tandem_gpu_bench" "${@:2}" --warm-up 0 --runs 1 2>&1)
  local code=$?
  echo "$output"
  if grep -qE 'ERR_NVGPUCTRPERM|Failed to initialize the profiler' <<<"$output"; then
    echo "ncu cannot read the counters of the GPU here"
    return 77
  fi
  ! grep -q 'No kernels were profiled' <<<"$output" && return $code
}

captures() {
  [ -n "$ncu" ] || { left_out ncu "no ncu here"; return; }
  item ncu_flash_forward 60 captured flash_forward_kernel attention "${shape[@]}" ||
    { left_out "ncu of four other kernels" "see ncu_flash_forward"; return; }
  item ncu_flash_dq 60 captured flash_dq_kernel attention "${shape[@]}"
  item ncu_flash_dkv 60 captured flash_dkv_kernel attention "${shape[@]}"
  item ncu_cross_entropy 60 captured cross_entropy_gradient_kernel kernels "${gpt2[@]}"
  item ncu_norm_backward 60 captured norm_backward_kernel kernels "${gpt2[@]}"
}

# All items, in order of value.
on_gpu() {
  local once=() gpt2=(--case gpt2_124m) small=() shape=(--shape "64,1024,12,12,64") shapes=() case
  local first=Product,Attention all='' suites=(Attention Norm CrossEntropy Embedding Conv2d)
  local models=(gpt2_350m gpt2_774m gpt2_1.5b llama_1b) small_models=(gpt_384 resnet20)
  if [ -n "$emulated" ]; then
    once=(--warm-up 0 --runs 1) shape=(--shape "1,8,2,2,8") small=("${once[@]}" --mib 1) shapes=("${once[@]}" "${shape[@]}")
    gpt2=("${once[@]}" --case tiny_gpt) first=ChoiceRecorder,Rope all=Shortcut suites=(Rope) models=(tiny_llama) small_models=(tiny_resnet)
  fi
  item check_1 150 check check_1 $first
  item check_2 150 check check_2 $first
  item same_bits 10 same_bits check_1 check_2
  item choices 120 choices
  item step 120 bench step "${gpt2[@]}" --vocab 50304 --choose --profile
  item torch_step 200 torch step
  item losses 150 losses
  item torch_losses 150 torch_losses
  item nccl 90 nccl
  item resumed 120 resumed
  item eager 90 eager
  item step_graph 90 bench step "${gpt2[@]}" --vocab 50304 --choose --graph
  item check_all_1 300 check check_all_1 "$all"
  item check_all_2 300 check check_all_2 "$all"
  item same_bits_all 10 same_bits check_all_1 check_all_2
  item gemm_50304 120 bench gemm "${gpt2[@]}" --vocab 50304 --choose
  item kernels 120 bench kernels "${gpt2[@]}"
  item attention 90 bench attention "${shapes[@]}"
  captures
  item ceilings 60 bench copy "${small[@]}"
  item step_first 60 bench step "${gpt2[@]}" --vocab 50304
  item step_50257 60 bench step "${gpt2[@]}"
  if [ -z "$emulated" ]; then
    item attention_cudnn 90 bench attention --attention cudnn
    item step_cudnn 120 bench step "${gpt2[@]}" --vocab 50304 --choose --attention cudnn
  else
    left_out cudnn "the emulated GPU does not execute it"
  fi
  item torch_attention 90 torch attention
  sanitizers
  for case in "${models[@]}"; do
    item "step_$case" 90 bench step --case "$case" "${once[@]}" --profile
  done
  for case in "${small_models[@]}"; do
    item "step_$case" 60 bench step --case "$case" "${once[@]}"
    item "step_${case}_graph" 60 bench step --case "$case" "${once[@]}" --graph
  done
  item gemm_50257 120 bench gemm "${gpt2[@]}" --choose
}

on_cpu() {
  local case
  failures=$((failures + 1))
  left_out "correctness, products, kernels, steps, PyTorch, sanitizers" "no GPU"
  item forecast 10 bench forecast --vocab 50304
  for case in shakespeare_char gpt_384 resnet20; do
    item "cpu_step_$case" 120 bench step --device cpu --precision f32 --case "$case" --warm-up 2 --runs 5 --profile
  done
}

run() {  # MINUTES ONLY OUT
  local device gpu=''
  folder=$(cd "$(dirname "$0")" && pwd) results=$folder/results runs=$folder/runs only=$2 out=${3:-$folder}
  [ -x "$folder/bin/tandem_gpu_check" ] || fail "--run is for the gpu.sh of an unpacked pack"
  rm -rf "$results"
  mkdir -p "$results" "$out" || fail "cannot make $out"
  out=$(cd "$out" && pwd)
  path=$(library_path) || exit 2
  failures=0 end=$((SECONDS + 60 * $1)) steps=200 batch=64 emulated=''
  device=$(tandem tandem_gpu_check --device 2>&1) && gpu=1
  [[ $device != emulated* ]] || emulated=1 steps=24 batch=8
  sanitizer=$(PATH=$PATH:$(printf '%s:' /usr/local/cuda*/bin) command -v compute-sanitizer)
  ncu=$(PATH=$PATH:$(printf '%s:' /usr/local/cuda*/bin /opt/nvidia/nsight-compute/*) command -v ncu)
  export folder results runs path steps batch emulated sanitizer ncu
  export -f tandem machine check same_bits bench torch choices train train_on losses torch_losses same_losses nccl resumed eager sanitized \
    sanitizer_trial captured
  say "$(printf 'gpu.sh: %(%F %T)T, %s' -1 "$device")"
  item machine 60 machine
  if [ -n "$gpu" ]; then on_gpu; else on_cpu; fi
  say "$failures failed"
  echo "--- summary"
  cat "$results/summary.txt"
  [ $failures = 0 ] || exit 1
}

usage() { fail "usage: gpu.sh --pack FILE.tar.xz [--from BUILD], or" \
  "gpu.sh --run [--minutes N] [--only REGEX] [--out FOLDER]"; }

what=${1:-} file='' from='' minutes=10000 only='' out=''
shift
if [ "$what" = --pack ] && [ $# -gt 0 ]; then file=$1; shift; fi
while [ $# -gt 1 ]; do
  case $what$1 in
    --pack--from) from=$2 ;;
    --run--minutes) minutes=$2 ;;
    --run--only) only=$2 ;;
    --run--out) out=$2 ;;
    *) usage ;;
  esac
  shift 2
done
[[ $#$minutes =~ ^0[0-9]+$ ]] || usage
case $what in
  --pack) [ -n "$file" ] || usage; pack "$file" "$from" ;;
  --run) run "$minutes" "$only" "$out" ;;
  *) usage ;;
esac
