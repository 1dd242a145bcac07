#!/usr/bin/env python3
"""Stands in for the program `tandem` where launch/scaling.py is tested: `estimate` knows the settings below, and `train` writes
what a run writes, without training. How long its steps take is known, and written into the file that STAND_IN names (JSON):

    efficiency   {"8": 0.8}: of a rank, by the number of ranks
    noise        relative standard deviation of a step, and of a launch
    drift        the machine slows by this part from the first launch to the last
    launches     how many there will be
    fail         {run name: exit code}
    loss         {part of a run name: added to its loss}
    seconds      that a launch takes
    mfu          of each step; null where the peak of the GPU is not known

Where there are islands, an exchange adds 100 ms and 1000 bytes to its step, and the last step takes another second.
Every start of `train` appends its run name to the file `started` beside it. RANKS is the number of ranks.
"""
import json
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "launch", "run"))
from settings import read_file

DEFAULTS = {"run.name": "run", "run.dir": "runs", "run.threads": "0", "data.path": "", "model.kind": "gpt", "model.width": "128", "train.steps": "1000",
            "train.global_batch": "16", "train.micro_batch": "0", "train.precision": "f32", "train.offload": "none", "train.log_every": "10",
            "train.eval_every": "0", "train.eval_batches": "0", "dist.zero": "0", "dist.reduce": "ring", "dist.wire_dtype": "f32",
            "dist.shard": "world", "dist.overlap": "true", "dist.islands": "1", "dist.sync_every": "20", "dist.sync_delay": "0", "checkpoint.every_steps": "0", "checkpoint.every_minutes": "0",
            "checkpoint.at_end": "true", "checkpoint.async": "true", "log.tensorboard": "true", "log.progress": "auto"}
MS_A_SAMPLE, TOKENS_A_SAMPLE = 10, 1024
MEMORY = 64000  # of a rank; a sample takes 1000, and 2000 in stage 0


def main(command, words):
    files = [path for word, path in zip(words, words[1:]) if word == "--config"]
    words = dict(word[2:].split("=", 1) if "=" in word else (word[2:], "") for word in words if word.startswith("--"))
    options = {key: words.pop(key) for key in ("ranks", "node-size", "gpu", "json", "check", "config") if key in words}
    for key in words:
        if key not in DEFAULTS:
            sys.exit(error(f"command line: unknown setting {key}; --help lists all"))
    configured = [item for path in files for item in read_file(path).items()]
    settings = {**DEFAULTS, **dict(configured), **words}
    if "check" in options:
        print(json.dumps(settings))
    elif command == "estimate":
        estimate(settings, int(options["ranks"]))
    else:
        train(settings, int(os.environ["RANKS"]))


def error(text, code=2):
    print(f"tandem: {text}", file=sys.stderr)
    return code


def samples(settings, ranks):
    return int(settings["train.global_batch"]) // ranks


def peak_bytes(settings, ranks):
    return samples(settings, ranks) * (2000 if settings["dist.zero"] == "0" else 1000)


def estimate(settings, ranks):
    if settings["dist.shard"] == "node" and settings["dist.zero"] == "0":
        sys.exit(error("dist.shard = node needs a dist.zero above 0"))
    if int(settings["train.global_batch"]) % ranks != 0:
        sys.exit(error(f"train.global_batch = {settings['train.global_batch']} is not divisible by {ranks} ranks"))
    each = samples(settings, ranks)
    peak = peak_bytes(settings, ranks)
    row = {"given": True, "fits": peak <= MEMORY, "step_ms": MS_A_SAMPLE * each, "exposed_comm_ms": 0.5, "wire_bytes": 4000,
           "peak_bytes": peak, "mfu": 0.5}
    verdict = f"dist.zero = {settings['dist.zero']} does not fit in {MEMORY} B: needs {peak} B"
    print(json.dumps({"rows": [row], "memory_bytes": MEMORY, "verdict": verdict, "assumed": "a stand-in"}))


def train(settings, ranks):
    with open(os.environ["STAND_IN"]) as file:
        truth = json.load(file)
    started = os.path.join(os.path.dirname(os.environ["STAND_IN"]), "started")
    with open(started, "a+") as file:
        file.write(settings["run.name"] + "\n")
        file.seek(0)
        position = len(file.readlines()) - 1
    time.sleep(truth.get("seconds", 0))
    code = truth.get("fail", {}).get(settings["run.name"], 0)
    if code:
        print("tandem: rank 1: the planted \x1b[1mfailure\nmpirun: many more lines", file=sys.stderr)
        sys.exit(code)
    pick = random.Random(settings["run.name"])
    slower = 1 + truth.get("drift", 0) * position / max(1, truth.get("launches", 1) - 1)
    noise = truth.get("noise", 0)
    level = MS_A_SAMPLE * samples(settings, ranks) / truth.get("efficiency", {}).get(str(ranks), 1) * slower * pick.gauss(1, noise)
    added = sum(value for part, value in truth.get("loss", {}).items() if part in settings["run.name"])
    write(settings, ranks, [level * pick.gauss(1, noise) for _ in range(int(settings["train.steps"]))], added, truth.get("mfu", 0.4))
    print("model       a stand-in\nmachine     a clock\nranks       as many as asked for")


def slowest(ms, rank):
    parts = {"compute_ms": 0.78 * ms, "communication_ms": 0.05 * ms, "data_ms": 0.05 * ms, "optimizer_ms": 0.1 * ms, "copy_ms": 0.02 * ms, "saving_ms": 0}
    return {"rank": rank, "host": "here", "ratio": 1.02, "step_ms": ms, **parts}


def write(settings, ranks, times, added_loss, mfu):
    folder = os.path.join(settings["run.dir"], settings["run.name"])
    os.makedirs(os.path.join(folder, "checkpoints", "step-00000001"))
    with open(os.path.join(folder, "config.cfg"), "w") as out:
        for key, value in settings.items():
            section, name = key.split(".")
            out.write(f"[{section}]\n{name} = {value}\n")
    with open(os.path.join(folder, "report.json"), "w") as out:
        json.dump({"starts": [{"ranks": ranks}]}, out)
    tokens = int(settings["train.global_batch"]) * TOKENS_A_SAMPLE
    islands, every = settings["dist.islands"] != "1", int(settings["dist.sync_every"])
    with open(os.path.join(folder, "metrics.jsonl"), "w") as out:
        for step, ms in enumerate(times, 1):
            ms *= 10 if step <= 5 else 1  # a slow start, which the warm-up drops
            exchange = islands and step % every == 0
            ms += 100 * exchange + 1000 * (islands and step == len(times))
            out.write(json.dumps({"step": step, "loss": 4 - step / 100 + added_loss, "lr": 0.001, "grad_norm": 1, "step_ms": ms,
                                  "tokens_per_s": tokens / ms * 1000, "mfu": mfu, "wire_bytes": 4000 + 1000 * exchange, "exposed_comm_ms": ms / 20,
                                  "wire": {"all_reduce": {"inside": 3000, "between": 1000 + 1000 * exchange}, "control": {"inside": 0, "between": 9}},
                                  "peak_bytes": peak_bytes(settings, ranks), "slowest": slowest(ms, ranks - 1),
                                  "own_ms": [round(0.93 * ms, 3)] * (ranks - 1) + [round(0.95 * ms, 3)]}) + "\n")
        out.write(json.dumps({"step": len(times), "val_loss": 4, "perplexity": 55}) + "\n")
        out.write(json.dumps({"step": len(times), "checkpoint": {"stall_ms": 1, "write_ms": 1, "steps": 0,
                                                                  "slowest": {"rank": 0, "host": "here", "ratio": 1}}}) + "\n")


main(sys.argv[1], sys.argv[2:])
