#!/usr/bin/env python3
"""Losses of a run of `tandem train` beside those of PyTorch, from the same weights and on the same samples.

    torch_losses.py --data text.h5 --start RUN --run RUN [--device cpu]

--start is the run whose checkpoint of step 1 the other run began with. PyTorch trains twice: in f32, and under bf16 autocast,
compiled where PyTorch can. Its own bf16 losses show how far rounding alone takes them from f32, and Tandem's must not be much
farther: on average over all steps at most 4 times as far, or 0.002. Of a GPT of 4 layers, Tandem's losses on a CPU were 3.1e-4
away and PyTorch's 2.0e-4; a learning rate that was wrong by 5 % led 0.02 away.

Exit codes: 0 they agree, 1 they do not, 77 a package is missing.
"""
import argparse
import configparser
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "parity")]

import packages

packages.require("losses beside PyTorch", "torch", "numpy", "h5py")

import torch

import reference
from run_files import TokenBatches, weights_in

TIMES, LEAST = 4, 0.002


def number(text):
    """What a setting says, as reference.build() takes it."""
    return {"true": True, "false": False}.get(text, int(text) if text.isdigit() else text)


def train(settings, batches, start, rates, device, bf16):
    """The loss of each step, before its update."""
    model = reference.build({**{key: number(text) for key, text in settings["model"].items()}, "vocab": batches.vocab})
    reference.load_parameters(model, start)
    model.to(device)
    optim = settings["optim"]
    optimizer = reference.build_optimizer(model, {"kind": "adamw", "lr": 0.0, "beta1": optim.getfloat("beta1"),
                                                  "beta2": optim.getfloat("beta2"), "eps": optim.getfloat("eps"),
                                                  "weight_decay": optim.getfloat("weight_decay")})
    network = torch.compile(model) if bf16 and device == "cuda" else model
    losses = []
    for step, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        inputs, targets = (torch.from_numpy(array).to(device) for array in batches.at(step))
        with torch.autocast(device, dtype=torch.bfloat16, enabled=bf16):
            loss = reference.loss_of(network, inputs, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optim.getfloat("clip_norm"))
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--start", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    args = parser.parse_args()
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(os.path.join(args.run, "config.cfg"))
    with open(os.path.join(args.run, "metrics.jsonl")) as file:
        lines = [line for line in map(json.loads, file) if "loss" in line]
    rates, tandem = [line["lr"] for line in lines], [line["loss"] for line in lines]
    batches = TokenBatches(args.data, settings.getint("run", "seed"), settings.getint("train", "global_batch"),
                           settings.getint("model", "context"))
    start = weights_in(args.start, 1)
    f32 = train(settings, batches, start, rates, args.device, False)
    bf16 = train(settings, batches, start, rates, args.device, True)
    print(f"PyTorch {torch.__version__} and Tandem's {settings['train']['precision']} on the same {len(tandem)} batches\n"
          f"{'step':>6}{'Tandem':>12}{'PyTorch bf16':>14}{'PyTorch f32':>14}")
    for step in range(len(tandem)):
        if step == 0 or (step + 1) % max(1, len(tandem) // 20) == 0:
            print(f"{step + 1:6}{tandem[step]:12.5f}{bf16[step]:14.5f}{f32[step]:14.5f}")

    def distance(losses):
        return sum(abs(a - b) for a, b in zip(losses, f32)) / len(f32)

    limit = max(TIMES * distance(bf16), LEAST)
    print(f"mean distance from f32: Tandem {distance(tandem):.2e}, PyTorch's bf16 {distance(bf16):.2e}; at most {limit:.2e}")
    return 0 if distance(tandem) <= limit else 1


if __name__ == "__main__":
    sys.exit(main())
