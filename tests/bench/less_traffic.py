#!/usr/bin/env python3
"""What messages of fewer bytes cost in quality, and what they save in time over a slow network. Prints Markdown tables.

    less_traffic.py PATH_TO_TANDEM quality TEXT [--seeds 1 2 3] [--ranks 4] [--zero 1] [--steps 2000]
    less_traffic.py PATH_TO_TANDEM time [--nodes 4 8] [--rate 100mbit] [--steps 12] [--rounds 3] [--raw FILE]

`quality` trains configs/shakespeare_char.cfg on TEXT; the loss is over the whole validation split at the end. `time` trains a
4-layer, 256-wide GPT with one rank on each node; nodes are network namespaces, as in slow_link.py, which says what this needs.
Kernels take a given time without a processor, as in pretend_cluster.py, so that nodes hardly slow each other. The last two columns
are the step and the waiting that `tandem estimate` forecasts, as ratios to what was measured. In each round it is told the links that
`tandem bench links` measures there, and as the rate of products that of one rank's whole step alone. Ratios are to f32 in the same run.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "launch"))
from plants import build_shim, planted
import gpt_run
import slow_link
from vs_pytorch import cpu_field

CASES = {"f32": {}, "bf16": {"dist.wire_dtype": "bf16"}, "int8": {"dist.wire_dtype": "int8"},
         "int8, values too": {"dist.wire_dtype": "int8", "dist.gather_dtype": "int8"}}
ISLANDS = {"islands": {"dist.sync_every": 20}, "islands, with a delay": {"dist.sync_every": 20, "dist.sync_delay": 5}}
CONFIG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "configs", "shakespeare_char.cfg")
# Few tokens, so that nearly all of a step that is not waiting is without a processor.
MODEL = {"model.layers": 4, "model.heads": 4, "model.width": 256, "model.context": 8, "dist.zero": 1}
KERNEL_US = 500
FIGURES = "step_ms", "exposed_comm_ms", "wire_bytes"


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
        sent = of_steps([of_lines(lines)], settings)[2] / 2**20
        print(f"| {case} | {statistics.mean(losses):.4f} | {statistics.mean(losses) / base:.4f} | "
              + " | ".join(f"{loss:.4f}" for loss in losses) + f" | {sent:.3f} |", flush=True)


def estimated(tandem, folder, nodes, settings, tflops):
    """Milliseconds of a step and of its waiting, with their share of an exchange of islands, and the FLOP of all ranks. Products reach
    `tflops`; other kernels take no time."""
    command = [tandem, "estimate", "--ranks", str(nodes), "--node-size", "1", "--tflops", str(tflops), "--memory-gb-s", "1e6", "--json",
               "true", *(["--machine", "links.json"] if nodes > 1 else []), *gpt_run.arguments(folder, settings)[1:]]
    shown = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout
    row = next(row for row in json.loads(shown)["rows"] if row["given"])
    exchange = row["sync_ms"] / settings.get("dist.sync_every", 20)
    return row["step_ms"] + exchange, row["exposed_comm_ms"] + exchange, row["flops"]


def of_lines(lines):
    """The figures of each step."""
    return [{key: line[key] for key in FIGURES} for line in lines if "step_ms" in line]


def of_steps(lines, settings):
    """Medians of a step's figures, or where islands meet now and then, of their means over the steps from one exchange to the next."""
    every = settings.get("dist.sync_every")
    if not every:
        return [statistics.median(line[key] for run in lines for line in run[3:]) for key in FIGURES]
    first = settings.get("dist.sync_delay", 0) + 2
    return [statistics.median(statistics.mean(line[key] for line in run[first:first + every]) for run in lines) for key in FIGURES]


def time(tandem, folder, options):
    slow_link.require_tools()
    gpt_run.prepare(tandem, folder)
    version = subprocess.run([tandem, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    about = {"date": datetime.date.today().isoformat(), "machine": cpu_field("model name"), "tandem": version, "rate": options.rate}
    slept = planted(os.path.join(folder, "slept"), build_shim(folder), tandem, KERNEL_US=KERNEL_US)
    alone = MODEL | {"train.global_batch": 1, "train.steps": options.steps}
    flops = estimated(tandem, folder, 1, alone, 1)[2]
    heading("nodes", "case", "ms a step", "of f32", "of these waiting", "MiB sent", "estimate", "estimate of waiting")
    for nodes in options.nodes:
        common = MODEL | {"train.global_batch": nodes}
        lines, forecasts = {case: [] for case in cases(nodes)}, {case: [] for case in cases(nodes)}
        with slow_link.network(nodes, options.rate):
            for _ in range(options.rounds):
                links = ["--output", os.path.join(folder, "links.json"), "--largest-mib", "16"]
                slow_link.mpirun(nodes, folder, [tandem, "bench", "links", *links, "--run.device", "cpu"], 600)
                tflops = flops / of_steps([of_lines(gpt_run.train(slept, folder, alone)[0])], {})[0] / 1e9
                for case, settings in cases(nodes).items():
                    gpt_run.remove_run(folder)
                    # With islands, up to where an exchange begins, which is after some twenty steps, and all that it adds.
                    steps = settings["dist.sync_every"] + 9 if case in ISLANDS else options.steps
                    settings = common | settings | {"train.steps": steps}
                    slow_link.mpirun(nodes, folder, [slept, *gpt_run.arguments(folder, settings)], 600)
                    lines[case].append(of_lines(gpt_run.logged(folder)))
                    forecasts[case].append(estimated(tandem, folder, nodes, settings, tflops)[:2])
        of_f32 = of_steps(lines["f32"], {})[0]
        for case, settings in cases(nodes).items():
            step, waiting, sent = of_steps(lines[case], settings)
            forecast = [statistics.median(figures) for figures in zip(*forecasts[case])]
            print(f"| {nodes} | {case} | {step:.1f} | {step / of_f32:.3f} | {waiting:.1f} | {sent / 2**20:.2f} | "
                  f"{forecast[0] / step:.2f} | {forecast[1] / waiting:.2f} |", flush=True)
            if options.raw:
                with open(options.raw, "a") as out:
                    out.write(json.dumps(about | {"nodes": nodes, "case": case, "steps": lines[case], "forecasts": forecasts[case]}) + "\n")


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
    of_time.add_argument("--raw", help="file to which the figures are added")
    of_time.set_defaults(measure=time)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options.measure(os.path.abspath(options.tandem), folder, options)


if __name__ == "__main__":
    sys.exit(main())
