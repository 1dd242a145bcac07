#!/usr/bin/env python3
"""What messages of fewer bytes cost in quality, and what they save in time over a slow network. Prints Markdown tables.

    less_traffic.py PATH_TO_TANDEM quality TEXT [--seeds 1 2 3] [--ranks 4] [--zero 1] [--steps 2000]
    less_traffic.py PATH_TO_TANDEM time [--nodes 4 8] [--rate 100mbit] [--steps 12] [--rounds 3]

`quality` trains configs/shakespeare_char.cfg on TEXT; the loss is over the whole validation split at the end. `time` trains a
4-layer, 256-wide GPT with one rank on each node; nodes are network namespaces, as in slow_link.py, which says what this needs.
The last column is what `tandem estimate` says of it, from links that `tandem bench links` measured there, as a ratio to what was
measured. Ratios are to f32 in the same run.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import gpt_run
import slow_link

CASES = {"f32": {}, "bf16": {"dist.wire_dtype": "bf16"}, "int8": {"dist.wire_dtype": "int8"},
         "int8, values too": {"dist.wire_dtype": "int8", "dist.gather_dtype": "int8"}}
ISLANDS = {"islands": {"dist.sync_every": 20}, "islands, with a delay": {"dist.sync_every": 20, "dist.sync_delay": 5}}
CONFIG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "configs", "shakespeare_char.cfg")
MODEL = {"model.layers": 4, "model.heads": 4, "model.width": 256, "model.context": 128}


def cases(ranks):
    """Settings by case. Each rank is an island where there are islands."""
    return CASES | {case: settings | {"dist.islands": ranks} for case, settings in ISLANDS.items()}


def heading(*columns):
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|", flush=True)


def quality(tandem, folder, options):
    subprocess.run([tandem, "prepare", "text", "--input", os.path.abspath(options.text), "--output", "text.h5", "--tokenizer", "char"],
                   cwd=folder, check=True, stdout=subprocess.DEVNULL)
    heading("case", "mean val_loss", "of f32", *(f"seed {seed}" for seed in options.seeds), "MiB sent a step")
    base = None
    for case, settings in cases(options.ranks).items():
        losses = []
        for seed in options.seeds:
            gpt_run.remove_run(folder)
            command = [tandem, *gpt_run.arguments(folder, {"run.seed": seed, "dist.zero": options.zero, "train.steps": options.steps,
                                                           "train.eval_every": options.steps, "train.eval_batches": 0} | settings)]
            subprocess.run(["mpirun", "-np", str(options.ranks), *command, "--config", CONFIG], cwd=folder, env=gpt_run.ENVIRONMENT,
                           check=True, stdout=subprocess.DEVNULL)
            lines = gpt_run.logged(folder)
            losses.append(next(line["val_loss"] for line in reversed(lines) if "val_loss" in line))
        base = base or statistics.mean(losses)
        sent = of_steps([[line for line in lines if "step_ms" in line]], settings)[2] / 2**20
        print(f"| {case} | {statistics.mean(losses):.4f} | {statistics.mean(losses) / base:.4f} | "
              + " | ".join(f"{loss:.4f}" for loss in losses) + f" | {sent:.3f} |", flush=True)


def estimated(tandem, folder, nodes, settings):
    """Milliseconds of a step, with its share of an exchange of islands."""
    command = [tandem, "estimate", "--machine", "links.json", "--ranks", str(nodes), "--node-size", "1", "--json", "true",
               *gpt_run.arguments(folder, settings)[1:]]
    shown = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout
    row = next(row for row in json.loads(shown)["rows"] if row["given"])
    return row["step_ms"] + row["sync_ms"] / settings.get("dist.sync_every", 20)


def of_steps(lines, settings):
    """Figures of a step: medians, or where islands meet now and then, means over the steps from one exchange to the next."""
    keys = "step_ms", "exposed_comm_ms", "wire_bytes"
    every = settings.get("dist.sync_every")
    if not every:
        return [statistics.median(line[key] for run in lines for line in run[3:]) for key in keys]
    first = settings.get("dist.sync_delay", 0) + 2
    return [statistics.mean(line[key] for run in lines for line in run[first:first + every]) for key in keys]


def time(tandem, folder, options):
    slow_link.require_tools()
    gpt_run.prepare(tandem, folder)
    heading("nodes", "case", "ms a step", "of f32", "of these waiting", "MiB sent", "estimate")
    for nodes in options.nodes:
        lines = {case: [] for case in cases(nodes)}
        common = MODEL | {"train.global_batch": 2 * nodes, "dist.zero": 1}
        with slow_link.network(nodes, options.rate):
            links = [tandem, "bench", "links", "--output", os.path.join(folder, "links.json"), "--largest-mib", "4", "--run.device", "cpu"]
            slow_link.mpirun(nodes, folder, links, 600)
            for _ in range(options.rounds):
                for case, settings in cases(nodes).items():
                    gpt_run.remove_run(folder)
                    # With islands, up to where an exchange begins, which is after some twenty steps, and all that it adds.
                    steps = settings["dist.sync_every"] + 9 if case in ISLANDS else options.steps
                    settings = common | settings | {"train.steps": steps}
                    slow_link.mpirun(nodes, folder, [tandem, *gpt_run.arguments(folder, settings)], 600)
                    lines[case].append([line for line in gpt_run.logged(folder) if "step_ms" in line])
        middle = {case: of_steps(of_case, cases(nodes)[case]) for case, of_case in lines.items()}
        for case, (step, waiting, sent) in middle.items():
            print(f"| {nodes} | {case} | {step:.1f} | {step / middle['f32'][0]:.3f} | {waiting:.1f} | {sent / 2**20:.2f} | "
                  f"{estimated(tandem, folder, nodes, common | cases(nodes)[case]) / step:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    what = parser.add_subparsers(required=True)
    of_quality, of_time = what.add_parser("quality"), what.add_parser("time")
    of_quality.add_argument("text")
    of_quality.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    of_quality.add_argument("--ranks", type=int, default=4)
    of_quality.add_argument("--zero", type=int, default=1)
    of_quality.add_argument("--steps", type=int, default=2000)
    of_quality.set_defaults(measure=quality)
    of_time.add_argument("--nodes", type=int, nargs="+", default=[4, 8])
    of_time.add_argument("--rate", default="100mbit", help="of each link and direction, as tc writes it")
    of_time.add_argument("--steps", type=int, default=12)
    of_time.add_argument("--rounds", type=int, default=3)
    of_time.set_defaults(measure=time)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options.measure(os.path.abspath(options.tandem), folder, options)


if __name__ == "__main__":
    sys.exit(main())
