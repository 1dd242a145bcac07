#!/usr/bin/env bash
# Configures and builds into build/ (or $BUILD). Arguments go to CMake: launch/build.sh -DTANDEM_NATIVE=OFF
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@" >"$build.configure.log" 2>&1 ||
  { cat "$build.configure.log" >&2; exit 1; }
grep -E '^-- Tandem' "$build.configure.log" || true
grep -A4 Warning "$build.configure.log" || true
mv "$build.configure.log" "$build/configure.log"
cmake --build "$build"
