#!/usr/bin/env python3
"""The share of the machine's own matrix-product rate that a 6-layer, 384-wide GPT (context 256, batch 8) turns into useful model
FLOP/s, on ranks of one thread each. Prints one line for each number of ranks.

    two_ranks.py PATH_TO_TANDEM [--ranks 1 2] [--steps 12]

The rate is measured at the start of each run, on all ranks at once (`mfu` in metrics.jsonl). The FLOPs of a token are 6 for each
weight of a matrix product, and 12 * layers * width * context / 2 for causal attention.
"""
import argparse
import os
import tempfile
from statistics import median

import gpt_run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    tandem = os.path.abspath(options.tandem)
    model = {"model.layers": 6, "model.heads": 6, "model.width": 384, "model.context": 256, "train.global_batch": 8,
             "train.steps": options.steps}
    with tempfile.TemporaryDirectory() as folder:
        gpt_run.prepare(tandem, folder)
        for ranks in options.ranks:
            steps = gpt_run.steps(tandem, folder, ranks, model)
            print(f"{ranks} rank(s) of one thread: {median(s['step_ms'] for s in steps):.0f} ms a step, "
                  f"{100 * median(s['mfu'] for s in steps):.0f} % of the GEMM rate, "
                  f"exposed communication {median(s['exposed_comm_ms'] for s in steps):.1f} ms")


if __name__ == "__main__":
    main()
