#!/usr/bin/env python3
"""What a small Llama learns from a stream and from whole documents, both evaluated on whole documents.

    documents_quality.py PATH_TO_TANDEM TEXT_FILE [--seeds 1 2 3] [--steps 400] [--raw FILE]

Paragraphs of the text file, which blank lines part, are its documents: characters, the last tenth to validate. The model has
4 layers of width 128 and windows of 256 characters, 16 a step.
"""
import argparse
import json
import os
import subprocess
import tempfile

import gpt_run

MODEL = {"model.kind": "llama", "model.layers": 4, "model.heads": 4, "model.width": 128, "model.context": 256,
         "train.global_batch": 16, "train.eval_every": 0, "optim.warmup_steps": 40, "optim.lr": 2e-3, "optim.min_lr": 2e-4}


def prepare(tandem, folder, text):
    with open(text) as lines, open(os.path.join(folder, "text.jsonl"), "w") as out:
        for paragraph in lines.read().split("\n\n"):
            out.write(json.dumps({"text": paragraph}) + "\n")
    subprocess.run([tandem, "prepare", "text", "--input", "text.jsonl", "--field", "text", "--output", "text.h5", "--val-fraction",
                    "0.1"], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def val_loss(tandem, folder, seed, windows, settings):
    gpt_run.train(tandem, folder, {**MODEL, **settings, "run.seed": seed, "data.windows": windows, "run.threads": 0})
    shown = subprocess.run([tandem, "eval", "runs/r", "--windows", "documents", "--json"], cwd=folder, check=True,
                           capture_output=True, text=True)
    return json.loads(shown.stdout)["val_loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    parser.add_argument("text")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--raw")
    chosen = parser.parse_args()
    tandem = os.path.abspath(chosen.tandem)
    with tempfile.TemporaryDirectory() as folder:
        prepare(tandem, folder, chosen.text)
        for seed in chosen.seeds:
            row = {"seed": seed, **{windows: val_loss(tandem, folder, seed, windows, {"train.steps": chosen.steps})
                                    for windows in ["stream", "documents"]}}
            print(f"seed {seed}: stream {row['stream']:.4f}, documents {row['documents']:.4f}", flush=True)
            if chosen.raw:
                with open(chosen.raw, "a") as out:
                    out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
