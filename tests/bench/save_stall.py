#!/usr/bin/env python3
"""What a checkpoint of 50 million parameters (AdamW: 600 MB) costs a run of one rank on the CPU: how long training stands still,
how fast the file is written, and how much memory it takes.

    save_stall.py PATH_TO_TANDEM [--rounds 5] [--folder FOLDER_ON_THE_DISK] [--raw FILE]

Asynchronous, synchronous and no saves take turns. Beside each run, `dd bs=1M conv=fsync` writes the same file, and the same number
of bytes is copied once into memory that is mapped already. The first save of a run is shown apart; the last one, for
which the run waits, is left out. --raw appends a line of JSON for each run.
"""
import argparse
import ctypes
import json
import os
import subprocess
import tempfile
import time
from statistics import median

import gpt_run

EVERY, SAVES = 8, 3  # steps between saves, and how many there are
MODEL = {"model.layers": 2, "model.heads": 8, "model.width": 1440, "model.context": 16, "train.global_batch": 1, "train.micro_batch": 1,
         "train.steps": EVERY * SAVES + EVERY // 2, "checkpoint.keep": 1}
CASES = {"asynchronous": {"checkpoint.every_steps": EVERY}, "none": {"checkpoint.every_steps": 0, "checkpoint.async": "false"},
         "synchronous": {"checkpoint.every_steps": EVERY, "checkpoint.async": "false"}}


def copy_ms(size):
    """Times of single copies of `size` bytes. Both buffers are mapped by a first one that does not count."""
    one, other = [(ctypes.c_char * size)() for _ in range(2)]
    ctypes.memset(one, 1, size)
    times = []
    for _ in range(5):
        began = time.monotonic()
        ctypes.memmove(other, one, size)
        times.append(1000 * (time.monotonic() - began))
    return times[1:]


def dd_ms(file, folder):
    """Time to write the bytes of `file`, which are in the page cache, as a file of their own."""
    copy = os.path.join(folder, "copy")
    began = time.monotonic()
    subprocess.run(["dd", f"if={file}", f"of={copy}", "bs=1M", "conv=fsync"], check=True, stderr=subprocess.DEVNULL)
    took = 1000 * (time.monotonic() - began)
    os.remove(copy)
    return took


def measure(tandem, folder, case):
    lines, peak = gpt_run.train(tandem, folder, MODEL | CASES[case])
    saves = [line["checkpoint"] for line in lines if "checkpoint" in line][:-1]  # without that at the end
    checkpoint = os.path.join(folder, "runs", "r", "checkpoints", f"step-{MODEL['train.steps']:08}", "rank-0000.h5")
    size = os.path.getsize(checkpoint)
    steps = [line["step_ms"] for line in lines if "step_ms" in line]
    return {"case": case, "bytes": size, "saves": saves, "peak_kib": peak, "steps_s": sum(steps) / 1000,
            "copy_ms": copy_ms(size), "dd_ms": dd_ms(checkpoint, folder)}


def show(runs):
    def of(case, figure):
        return [value for run in runs if run["case"] == case for value in figure(run)]

    def ratio(values, base):
        return f"{median(values):.0f} ms, {median(values) / median(base):.2f} (least {min(values):.0f}, {min(values) / min(base):.2f})"

    copies = [value for run in runs for value in run["copy_ms"]]
    dd = [run["dd_ms"] for run in runs]
    base = median(run["peak_kib"] for run in runs if run["case"] == "none")
    size = runs[0]["bytes"]
    print(f"{size / 1e6:.0f} MB; ratios are to a copy in memory of the same bytes, {median(copies):.0f} ms (least {min(copies):.0f}), "
          f"to dd, {median(dd):.0f} ms or {size / median(dd) / 1e3:.0f} MB/s (least {min(dd):.0f}), and to the peak without saves, "
          f"{base / 1024:.0f} MiB\n")
    print("| saves | stall and ratio to a copy | the first of a run | write and ratio to dd | peak memory |\n"
          "| --- | --- | --- | --- | --- |")
    for case in ["asynchronous", "synchronous"]:
        later = ratio(of(case, lambda run: [save["stall_ms"] for save in run["saves"][1:]]), copies)
        first = ratio(of(case, lambda run: [run["saves"][0]["stall_ms"]]), copies)
        write = ratio(of(case, lambda run: [save["write_ms"] for save in run["saves"]]), dd)
        peak = median(of(case, lambda run: [run["peak_kib"]]))
        print(f"| {case} | {later} | {first} | {write} | {peak / 1024:.0f} MiB, {peak / base:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--raw")
    options = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        gpt_run.prepare(os.path.abspath(options.tandem), folder)
        for _ in range(options.rounds):
            for case in CASES:
                runs.append(measure(os.path.abspath(options.tandem), folder, case))
                if options.raw:
                    with open(options.raw, "a") as raw:
                        raw.write(json.dumps(runs[-1]) + "\n")
    show(runs)


if __name__ == "__main__":
    main()
