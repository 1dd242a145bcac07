#!/usr/bin/env python3
"""Runs training steps of one benchmark case in PyTorch, on request.

Prints one JSON line when ready, then reads lines "run K" from standard input, does K full steps (forward, backward,
clip, optimizer) and prints the seconds they took. Ends at end of input. At the start it tries the memory formats and
optimizer implementations that PyTorch has; it keeps the fastest, which the JSON line names.
"""
import argparse
import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "parity"))

import torch  # noqa: E402

import reference  # noqa: E402

ADAMW = {"kind": "adamw", "lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1,
         "clip_norm": 1.0}
SGD = {"kind": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": False, "weight_decay": 1e-4, "clip_norm": 0.0}
CASES = {
    "shakespeare_char": {
        "model": {"kind": "gpt", "layers": 4, "heads": 4, "width": 128, "context": 64, "vocab": 65},
        "batch": 12, "optim": ADAMW},
    "gpt_384": {
        "model": {"kind": "gpt", "layers": 6, "heads": 6, "width": 384, "context": 256, "vocab": 65},
        "batch": 8, "optim": ADAMW},
    "resnet20": {
        "model": {"kind": "resnet", "depth": 20, "classes": 10, "image": [3, 32, 32]},
        "batch": 128, "optim": SGD},
}


def optimizer_choices(model, settings):
    """Name -> optimizer, for every implementation this PyTorch has for CPU tensors."""
    choices = {}
    for name in ("single", "foreach", "fused"):
        options = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[name]
        try:
            choices[name] = reference.build_optimizer(model, settings, **options)
        except (TypeError, RuntimeError, ValueError):  # this version does not know the option
            continue
    return choices


def make_step(case, channels_last, optimizer_name):
    """A function that does one full training step on a fixed batch, or None if PyTorch lacks this combination."""
    torch.manual_seed(1)
    settings, config = case["optim"], case["model"]
    model = reference.build(config)
    if config["kind"] == "resnet":
        inputs = torch.randn(case["batch"], *config["image"])
        targets = torch.randint(0, config["classes"], (case["batch"],))
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
            inputs = inputs.contiguous(memory_format=torch.channels_last)
    else:
        shape = (case["batch"], config["context"])
        inputs, targets = torch.randint(0, config["vocab"], shape), torch.randint(0, config["vocab"], shape)
    optimizer = optimizer_choices(model, settings).get(optimizer_name)
    if optimizer is None:
        return None
    parameters = list(model.parameters())

    def step():
        loss = reference.loss_of(model, inputs, targets)
        loss.backward()
        if settings["clip_norm"]:
            torch.nn.utils.clip_grad_norm_(parameters, settings["clip_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def seconds_of(step, count):
    start = time.perf_counter()
    for _ in range(count):
        step()
    return time.perf_counter() - start


def fastest_step(case):
    """The step function of the fastest variant, by the best of three short runs, and the variant's name."""
    image = case["model"]["kind"] == "resnet"
    best = None
    for channels_last in (False, True) if image else (False,):
        for optimizer_name in ("single", "foreach", "fused"):
            step = make_step(case, channels_last, optimizer_name)
            if step is None:
                continue
            seconds_of(step, 3)
            duration = min(seconds_of(step, 3) for _ in range(3))
            name = optimizer_name + (", channels_last" if channels_last else "")
            if best is None or duration < best[0]:
                best = (duration, step, name)
    return best[1], best[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", required=True, choices=sorted(CASES))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    step, variant = fastest_step(CASES[args.case])
    print(json.dumps({"torch": torch.__version__, "variant": variant,
                      "attention": "sdpa" if reference.HAS_SDPA else "manual"}), flush=True)
    for line in sys.stdin:
        word, count = line.split()
        if word != "run":
            raise ValueError(f"expected 'run K', got {line!r}")
        print(seconds_of(step, int(count)), flush=True)


if __name__ == "__main__":
    main()
