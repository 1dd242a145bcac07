#!/usr/bin/env python3
"""Compares the weights that this tree and another commit train, bit by bit, or their step times.

    compare_commits.py COMMIT [--steps N] [--only PATTERN] [--runs N] [--from-before] [--times]

Builds both for the CPU. Trains each kind of model on 1 to 4 ranks in each ZeRO stage, in f32 and bf16, with ring and exact
sums, and compares every tensor in the last checkpoints. --from-before: both begin with weights that the other commit made. --runs: only so many of these runs, spread evenly. --times: runs the two programs in turn instead, and prints
the ratio of their median step times. --only: the runs whose name, such as "gpt bf16 3 ranks zero 2 ring", matches the pattern.
"""
import argparse
import glob
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile

import h5py

TESTS = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(TESTS, "program"))
import tandem_program  # noqa: E402
from tandem_program import Workspace, metrics, run  # noqa: E402

ROOT = os.path.dirname(TESTS)
KINDS = {"gpt": ["--model.dropout", "0.1", "--model.heads", "2", "--model.context", "16", "--model.width", "32"],
         "llama": ["--model.kv_heads", "1", "--model.heads", "2", "--model.context", "16", "--model.width", "32"],
         "resnet": ["--model.depth", "8", "--optim.kind", "sgd", "--data.augment", "true"],
         "mlp": ["--model.width", "32"]}
STACKS = {".attn.qkv.": [".attn.q.", ".attn.k.", ".attn.v."], ".mlp.gate_up.": [".mlp.gate.", ".mlp.up."]}
TIMED = {"gpt": ["--model.layers", "4", "--model.width", "256", "--model.context", "128"],
         "llama": ["--model.layers", "4", "--model.width", "256", "--model.context", "128"],
         "resnet": ["--model.depth", "20"]}
TIMED_STEPS, ROUNDS = 12, 12


def build(folder):
    options = ["-DTANDEM_CUDA=OFF", "-DTANDEM_TESTS=OFF"]
    subprocess.run(["launch/build.sh", "release", *options], cwd=folder, check=True, stdout=sys.stderr,
                   env={**os.environ, "BUILD": os.path.join(folder, "build-compared")})
    return os.path.join(folder, "build-compared", "tandem")


def train(program, folder, data, ranks, settings):
    tandem_program.TANDEM = program
    name = os.path.basename(folder)
    Workspace.check(run("train", "--data.path", data, "--run.dir", os.path.dirname(folder), "--run.name", name,
                        "--run.device", "cpu", "--run.threads", "1", "--log.progress", "none", "--log.tensorboard", "false",
                        *settings, ranks=ranks))


def parameters_in(folder):
    """The bytes of every tensor in the newest checkpoint. Tensors that are one parameter are joined: some commits keep it whole."""
    newest, tensors = max(glob.glob(os.path.join(folder, "checkpoints", "step-*"))), {}
    for path in sorted(glob.glob(os.path.join(newest, "rank-*.h5"))):
        with h5py.File(path) as file:
            def add(name, piece):
                if isinstance(piece, h5py.Dataset) and piece.size:
                    tensors.setdefault(name.split("@")[0], {})[int(piece.attrs.get("offset", [0])[0])] = piece[()].tobytes()
            file.visititems(add)
    whole = {name: b"".join(pieces[offset] for offset in sorted(pieces)) for name, pieces in tensors.items()}
    for stack, pieces in STACKS.items():
        for first in [name for name in whole if pieces[0] in name]:
            whole[first.replace(pieces[0], stack)] = b"".join(whole.pop(first.replace(pieces[0], piece)) for piece in pieces)
    return whole


def compare_weights(programs, folder, data, options):
    grid = [(kind, precision, ranks, zero, reduce, f"{kind} {precision} {ranks} ranks zero {zero} {reduce}")
            for kind, precision, ranks, zero, reduce
            in itertools.product(KINDS, ["f32", "bf16"], range(1, 5), range(4), ["ring", "exact"])
            if ranks > 1 or zero == 0]  # one rank shards nothing
    grid = [run for run in grid if re.search(options.only, run[-1])]
    runs = min(options.runs or len(grid), len(grid))
    compared = 0
    for kind, precision, ranks, zero, reduce, name in [grid[i * len(grid) // runs] for i in range(runs)]:
        found, start = [], []
        if options.from_before:
            start = ["--checkpoint.init_from", os.path.join(folder, f"start-{kind}")]
            if not os.path.exists(start[1]):
                train(programs["before"], start[1], data[kind], 1,
                      ["--model.kind", kind, *KINDS[kind], "--train.steps", "1", "--train.global_batch", "12"])
        for which, program in programs.items():
            at = os.path.join(folder, f"{which}-{name}".replace(" ", "-"))
            train(program, at, data[kind], ranks,
                  ["--model.kind", kind, *KINDS[kind], "--train.steps", str(options.steps), "--train.global_batch", "12",
                   "--train.micro_batch", "1", "--train.precision", precision, "--dist.zero", str(zero),
                   "--dist.reduce", reduce, "--dist.bucket_mb", "0.02", *start])
            found.append(parameters_in(at))
        before, after = found
        different = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
        if different or not before:
            sys.exit(f"{name}: {len(different)} parameters differ: {', '.join(different[:5])}")
        compared += 1
        print(f"same bits  {len(before):3} tensors  {name}", flush=True)
    print(f"{compared} runs of {options.steps} steps: same bits")
    if compared == 0:
        sys.exit("none was compared")


def compare_times(programs, folder, data, options):
    for kind, ranks, zero in itertools.product(TIMED, [1, 2], [0, 3]):
        name = f"{kind} {ranks} ranks zero {zero}"
        if (ranks == 1 and zero > 0) or not re.search(options.only, name):
            continue
        times = {which: [] for which in programs}
        for turn in range(ROUNDS):
            for which, program in programs.items():
                at = os.path.join(folder, f"{which}-{kind}-{ranks}-{zero}-{turn}")
                train(program, at, data[kind], ranks,
                      ["--model.kind", kind, *TIMED[kind], "--train.steps", str(TIMED_STEPS), "--train.global_batch", "16",
                       "--train.log_every", "1", "--dist.zero", str(zero)])
                times[which] += [line["step_ms"] for line in metrics(at) if "step_ms" in line][2:]
        before, after = (statistics.median(times[which]) for which in ["before", "after"])
        print(f"{name:24}: {before:8.2f} ms before, {after:8.2f} ms after, {after / before:.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--only", default="")
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--from-before", action="store_true")
    parser.add_argument("--times", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tandem-compare-") as folder:
        other = os.path.join(folder, "before")
        subprocess.run(["git", "worktree", "add", "--detach", other, options.commit], cwd=ROOT, check=True, stdout=sys.stderr)
        try:
            programs = {"before": build(other), "after": build(ROOT)}
            tandem_program.TANDEM = programs["before"]

            class Data(Workspace):
                pass
            Data.setUpClass()
            Data.make_digits()
            data = {kind: Data.text if kind in ["gpt", "llama"] else Data.digits for kind in KINDS}
            if options.times:
                data["resnet"] = Data.images
                compare_times(programs, folder, data, options)
            else:
                compare_weights(programs, folder, data, options)
            Data.tearDownClass()
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", other], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
