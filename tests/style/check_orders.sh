#!/usr/bin/env bash
# tests/run.sh has the same tests whatever configured the same folders before: nothing, launch/quickstart.sh, or both in
# either order. Nothing is built.
set -euo pipefail
cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export CONFIGURE_ONLY=1

tests() { BUILD=$scratch/$1 tests/run.sh -N | sed -n 's/^ *Test *#[0-9]*: //p'; }
quickstart() { BUILD=$scratch/$1 launch/quickstart.sh >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }; }
same() { diff "$scratch/alone" "$scratch/$1" || { echo "orders: tests/run.sh has other tests $2" >&2; exit 1; }; }

tests a >"$scratch/alone"
[ -s "$scratch/alone" ]
quickstart a
tests a >"$scratch/between"
same between "after itself and the quickstart"
quickstart b
tests b >"$scratch/after"
same after "after the quickstart"
echo "orders: $(wc -l <"$scratch/alone") tests in each"
