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

fail() { echo "gpu.sh: $*" >&2; exit 2; }

# Prints the libraries that a program needs, "NAME PATH" on each line. PATH is "not" where a library is not found.
libraries() {
  LD_TRACE_LOADED_OBJECTS=1 "$1" | while read -r name arrow place _; do [ "$arrow" != "=>" ] || echo "$name $place"; done
}

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
  # cuDNN is loaded when it is used.
  place=$(library_folders | while read -r place; do
    ! compgen -G "$place/libcudnn.so.*" >/dev/null || { echo "$place"; break; }
  done)
  echo "$found${place:+${found:+:}$place}"
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

# Runs a command, and prints what it says: 77 if that is that a tool cannot be used here, a failure if ncu found no kernel.
where_possible() {  # PATTERN WHY COMMAND...
  local output code
  output=$("${@:3}" 2>&1)
  code=$?
  echo "$output"
  if grep -qiE "$1" <<<"$output"; then
    echo "$2"
    return 77
  fi
  ! grep -q 'No kernels were profiled' <<<"$output" && return $code
}

# A mode of the benchmarks under a tool of compute-sanitizer. Memory is not reused, so that it sees each use before the allocation
# and after the free.
sanitized() {  # TOOL MODE ARGUMENT...
  where_possible 'device not supported' "compute-sanitizer cannot reach the GPU here" \
    "$sanitizer" --tool "$1" --target-processes all --error-exitcode 9 env TANDEM_MEMORY_CACHE=0 LD_LIBRARY_PATH="$path" \
    "$folder/bin/tandem_gpu_bench" "${@:2}" --warm-up 0 --runs 2
}

# Whole steps of small models, and attention on tensor cores with rows that fill no tile.
sanitizers() {
  local tool case shape
  [ -n "$sanitizer" ] || { left_out sanitizers "no compute-sanitizer here"; return; }
  for tool in memcheck racecheck; do
    for case in "${checked_models[@]}"; do
      item "${tool}_$case" 60 sanitized $tool step --case "$case"
    done
    for shape in "${checked_shapes[@]}"; do
      item "${tool}_attention_${shape##*,}" 60 sanitized $tool attention --shape "$shape"
    done
    item "${tool}_offload" 60 sanitized $tool step --case "${checked_models[0]}" --recompute --offload both
  done
}

# Counters of the first launch of a kernel. The clocks stay as they are, because the machine may not be ours.
captured() {  # KERNEL MODE ARGUMENT...
  where_possible 'ERR_NVGPUCTRPERM|Failed to initialize the profiler' "ncu cannot read the counters of the GPU here" \
    "$ncu" --target-processes all --clock-control none --kernel-name "$1" --launch-count 1 --section SpeedOfLight \
    --section Occupancy --section MemoryWorkloadAnalysis --section WarpStateStats --section LaunchStats \
    env LD_LIBRARY_PATH="$path" "$folder/bin/tandem_gpu_bench" "${@:2}" --warm-up 0 --runs 1
}

captures() {
  local kernel
  [ -n "$ncu" ] || { left_out ncu "no ncu here"; return; }
  for kernel in flash_forward flash_dq flash_dkv; do
    item "ncu_$kernel" 60 captured "${kernel}_kernel" attention "${shape[@]}"
  done
  for kernel in cross_entropy_gradient norm_backward; do
    item "ncu_$kernel" 60 captured "${kernel}_kernel" kernels "${gpt2[@]}"
  done
}

# All items, in order of value.
on_gpu() {
  local once=() gpt2=(--case gpt2_124m) small=() shape=(--shape "64,1024,12,12,64") shapes=() case padded
  local first=Product,Attention all=''
  local checked_models=(tiny_gpt tiny_llama tiny_resnet) checked_shapes=("2,130,4,2,64" "1,130,2,1,128")
  local models=(gpt2_350m gpt2_774m gpt2_1.5b llama_1b) small_models=(gpt_384 resnet20)
  if [ -n "$emulated" ]; then
    once=(--warm-up 0 --runs 1) shape=(--shape "1,8,2,2,8") small=("${once[@]}" --mib 1) shapes=("${once[@]}" "${shape[@]}")
    gpt2=("${once[@]}" --case tiny_gpt) first=ChoiceRecorder,Rope all=Shortcut \
      checked_models=(tiny_gpt) checked_shapes=("1,8,2,2,8") models=(tiny_llama) small_models=(tiny_resnet)
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
  item torch_step_tuned 300 torch step --compile max-autotune-no-cudagraphs
  sanitizers
  for case in "${models[@]}"; do
    padded=()
    [[ $case != gpt2* ]] || padded=(--vocab 50304)
    item "step_$case" 90 bench step --case "$case" "${padded[@]}" "${once[@]}" --choose --profile
    item "torch_$case" 150 torch step --case "$case"
  done
  for case in "${small_models[@]}"; do
    item "step_$case" 60 bench step --case "$case" "${once[@]}" --choose
    item "step_${case}_graph" 60 bench step --case "$case" "${once[@]}" --choose --graph
    item "torch_$case" 60 torch step --case "$case"
    item "torch_${case}_graph" 90 torch step --case "$case" --compile reduce-overhead
  done
  item step_recompute 60 bench step "${gpt2[@]}" --vocab 50304 --choose --recompute
  for case in optimizer activations both; do
    item "offload_$case" 60 bench step "${gpt2[@]}" --vocab 50304 --choose --recompute --offload $case
  done
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
  export -f tandem machine check same_bits bench torch choices train train_on losses torch_losses same_losses nccl resumed eager \
    sanitized captured where_possible
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
  --pack)
    [ -n "$file" ] || usage
    # shellcheck source=tests/bench/gpu/pack.sh
    . "$(dirname "$0")/gpu/pack.sh"
    pack "$file" "$from"
    ;;
  --run) run "$minutes" "$only" "$out" ;;
  *) usage ;;
esac
