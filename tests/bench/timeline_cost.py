#!/usr/bin/env python3
"""What it costs to measure where each step goes and to note collectives: `tandem` beside `tandem_no_timeline`, which measures
only whole steps. And what it costs to trace all steps (log.trace): `tandem` beside itself.

    timeline_cost.py PATH_TO_TANDEM [--ranks 2] [--pairs 12] [--steps 100] [--zero 0 3]

Needs the target tandem_no_timeline, in the same folder. Programs take turns, in the reverse order in every second round; every
step is logged, which costs the most. A round gives ratios of the time that a tenth of its steps keep, which other work on the machine
disturbs less than their median. Shown is the median of the rounds with its 95 % interval (under 6 rounds: the range). A 4-layer,
128-wide GPT (context 64, batch 8), one thread a rank: steps are short, so the share is large.
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
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--zero", type=int, nargs="+", default=[0, 3])
    options = parser.parse_args()
    tandem = os.path.abspath(options.tandem)
    bare = tandem + "_no_timeline"
    if not os.path.exists(bare):
        sys.exit(f"timeline_cost.py: there is no {bare}: build the target tandem_no_timeline")
    print(f"| {options.ranks} ranks | ms a step | measured, to bare | interval | traced, to measured | interval |\n" + "| --- " * 6 + "|")
    with tempfile.TemporaryDirectory() as folder:
        gpt_run.prepare(tandem, folder)
        for zero in options.zero:
            settings = {**MODEL, "train.steps": options.steps, "dist.zero": zero}
            kinds = {"bare": (bare, settings), "measured": (tandem, settings),
                     "traced": (tandem, {**settings, "log.trace": f"1-{options.steps}"})}
            times = {kind: [] for kind in kinds}
            for pair in range(options.pairs):
                for kind in reversed(kinds) if pair % 2 else kinds:
                    program, chosen = kinds[kind]
                    steps = gpt_run.steps(program, folder, options.ranks, chosen)
                    times[kind].append(statistics.quantiles((step["step_ms"] for step in steps), n=10)[0])
            cells = [f"stage {zero}", f"{statistics.median(times['measured']):.2f}"]
            for kind, reference in (("measured", "bare"), ("traced", "measured")):
                found = intervals.summary([one / other for one, other in zip(times[kind], times[reference])])
                cells += [f"{found['median']:.4f}", f"{found['low']:.4f} to {found['high']:.4f}"]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
