# shellcheck shell=bash
# What gpu.sh does on the machine that packs. It has fail and libraries.

largest_mib=48
programs=(tandem tandem_gpu_bench tandem_gpu_check)
# Libraries that are not packed: a machine with CUDA has them, or its driver brings them.
elsewhere='^(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|resolv|util|cublas|cublasLt|cudart|cuda|nccl)\.)'

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
    tests/parity/{muon,packages,reference,run_files,sample_order}.py tests/data/packing_reference.py "$folder/"
  { git log -1 --format='commit %H'; git status --short; grep -E '^-- Tandem' "$build/configure.log"
    ldd --version | head -1; } >"$folder/built.txt"
  # The programs hold the same kernels, which a window of 64 MiB finds again.
  XZ_OPT=${XZ_OPT:--9} tar -cJf "$file" -C "$temporary" --sort=name tandem-gpu || fail "cannot write $file"
  size=$(stat -c %s "$file")
  echo "gpu.sh: $file has $((size / 1048576 + 1)) MiB; unpacked: $(du -sm "$folder" | cut -f1)"
  [ "$size" -le $((largest_mib * 1048576)) ] || fail "$file is larger than $largest_mib MiB"
}
