#!/usr/bin/env python3
"""Time, memory and bytes of a step with dist.tensor = 2 beside two data ranks, as ratios to the latter in the same run.

    tensor_parallel.py PATH_TO_TANDEM [--rounds 4] [--steps 14] [--rate 1gbit]

A 4-layer, 384-wide GPT (context 128, global batch 8) on two ranks of one thread each. The cases take turns, so that a slow
minute of the machine hits all of them; a case's time is the median over all its steps. With --rate the ranks are in network
namespaces, with a link of that rate between them, as in slow_link.py, which says what this needs.
"""
import argparse
import contextlib
import os
import statistics
import sys
import tempfile

import gpt_run
import slow_link

CASES = {"data 2": {}, "tensor 2": {"dist.tensor": 2}, "data 2, recomputed": {"train.recompute": "block"},
         "tensor 2, recomputed": {"dist.tensor": 2, "train.recompute": "block"}}


def steps_over_link(tandem, folder, settings):
    """Trains with a rank in each of two namespaces, and returns what gpt_run.steps() would."""
    gpt_run.remove_run(folder)
    slow_link.mpirun(2, folder, [tandem, *gpt_run.arguments(folder, settings)], 600)
    return [line for line in gpt_run.logged(folder) if "step_ms" in line][3:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--rate", help="of a link between the ranks, as tc writes it")
    options = parser.parse_args()
    tandem = os.path.abspath(options.tandem)
    model = {"model.layers": 4, "model.heads": 6, "model.width": 384, "model.context": 128, "train.global_batch": 8,
             "train.steps": options.steps}
    lines = {case: [] for case in CASES}
    if options.rate:
        slow_link.require_tools()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        gpt_run.prepare(tandem, folder)
        if options.rate:
            stack.enter_context(slow_link.network(2, options.rate))
        for _ in range(options.rounds):
            for case, settings in CASES.items():
                settings = model | settings
                lines[case] += steps_over_link(tandem, folder, settings) if options.rate else \
                    gpt_run.steps(tandem, folder, 2, settings)
    middle = {case: {key: statistics.median(line[key] for line in of_case)
                     for key in ("step_ms", "exposed_comm_ms", "peak_bytes", "wire_bytes")} for case, of_case in lines.items()}
    base = middle["data 2"]
    print(f"| link: {options.rate or 'none'} | ms a step | ratio | of these waiting | peak MiB | ratio | MiB sent |\n" + "| --- " * 7 + "|")
    for case, of_case in middle.items():
        print(f"| {case} | {of_case['step_ms']:.1f} | {of_case['step_ms'] / base['step_ms']:.3f} | {of_case['exposed_comm_ms']:.1f} | "
              f"{of_case['peak_bytes'] / 2**20:.1f} | {of_case['peak_bytes'] / base['peak_bytes']:.3f} | "
              f"{of_case['wire_bytes'] / 2**20:.1f} |")


if __name__ == "__main__":
    sys.exit(main())
