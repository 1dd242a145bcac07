#!/usr/bin/env bash
#   tests/nightly.sh
# Checks that take too long for every change: sanitizers, clang-tidy, hostile inputs, a run that is killed again and again, all
# that a power failure may leave, fuzzers and mutants. All of them run, also after a failure; the last lines say what failed.
set -uo pipefail
[ "${1:-}" != --help ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit; }
[ $# -eq 0 ] || { echo "nightly: it takes no arguments, and $* is one" >&2; exit 2; }
cd "$(dirname "$0")/.." || exit 1
launch/setup.sh --tests || exit 1
failed=()
for job in "tests/run.sh -L nightly" "tests/run.sh --asan" "tests/run.sh --tsan" tests/style/check_tidy.sh \
    "tests/anywhere.sh user" "tests/anywhere.sh jobs" "tests/anywhere.sh busy" launch/build.sh \
    "tests/program/test_hostile_inputs.py build/tandem" \
    "env TANDEM_LARGE_TEXT_MIB=1024 tests/program/test_tokenizers.py build/tandem" "env TANDEM_DAMAGE=all build/tests/test_damaged_hdf5" "tests/launch/chaos.py build/tandem" \
    "launch/build.sh simt" "env TANDEM_CHAOS_DEVICE=cuda tests/launch/chaos.py build-simt/tandem Chaos" \
    "env TANDEM_MEMORY_CACHE=1 TANDEM_SIMT_CUBLASLT=timed TANDEM_SIMT_STREAMS=shuffled:7 TANDEM_GRAPH_STEPS=100 tests/simt/tests/test_graphs.py build-simt/tandem" \
    "env TANDEM_OFFLOAD_ALL=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -k 5 3600 mpiexec --oversubscribe -np 2 build-simt/tests/test_offload" \
    "env TANDEM_MUON_ALL=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -k 5 3600 mpiexec --oversubscribe -np 4 build-simt/tests/test_muon_training" \
    "env TANDEM_KILLS=500 tests/launch/test_kills.py build/tandem" \
    "env TANDEM_SLURM=all tests/launch/test_slurm.py build/tandem" tests/launch/check_pcluster.py \
    tests/launch/check_moto.py tests/launch/alarms/check_alarms.py tests/launch/check_containers.py "tests/report/check_track.py build/tandem" \
    "tests/telemetry/check_monitors.py build/tandem build/tests/libstand_in_nvml.so" \
    "tests/report/check_tensorboard.py build/tandem" "tests/trace/check_traces.py build/tandem" \
    "env TANDEM_FLIGHT_KILLS=200 TANDEM_HANGS_LONG=1 tests/trace/test_hangs.py build/tandem" \
    "env TANDEM_REQUIRE_INTEROP=1 tests/interop/check_hugging_face.py build/tandem" \
    "env TANDEM_REQUIRE_INTEROP=1 tests/interop/check_adapters.py build/tandem" \
    "env TANDEM_REQUIRE_INTEROP=1 tests/interop/check_muon.py build/tandem" \
    "env TANDEM_REQUIRE_INTEROP=1 tests/interop/check_choices.py build/tandem" \
    "env TANDEM_REQUIRE_INTEROP=1 tests/interop/check_export.py build/tandem" \
    "env TANDEM_REQUIRE_INTEROP=1 tests/interop/check_openai.py build/tandem" "tests/serve/check_hostile.py build/tandem" \
    "tests/train/crash_states.sh build/tests/test_crash_states mpiexec" \
    "env TANDEM_CRASH_NO_FOLDER_RENAMES=1 tests/train/crash_states.sh build/tests/test_crash_states mpiexec" \
    "env TANDEM_REQUIRE_INTEROP=1 tests/interop/check_chats.py build/tandem" \
    "env TANDEM_REQUIRE_INTEROP=1 tests/interop/check_tokenizers.py build/tandem_tokenizer" tests/fuzz/run.sh tests/mutants/run.py; do
  echo "nightly: $job"
  $job || failed+=("$job")
done
[ ${#failed[@]} -eq 0 ] || { printf 'nightly: FAILED: %s\n' "${failed[@]}" >&2; exit 1; }
echo "nightly: good"
