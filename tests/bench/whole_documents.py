#!/usr/bin/env python3
"""What windows of whole documents (data.windows = documents) cost and save, beside a stream of the same text.

    whole_documents.py PATH_TO_TANDEM [--rounds 5] [--threads 1 2] [--large] [--raw FILE]

Steps of a GPT with 6 layers of width 384, 4 windows of 512 tokens, on one rank; documents have an exponential number of tokens,
128 on average. The two kinds of windows take turns, in another order each round; a round gives the ratio of their medians, after
the first three steps. --large: 1e9 tokens in 1e7 documents, windows of 1,024: what documents add to the seconds and to the
memory of a run of one step of a tiny model (needs h5py; the file is sparse). --raw appends a line of JSON for each round.
"""
import argparse
import json
import multiprocessing
import os
import random
import subprocess
import tempfile
import time
from statistics import median

import gpt_run

MODEL = {"model.layers": 6, "model.heads": 6, "model.width": 384, "model.context": 512, "train.global_batch": 4,
         "train.eval_every": 0, "checkpoint.at_end": "false"}
TINY = {"model.layers": 1, "model.heads": 1, "model.width": 8, "model.context": 1024, "train.global_batch": 1, "train.steps": 1,
        "train.eval_every": 0, "checkpoint.at_end": "false"}
KINDS = ["stream", "documents"]


def prepare(tandem, folder, documents):
    draw = random.Random(1)
    with open(os.path.join(folder, "text.jsonl"), "w") as out:
        for _ in range(documents):
            length = 1 + int(draw.expovariate(1 / 127))
            out.write(json.dumps({"text": "".join(draw.choice("abcdefgh ") for _ in range(length))}) + "\n")
    subprocess.run([tandem, "prepare", "text", "--input", "text.jsonl", "--field", "text", "--output", "text.h5"], cwd=folder,
                   check=True, stdout=subprocess.DEVNULL)


def step_ms(tandem, folder, windows, threads, steps):
    lines, _ = gpt_run.train(tandem, folder, {**MODEL, "train.steps": steps, "data.windows": windows, "run.threads": threads})
    return median(line["step_ms"] for line in lines[3:] if "step_ms" in line)


def make_large(folder, tokens=10 ** 9, documents=10 ** 7):
    import h5py
    import numpy as np
    os.rename(os.path.join(folder, "text.h5"), os.path.join(folder, "small.h5"))
    lengths = 1 + np.random.default_rng(1).multinomial(tokens - documents, np.random.default_rng(2).dirichlet(np.ones(documents)))
    with h5py.File(os.path.join(folder, "small.h5")) as small, h5py.File(os.path.join(folder, "text.h5"), "w") as large:
        small.copy("tokenizer", large)
        small.copy("val", large)
        for name, value in small.attrs.items():
            large.attrs[name] = value
        early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        early.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        train = large.create_group("train")
        h5py.h5d.create(train.id, b"tokens", h5py.h5t.NATIVE_UINT16, h5py.h5s.create_simple((tokens,)), early)
        train["starts"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)


def large(tandem, folder, threads):
    found = {}
    for windows in KINDS:
        start = time.monotonic()
        _, kib = gpt_run.train(tandem, folder, {**TINY, "data.windows": windows, "run.threads": threads})
        found[windows] = time.monotonic() - start, kib
    seconds, kib = (b - a for a, b in zip(found["stream"], found["documents"]))
    print(f"1e9 tokens in 1e7 documents, {threads} threads: {seconds:.1f} s and {kib / 1024:.0f} MiB more than a stream", flush=True)
    return {"threads": threads, "large": found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--raw")
    chosen = parser.parse_args()
    tandem = os.path.abspath(chosen.tandem)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        prepare(tandem, folder, 4000)
        for threads in chosen.threads:
            ratios = []
            for number in range(chosen.rounds):
                order = random.Random(number).sample(KINDS, 2)
                row = {windows: step_ms(tandem, folder, windows, threads, chosen.steps) for windows in order}
                rows.append({"threads": threads, **row})
                ratios.append(row["documents"] / row["stream"])
            print(f"{threads} threads: stream {median(r['stream'] for r in rows if r['threads'] == threads):.0f} ms, documents "
                  f"{median(ratios):.3f} of it ({min(ratios):.3f} to {max(ratios):.3f})", flush=True)
        if chosen.large:
            # By a process of its own: Linux counts the memory of one that starts another to what the other used.
            maker = multiprocessing.Process(target=make_large, args=[folder])
            maker.start()
            maker.join()
            if maker.exitcode != 0:
                raise RuntimeError("the large dataset could not be made")
            rows += [large(tandem, folder, threads) for threads in chosen.threads]
    if chosen.raw:
        with open(chosen.raw, "a") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
