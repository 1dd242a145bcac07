#!/usr/bin/env python3
"""How many steps Muon needs for the validation loss that AdamW ends with, and what its steps cost.

    recipes.py PATH_TO_TANDEM TEXT_FILE [--model shakespeare_char llama] [--steps 1000] [--seeds 1 2 3] [--raw FILE]

The text is characters, the last tenth to validate. Each optimizer gets the best of four learning rates, found with the first seed.
Muon then trains for several shares of AdamW's steps, each with a schedule of its own that ends there, because a loss in the middle
of a schedule says little. Both fall over the last fifth (wsd). What a step costs is a ratio of medians over all runs.
"""
import argparse
import functools
import json
import os
import statistics
import subprocess
import tempfile

import gpt_run

MODELS = {"shakespeare_char": {"model.kind": "gpt", "model.layers": 4, "model.heads": 4, "model.width": 128, "model.context": 64,
                               "model.dropout": 0, "train.global_batch": 12},
          "llama": {"model.kind": "llama", "model.layers": 6, "model.heads": 4, "model.width": 256, "model.context": 128,
                    "train.global_batch": 16}}
RATES = [1e-3, 2e-3, 4e-3, 8e-3]
SHARES = [0.5, 0.625, 0.75, 0.875, 1]


class Bench:
    def __init__(self, tandem, folder, raw):
        self.tandem, self.folder, self.raw = tandem, folder, raw

    @functools.cache  # the best rate was already run with the first seed
    def run(self, model, kind, rate, seed, steps):
        """The last validation loss, and the median time of a step in ms."""
        settings = {**MODELS[model], "optim.kind": kind, "optim.lr": rate, "optim.min_lr": rate / 10, "optim.schedule": "wsd",
                    "optim.warmup_steps": steps // 20, "optim.beta2": 0.99, "train.steps": steps, "train.eval_every": steps,
                    "train.eval_batches": 0, "run.seed": seed, "run.threads": 0}
        lines, _ = gpt_run.train(self.tandem, self.folder, settings)
        row = {"model": model, "kind": kind, "lr": rate, "seed": seed, "steps": steps,
               "val_loss": [line["val_loss"] for line in lines if "val_loss" in line][-1],
               "step_ms": statistics.median(line["step_ms"] for line in lines if "step_ms" in line)}
        if self.raw:
            with open(self.raw, "a") as out:
                out.write(json.dumps(row) + "\n")
        return row["val_loss"], row["step_ms"]

    def best_rate(self, model, kind, seed, steps):
        losses = {rate: self.run(model, kind, rate, seed, steps)[0] for rate in RATES}
        print(f"{model}, {kind}: " + ", ".join(f"lr {rate:g} {loss:.4f}" for rate, loss in losses.items()), flush=True)
        return min(losses, key=losses.get)

    def compare(self, model, seeds, steps):
        rates = {kind: self.best_rate(model, kind, seeds[0], steps) for kind in ("adamw", "muon")}
        adamw = [self.run(model, "adamw", rates["adamw"], seed, steps) for seed in seeds]
        goal = statistics.mean(loss for loss, _ in adamw)
        print(f"{model}: adamw {goal:.4f} after {steps} steps", flush=True)
        for share in SHARES:
            muon = [self.run(model, "muon", rates["muon"], seed, round(share * steps)) for seed in seeds]
            loss = statistics.mean(loss for loss, _ in muon)
            cost = statistics.median(ms for _, ms in muon) / statistics.median(ms for _, ms in adamw)
            print(f"{model}: muon {loss:.4f} after {share:g} of them; a step costs {cost:.2f} of adamw's", flush=True)
            if loss <= goal:
                return
        print(f"{model}: muon does not reach it", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    parser.add_argument("text")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--raw")
    chosen = parser.parse_args()
    tandem, text = os.path.abspath(chosen.tandem), os.path.abspath(chosen.text)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([tandem, "prepare", "text", "--input", text, "--output", "text.h5", "--tokenizer", "char"], cwd=folder,
                       check=True, stdout=subprocess.DEVNULL)
        bench = Bench(tandem, folder, chosen.raw and os.path.abspath(chosen.raw))
        for model in chosen.model:
            bench.compare(model, chosen.seeds, chosen.steps)


if __name__ == "__main__":
    main()
