#!/usr/bin/env bash
# Configures and builds one configuration; each has a folder of its own. Options of earlier calls are forgotten.
#   launch/build.sh [release|debug|asan|tsan|simt|fuzz] [CMake arguments]     launch/build.sh release -DTANDEM_NATIVE=OFF
#   release  build        as users have it; the default
#   debug    build-debug  without optimization
#   asan     build-asan   AddressSanitizer and UndefinedBehaviorSanitizer, no GPU
#   tsan     build-tsan   ThreadSanitizer, no GPU
#   simt     build-simt   the emulated GPU of tests/simt
#   fuzz     build-fuzz   the fuzzers of tests/fuzz alone, with clang++-16 or $CLANG, without MPI
# BUILD=NAME replaces "build" in the folders' names. TANDEM_WERROR=ON makes warnings errors. CONFIGURE_ONLY=1 builds nothing.
set -euo pipefail
[[ ! ${1:-} =~ ^(-h|--help)$ ]] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit; }
cd "$(dirname "$0")/.."
configuration=release
case "${1:-}" in
  "" | -[[:upper:]]*) ;;  # words of CMake, as -DTANDEM_NATIVE=OFF
  *) configuration=$1; shift ;;
esac
build=${BUILD:-build}-$configuration type=Debug cuda=ON simt=OFF sanitize=OFF target=all
case $configuration in
  release) build=${BUILD:-build} type=Release ;;
  debug) ;;
  asan) cuda=OFF sanitize=address ;;
  tsan) cuda=OFF sanitize=thread ;;
  simt) type=Release simt=ON ;;
  fuzz)
    cuda=OFF sanitize=fuzzer target=fuzzers
    set -- -DCMAKE_CXX_COMPILER="${CLANG:-clang++-16}" -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON "$@" ;;
  *) echo "build: unknown configuration '$configuration': one of release, debug, asan, tsan, simt, fuzz" >&2; exit 2 ;;
esac

mkdir -p "$build"
rm -f "$build/CMakeCache.txt"  # the cache would keep earlier options, and packages that were missing earlier as missing
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=$type -DTANDEM_NATIVE=ON -DTANDEM_TESTS=ON \
  -DTANDEM_CUDA=$cuda -DTANDEM_SIMT=$simt -DTANDEM_SANITIZE=$sanitize -DTANDEM_WERROR="${TANDEM_WERROR:-OFF}" "$@" \
  >"$build/configure.log" 2>&1 || { cat "$build/configure.log" >&2; exit 1; }
grep -E '^-- Tandem' "$build/configure.log" || true
grep -A4 Warning "$build/configure.log" || true
[ -n "${CONFIGURE_ONLY:-}" ] || cmake --build "$build" --target $target
