#!/usr/bin/env python3
"""TensorBoard itself reads our event files, and drops the events that a resumed run replaces.

    tensorboard_reads.py PATH_OF_test_tensorboard

Exit codes: 0 passed, 1 failed, 77 TensorBoard is missing (1 if TANDEM_REQUIRE_PARITY=1).
"""
import os
import struct
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.backend.event_processing import event_file_loader
except ModuleNotFoundError as error:
    if os.environ.get("TANDEM_REQUIRE_PARITY") == "1":
        sys.exit(f"TensorBoard test FAILED: TANDEM_REQUIRE_PARITY=1, but there is no {error.name}")
    print(f"TensorBoard test SKIPPED: no {error.name}")
    sys.exit(77)


def expect(what, actual, wanted):
    if actual != wanted:
        sys.exit(f"TensorBoard test FAILED: {what}: {actual}, expected {wanted}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(
            [sys.argv[1], "--gtest_filter=TensorBoard.ResumeBeginsWithAPurge"],
            env={**os.environ, "TANDEM_TENSORBOARD_DIR": directory},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        files = sorted(os.listdir(directory))
        expect("number of event files", len(files), 2)
        # Counts the events: the loader stops silently at a record with a bad checksum.
        events = [len(list(event_file_loader.EventFileLoader(os.path.join(directory, name)).Load())) for name in files]
        expect("events in the files", events, [11, 4])

        accumulator = event_accumulator.EventAccumulator(directory)
        accumulator.Reload()
        expect("tags", sorted(accumulator.Tags()["scalars"]), ["train/loss", "train/lr"])
        loss = [(event.step, event.value) for event in accumulator.Scalars("train/loss")]
        wanted = [(step, as_f32(1 / step)) for step in range(1, 7)] + [(7, 107.0), (8, 108.0)]
        expect("loss", loss, wanted)
        rates = [event.value for event in accumulator.Scalars("train/lr")]
        expect("learning rate", rates, [0.5] * 6 + [0.25] * 2)
    print("TensorBoard reads the event files, and drops the steps after a resume")


def as_f32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


if __name__ == "__main__":
    main()
