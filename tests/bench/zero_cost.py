#!/usr/bin/env python3
"""Time of a training step in each ZeRO stage and with exact sums, as a ratio to stage 0 in the same run of this script.

    zero_cost.py PATH_TO_TANDEM [--ranks 2] [--rounds 4] [--steps 18]

A 4-layer, 256-wide GPT (context 128, batch 16), one thread a rank. The cases take turns, so that a slow minute of the machine hits all
of them; a case's time is the median over all its steps.
"""
import argparse
import os
import statistics
import tempfile

import gpt_run

CASES = {"stage 0": {}, "stage 1": {"dist.zero": 1}, "stage 2": {"dist.zero": 2}, "stage 3": {"dist.zero": 3},
         "stage 0, exact sums": {"dist.reduce": "exact"}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=18)
    options = parser.parse_args()
    tandem = os.path.abspath(options.tandem)
    model = {"model.layers": 4, "model.heads": 4, "model.width": 256, "model.context": 128, "train.global_batch": 16,
             "train.steps": options.steps}
    times = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as folder:
        gpt_run.prepare(tandem, folder)
        for _ in range(options.rounds):
            for case, settings in CASES.items():
                times[case] += [step["step_ms"] for step in gpt_run.steps(tandem, folder, options.ranks, model | settings)]
    base = statistics.median(times["stage 0"])
    print(f"| {options.ranks} ranks | ms a step | ratio to stage 0 |\n| --- | --- | --- |")
    for case, values in times.items():
        middle = statistics.median(values)
        print(f"| {case} | {middle:.1f} | {middle / base:.3f} |")


if __name__ == "__main__":
    main()
