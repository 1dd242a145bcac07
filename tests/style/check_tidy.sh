#!/usr/bin/env bash
# clang-tidy, with the checks of .clang-tidy, over every C++ file that a build without CUDA compiles. Takes a quarter of
# an hour on two cores; arguments are files to check instead of all: tests/style/check_tidy.sh comm/transport/ring.cpp
set -euo pipefail
tidy=$(command -v clang-tidy-{19,18,17,16} 2>/dev/null | head -1) || true
[ -n "$tidy" ] || { echo "tidy: no clang-tidy of version 16 or later; launch/setup.sh --tests installs it on Debian" >&2; exit 1; }
cd "$(dirname "$0")/../.."
build=${BUILD:-build}-tidy
cmake -S . -B "$build" -G Ninja -DTANDEM_CUDA=OFF -DTANDEM_TESTS=ON -DTANDEM_SIMT=OFF >"$build.log" 2>&1 ||
  { cat "$build.log" >&2; exit 1; }
mv "$build.log" "$build/configure.log"
if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(git ls-files '*.cpp' ':!tests/simt/'); fi
# Files that this build leaves out (CUDA's, the other matrix product) have no compile command, and some functions
# are not needed there. Some flags only GCC knows.
for file in "${files[@]}"; do
  if grep -qF "\"$PWD/$file\"" "$build/compile_commands.json"; then printf '%s\0' "$file"; fi
done | xargs -0 -n 1 -P "$(nproc)" "$tidy" -p "$build" --quiet --extra-arg=-Wno-unused-command-line-argument \
  --extra-arg=-Wno-ignored-optimization-argument --extra-arg=-Wno-unneeded-internal-declaration 2> >(grep -v "warnings generated" >&2)
echo "tidy: good"
