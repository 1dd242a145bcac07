#!/usr/bin/env python3
"""The time and the memory of a step that trains adapters of rank 8, beside one that trains the whole model.

    adapters_cost.py PATH_TO_TANDEM [--rounds 5] [--threads 1 2] [--raw FILE]

Steps of a GPT with 6 layers of width 384, 4 windows of 256 tokens, on one rank. The two take turns, in another order each round; a
round gives the ratio of their medians, after the first three steps. --raw appends a line of JSON for each round.
"""
import argparse
import json
import os
import random
import tempfile
from statistics import median

import gpt_run

MODEL = {"model.layers": 6, "model.heads": 6, "model.width": 384, "model.context": 256, "train.global_batch": 4, "train.steps": 9,
         "train.eval_every": 0, "checkpoint.at_end": "false"}
KINDS = {"whole": {}, "adapters": {"lora.rank": 8, "checkpoint.self_contained": "true"}}


def step(tandem, folder, kind, threads):
    """Milliseconds and KiB."""
    lines, kib = gpt_run.train(tandem, folder, {**MODEL, **KINDS[kind], "run.threads": threads})
    return median(line["step_ms"] for line in lines[3:] if "step_ms" in line), kib


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--raw")
    chosen = parser.parse_args()
    tandem, rows = os.path.abspath(chosen.tandem), []
    with tempfile.TemporaryDirectory() as folder:
        gpt_run.prepare(tandem, folder)
        for threads in chosen.threads:
            rounds = []
            for number in range(chosen.rounds):
                order = random.Random(number).sample(list(KINDS), 2)
                rounds.append({"threads": threads, **{kind: step(tandem, folder, kind, threads) for kind in order}})
            ratios = [one["adapters"][0] / one["whole"][0] for one in rounds]
            print(f"{threads} threads: whole {median(one['whole'][0] for one in rounds):.0f} ms, adapters {median(ratios):.3f} of it "
                  f"({min(ratios):.3f} to {max(ratios):.3f}); memory {rounds[0]['adapters'][1] / rounds[0]['whole'][1]:.3f}", flush=True)
            rows += rounds
    if chosen.raw:
        with open(chosen.raw, "a") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
