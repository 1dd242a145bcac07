#!/usr/bin/env python3
"""What logging costs a step: a GPT on one CPU thread, with and without.

    logging_cost.py PATH_TO_TANDEM [--rounds 5] [--steps 400] [--raw FILE]

Without: no progress, no TensorBoard, two lines of metrics.jsonl. With: the bar, TensorBoard, and a line for each step ("all") or
for ten ("usual"), or for ten with files for Prometheus, and a disk that is full, or a pipe that nobody reads, for lines of
CloudWatch ("full", "pipe"). These take turns, in another order each round, and a round gives ratios: of the time of a step,
which is that of the whole loop, by elapsed_s, over its steps; and of CPU time. "line" is the CPU time of all logging of one
step, from a model whose steps take little more: where other processes want the cores too, it says more than the ratios.
"export" is that of a file for Prometheus and a line for CloudWatch. "views" is the time of a validation of one batch with a
sample of text and histograms on top of one without. --raw appends a line of JSON for each round.
"""
import argparse
import json
import os
import random
import resource
import tempfile
from statistics import median

import gpt_run

MODEL = {"model.layers": 4, "model.heads": 4, "model.width": 128, "model.context": 64, "train.global_batch": 12}
ON = {"log.progress": "bar", "log.tensorboard": "true"}


def times_ms(tandem, folder, steps, settings):
    """The time of a step, and CPU time over steps."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines, _ = gpt_run.train(tandem, folder, {**MODEL, "train.steps": steps, **settings})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    first, *_, last = [line for line in lines if "step_ms" in line]
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1000 * (last["elapsed_s"] - first["elapsed_s"]) / (last["step"] - first["step"]), 1000 * cpu_s / steps


def validation_ms(tandem, folder, settings):
    """What a validation after every second step adds between the lines of that step and of the next, and one step more."""
    lines, _ = gpt_run.train(tandem, folder, {**MODEL, "train.steps": 21, "train.eval_every": 2, "checkpoint.every_steps": 0,
                                              "optim.lr": 0, "optim.min_lr": 0, "log.tensorboard": "true", **settings})
    steps = {line["step"]: line["elapsed_s"] for line in lines if "step_ms" in line}
    return 1000 * median(steps[step + 1] - steps[step] for step in range(6, 20, 2))


def exports(folder, emf):
    return {**ON, "train.log_every": 10, "log.prometheus": os.path.join(folder, "prometheus"), "log.emf": emf}


def line_us(tandem, folder, off, on):
    """The CPU time that settings add to a logged step, from a model whose steps take little more."""
    tiny = {"model.layers": 1, "model.heads": 1, "model.width": 8, "model.context": 4, "train.global_batch": 1}
    return 1000 * (times_ms(tandem, folder, 10000, {**tiny, **on})[1] - times_ms(tandem, folder, 10000, {**tiny, **off})[1])


def ratio(row, case, which):
    return row[case][which] / row["off"][which]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--raw")
    chosen = parser.parse_args()
    chosen.tandem = os.path.abspath(chosen.tandem)
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        gpt_run.prepare(chosen.tandem, folder)
        pipe = os.path.join(folder, "pipe")
        os.mkfifo(pipe)
        os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # a reader that never reads
        cases = {"off": {"train.log_every": chosen.steps}, "usual": {**ON, "train.log_every": 10},
                 "all": {**ON, "train.log_every": 1}, "full": exports(folder, "/dev/full"), "pipe": exports(folder, pipe)}
        for number in range(chosen.rounds):
            order = random.Random(number).sample(list(cases), len(cases))
            row = {case: times_ms(chosen.tandem, folder, chosen.steps, cases[case]) for case in order}
            row["views"] = (validation_ms(chosen.tandem, folder, {"log.sample_every": 1, "log.histograms": "true"}) -
                            validation_ms(chosen.tandem, folder, {}))
            every = {"train.log_every": 1}
            row["line"] = line_us(chosen.tandem, folder, {"train.log_every": 10000}, {**ON, **every})
            row["export"] = line_us(chosen.tandem, folder, every, {**exports(folder, os.path.join(folder, "emf")), **every, "log.progress": "none",
                                                                   "log.tensorboard": "false"})
            rounds.append(row)
            print(f"round {number + 1}: without {row['off'][0]:.2f} ms a step, {row['off'][1]:.2f} ms of CPU time; "
                  + "; ".join(f"{case} {ratio(row, case, 0):.4f}, CPU {ratio(row, case, 1):.4f}" for case in list(cases)[1:])
                  + f"; a line {row['line']:.0f} us, what monitors are told {row['export']:.0f} us; views {row['views']:.1f} ms a validation", flush=True)
            if chosen.raw:
                with open(chosen.raw, "a") as out:
                    out.write(json.dumps(row) + "\n")
    for case in list(cases)[1:]:
        for which, name in enumerate(["time", "CPU time"]):
            ratios = sorted(ratio(row, case, which) for row in rounds)
            print(f"{case}: {median(ratios):.4f} of the {name} without ({ratios[0]:.4f} to {ratios[-1]:.4f})")
    for case in ("full", "pipe"):
        print(f"{case}: {median(row[case][0] / row['usual'][0] for row in rounds):.4f} of the time of usual")
    print(f"line: {median(row['line'] for row in rounds):.0f} us, "
          f"{median(row['line'] / 1000 / row['off'][0] for row in rounds):.4f} of a step without")
    print(f"what monitors are told: {median(row['export'] for row in rounds):.0f} us, "
          f"{median(row['export'] / 1000 / row['off'][0] for row in rounds):.4f} of a step without")
    print(f"views: {median(row['views'] for row in rounds):.1f} ms a validation")


if __name__ == "__main__":
    main()
