#!/usr/bin/env python3
"""What it costs to measure where each step goes: `tandem` beside `tandem_no_timeline`, which measures only whole steps.

    timeline_cost.py PATH_TO_TANDEM [--ranks 2] [--pairs 12] [--steps 40] [--zero 0 3]

Needs the target tandem_no_timeline, in the same folder. The two programs take turns, in the reverse order in every second pair;
every step is logged, which costs the most. A pair gives the ratio of its median steps. Shown is the median of the pairs with its
95 % interval (under 6 pairs: the range). A 4-layer, 128-wide GPT (context 64, batch 8), one thread a rank: steps are short,
so the share is large.
"""
import argparse
import os
import statistics
import sys
import tempfile

import gpt_run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "launch"))
from scaling import intervals

MODEL = {"model.layers": 4, "model.heads": 4, "model.width": 128, "model.context": 64, "train.global_batch": 8}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--zero", type=int, nargs="+", default=[0, 3])
    options = parser.parse_args()
    tandem = os.path.abspath(options.tandem)
    programs = [tandem, tandem + "_no_timeline"]
    if not os.path.exists(programs[1]):
        sys.exit(f"timeline_cost.py: there is no {programs[1]}: build the target tandem_no_timeline")
    print(f"| {options.ranks} ranks | ms a step | ratio to no timeline | interval |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        gpt_run.prepare(tandem, folder)
        for zero in options.zero:
            settings = {**MODEL, "train.steps": options.steps, "dist.zero": zero}
            ratios, times = [], []
            for pair in range(options.pairs):
                medians = {}
                for program in programs[::-1] if pair % 2 else programs:
                    steps = gpt_run.steps(program, folder, options.ranks, settings)
                    medians[program] = statistics.median(step["step_ms"] for step in steps)
                times.append(medians[tandem])
                ratios.append(medians[tandem] / medians[programs[1]])
            found = intervals.summary(ratios)
            print(f"| stage {zero} | {statistics.median(times):.2f} | {found['median']:.4f} | {found['low']:.4f} to {found['high']:.4f} |",
                  flush=True)


if __name__ == "__main__":
    main()
