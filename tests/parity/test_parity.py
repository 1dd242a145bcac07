#!/usr/bin/env python3
"""Compares Tandem's models with PyTorch: loss, every gradient, and the parameters after ten optimizer steps.

PyTorch computes in float64, so the differences are Tandem's own errors. For each case this script writes
    IN/config.json         {"model": {...}, "optim": {...}, "steps": 10}; keys as in Tandem's configuration, plus
                           model.vocab, or model.classes and model.image = [C, H, W]
    IN/params/<name>.npy   float32
    IN/tokens.npy          int32 [B, T]           (gpt, llama)
    IN/images.npy          float32 [B, C, H, W]   (resnet, mlp)
    IN/targets.npy         int32 [B, T] or [B]
runs `tandem_parity --model KIND --dtype f32|f64 --seed N --ranks N --in IN --out OUT`, and reads
    OUT/loss.npy           float64 [1], of the first forward pass
    OUT/grads/<name>.npy   float32, of the first backward pass, before clipping
    OUT/losses.npy         float64 [10], the loss before each step's update (losses[0] equals the loss in loss.npy)
    OUT/params/<name>.npy  float32, after ten steps on the same batch at a constant learning rate
    OUT/buffers/<name>.npy float32, optional: batch norm's running_mean and running_var after the ten steps

Weight decay applies to parameters of two or more dimensions; AdamW's is decoupled, SGD's is added to the gradient.
clip_norm 0 means no clipping.

Exit codes: 0 all agree, 1 something differs, 77 PyTorch is missing (1 if TANDEM_REQUIRE_PARITY=1).
"""
import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "program")]

import packages

packages.require("parity tests", "torch", "numpy")

import numpy as np
import torch

import reference
import tandem_program

STEPS = 10
# Relative tolerances. f32: what the project promises. f64: the loss is computed and written in f64; gradients are
# written in f32, which rounds by up to 6e-8; the optimizer keeps parameters in f32, and ten steps of a ReLU network increase
# their rounding errors to 2e-6.
LIMITS = {
    "f32": {"loss": 1e-5, "grads": 1e-4, "losses": 1e-4, "params": 1e-4, "buffers": 1e-4},
    "f64": {"loss": 1e-9, "grads": 5e-7, "losses": 1e-6, "params": 1e-5, "buffers": 1e-5},
}

GPT = {"kind": "gpt", "layers": 3, "heads": 4, "width": 64, "ffn_width": 256, "context": 24, "vocab": 65,
       "tie_embeddings": True, "dropout": 0.0}
LLAMA = {"kind": "llama", "layers": 3, "heads": 4, "kv_heads": 2, "width": 64, "ffn_width": 176, "context": 24,
         "vocab": 65, "tie_embeddings": False, "dropout": 0.0}
RESNET = {"kind": "resnet", "depth": 8, "classes": 10, "image": [3, 16, 16]}
MLP = {"kind": "mlp", "layers": 2, "width": 48, "classes": 10, "image": [3, 8, 8]}


def adamw(**changes):
    return {"kind": "adamw", "lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1,
            "clip_norm": 0.0, **changes}


def sgd(**changes):
    return {"kind": "sgd", "lr": 0.02, "momentum": 0.9, "nesterov": False, "weight_decay": 1e-2,
            "clip_norm": 0.0, **changes}


# name -> model, batch, sequence length (tokens), optimizer, ranks if they are several. Sequences are shorter than the context on purpose.
# A ReLU network in f32 departs from f64 in jumps: an input of a ReLU that is almost zero changes its sign (which changes a
# gradient of ResNet-20 by 1e-2), and training amplifies that (PyTorch's own f32 differs from its f64 by 1e-3 after ten
# steps at lr 0.02). So make_inputs chooses images that keep these inputs away from zero, and the steps are small; a mistake
# of an optimizer still shows clearly in f64.
CASES = {
    "gpt_adamw": (GPT, 3, 21, adamw()),
    "gpt_adamw_clip": (GPT, 3, 21, adamw(clip_norm=0.5)),
    "gpt_sgd": (GPT, 3, 21, sgd()),
    "gpt_sgd_nesterov_clip": (GPT, 3, 21, sgd(nesterov=True, clip_norm=0.5)),
    "llama_adamw": (LLAMA, 3, 21, adamw()),
    "llama_tied_mha_adamw": ({**LLAMA, "tie_embeddings": True, "kv_heads": 4}, 3, 21, adamw()),
    "llama_sgd_nesterov": (LLAMA, 3, 21, sgd(nesterov=True)),
    "llama_wide_heads_qkv_bias_adamw": ({**LLAMA, "head_width": 24, "qkv_bias": True}, 3, 21, adamw()),
    "llama_narrow_heads_attention_bias_adamw_2_ranks": ({**LLAMA, "head_width": 6, "attention_bias": True}, 4, 21, adamw(), 2),
    "llama_window_adamw": ({**LLAMA, "sliding_window": 5}, 3, 21, adamw()),
    "llama_qk_norm_adamw": ({**LLAMA, "qk_norm": True, "head_width": 24}, 3, 21, adamw()),
    "llama_qk_norm_adamw_2_ranks": ({**LLAMA, "qk_norm": True}, 4, 21, adamw(), 2),
    # Ranks cut the model, whose 65 tokens they cannot divide.
    "gpt_adamw_clip_2_ranks": (GPT, 4, 21, adamw(clip_norm=0.5), 2),
    "llama_adamw_2_ranks": (LLAMA, 4, 21, adamw(), 2),
    "resnet_sgd": (RESNET, 8, 0, sgd(lr=0.002)),
    "resnet_sgd_nesterov": (RESNET, 8, 0, sgd(lr=0.002, nesterov=True)),
    "resnet_adamw": (RESNET, 8, 0, adamw(lr=1e-4)),
    "resnet20_sgd": ({**RESNET, "depth": 20, "image": [3, 32, 32]}, 2, 0, sgd(lr=2e-4)),
    "mlp_adamw": (MLP, 8, 0, adamw()),
    "mlp_sgd": (MLP, 8, 0, sgd()),
    "mlp_sgd_nesterov": (MLP, 8, 0, sgd(nesterov=True, clip_norm=1.0)),
}


def relu_margin(model, images):
    """The smallest distance from zero of any input of a ReLU in the first forward pass."""
    margins = []

    def recorder(x):
        margins.append(x.abs().min().item())
        return x.clamp(min=0)

    with mock.patch.object(reference.F, "relu", recorder), torch.no_grad():
        copy.deepcopy(model)(torch.from_numpy(images).double())  # a copy: batch norm updates its running statistics
    return min(margins)


def make_inputs(config, model, batch, length, seed):
    """(inputs, targets): the NumPy arrays that are written to disk. Images are drawn again until all inputs of ReLUs are
    more than 1e-5 from zero, ten times the rounding errors of f32 there."""
    random = np.random.default_rng(seed)
    if config["kind"] in ("gpt", "llama"):
        return (random.integers(0, config["vocab"], (batch, length)).astype(np.int32),
                random.integers(0, config["vocab"], (batch, length)).astype(np.int32))
    for _ in range(1000):
        images = random.standard_normal((batch, *config["image"])).astype(np.float32)
        if relu_margin(model, images) > 1e-5:
            return images, random.integers(0, config["classes"], (batch,)).astype(np.int32)
    raise RuntimeError("no images keep every ReLU clear of zero")


def make_model(config, seed):
    """A float64 model whose parameters are exact float32 values. Gains are not 1 and biases not 0, so that a mistake
    in them shows."""
    torch.manual_seed(seed)
    model = reference.build(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() < 2:
                p.add_(0.1 * torch.randn_like(p))
    return model.double()


def write_case(folder, config, optim, model, inputs, targets):
    os.makedirs(os.path.join(folder, "params"))
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({"model": config, "optim": optim, "steps": STEPS}, file, indent=1)
    for name, array in reference.parameter_arrays(model).items():
        np.save(os.path.join(folder, "params", name + ".npy"), array)
    np.save(os.path.join(folder, "tokens.npy" if inputs.dtype == np.int32 else "images.npy"), inputs)
    np.save(os.path.join(folder, "targets.npy"), targets)


def double_arrays(named):
    return {name: reference.to_tandem(t.detach().numpy().copy()) for name, t in named}


def run_torch(model, optim, inputs, targets):
    """The results that Tandem should have, in float64."""
    x = torch.from_numpy(inputs)
    x = x.long() if inputs.dtype == np.int32 else x.double()
    y = torch.from_numpy(targets).long()
    optimizer = reference.build_optimizer(model, optim)
    losses, gradients = [], None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = reference.loss_of(model, x, y)
        loss.backward()
        losses.append(loss.item())
        gradients = gradients or reference.gradient_arrays(model, torch.float64)
        if optim["clip_norm"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), optim["clip_norm"])
        optimizer.step()
    return {"loss": losses[0], "losses": np.array(losses), "grads": gradients,
            "params": double_arrays(model.named_parameters()), "buffers": double_arrays(model.named_buffers())}


def read_arrays(folder, like):
    """The .npy files of `folder`, which must have exactly the names and shapes of `like`."""
    found = {n[:-4]: np.load(os.path.join(folder, n)) for n in sorted(os.listdir(folder)) if n.endswith(".npy")}
    if set(found) != set(like):
        raise ValueError(f"{os.path.basename(folder)}: missing {sorted(set(like) - set(found))}, "
                         f"unknown {sorted(set(found) - set(like))}")
    for name, array in found.items():
        if array.shape != like[name].shape:
            raise ValueError(f"{name}: shape {array.shape}, want {like[name].shape}")
    return {name: array.astype(np.float64) for name, array in found.items()}


def relative(got, want, scale=None):
    """The norm of the difference divided by the norm of `want` (or of `scale`); infinite for NaN."""
    size = np.linalg.norm(want if scale is None else scale)
    error = np.linalg.norm(got - want) / (size if size > 0 else 1.0)
    return float(error) if np.isfinite(error) else float("inf")


def parameter_errors(config, got, want, what, adam):
    """name -> relative error. A key bias shifts all scores of a query alike, so its true gradient is zero. Its error
    is divided by the norm of the whole bias gradient. After steps of Adam, which divides noise by its own size, the key
    bias is left out."""
    errors = {}
    for name in want:
        if config["kind"] == "gpt" and name.endswith("attn.qkv.bias"):
            width = config["width"]
            for part, rows in (("q", slice(0, width)), ("k", slice(width, 2 * width)), ("v", slice(2 * width, None))):
                if part == "k" and what == "params" and adam:
                    continue
                scale = want[name] if part == "k" and what == "grads" else None
                errors[f"{name}[{part}]"] = relative(got[name][rows], want[name][rows], scale)
        else:
            errors[name] = relative(got[name], want[name])
    return errors


class Report:
    def __init__(self):
        self.failures = 0

    def line(self, label, errors, limit):
        """Prints a line with the worst of `errors`, and a line for each of the five worst above the limit."""
        worst = max(errors, key=errors.get)
        bad = {name: e for name, e in errors.items() if not e <= limit}
        print(f"{'FAIL' if bad else 'ok  '} {label}: worst {errors[worst]:.1e} ({worst}), limit {limit:.0e}, "
              f"{len(errors)} compared")
        for name, error in sorted(bad.items(), key=lambda item: -item[1])[:5]:
            print(f"     {label}: {name} differs by {error:.2e}")
        self.failures += bool(bad)

    def broken(self, label, text):
        print(f"FAIL {label}: {text}")
        self.failures += 1


def compare(report, label, config, optim, dtype, out, want):
    limits = LIMITS[dtype]
    loss, losses = (np.load(os.path.join(out, f)).astype(np.float64) for f in ("loss.npy", "losses.npy"))
    if loss.shape != (1,) or losses.shape != (STEPS,):
        raise ValueError(f"loss.npy has shape {loss.shape}, losses.npy {losses.shape}; want (1,) and ({STEPS},)")
    report.line(f"{label} loss", {"loss": relative(loss[0], want["loss"])}, limits["loss"])
    adam = optim["kind"] == "adamw"
    got = read_arrays(os.path.join(out, "grads"), want["grads"])
    report.line(f"{label} grads", parameter_errors(config, got, want["grads"], "grads", adam), limits["grads"])
    report.line(f"{label} losses of ten steps",
                {f"step {i}": relative(losses[i], want["losses"][i]) for i in range(STEPS)}, limits["losses"])
    got = read_arrays(os.path.join(out, "params"), want["params"])
    report.line(f"{label} params after ten steps", parameter_errors(config, got, want["params"], "params", adam),
                limits["params"])
    if want["buffers"] and os.path.isdir(os.path.join(out, "buffers")):
        got = read_arrays(os.path.join(out, "buffers"), want["buffers"])
        report.line(f"{label} running statistics", {n: relative(got[n], want["buffers"][n]) for n in got},
                    limits["buffers"])


def run_case(report, program, name, dtypes, seed, folder):
    config, batch, length, optim, *ranks = CASES[name]
    ranks = ranks[0] if ranks else 1
    launcher = ["timeout", "-k", "5", "300", "mpirun", "-np", str(ranks)] if ranks > 1 else []
    model = make_model(config, seed)
    inputs, targets = make_inputs(config, model, batch, length, seed)
    source = os.path.join(folder, name, "in")
    write_case(source, config, optim, model, inputs, targets)
    want = run_torch(model, optim, inputs, targets)
    for dtype in dtypes:
        label, out = f"{name} {dtype}", os.path.join(folder, name, dtype)
        os.makedirs(out)
        command = [*launcher, *program, "--model", config["kind"], "--dtype", dtype, "--seed", str(seed), "--ranks", str(ranks),
                   "--in", source, "--out", out]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=310,
                              env=tandem_program.MPI_ENV)
        if done.returncode != 0:
            report.broken(label, f"tandem_parity ended with {done.returncode}: {done.stdout.strip()[-500:]}")
            continue
        try:
            compare(report, label, config, optim, dtype, out, want)
        except (OSError, ValueError) as error:
            report.broken(label, str(error))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", nargs="+", default=[os.environ.get("TANDEM_PARITY", "build/tandem_parity")],
                        help="the tandem_parity command")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--dtypes", nargs="+", default=["f64", "f32"], choices=["f64", "f32"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", metavar="DIR", help="leave the exchanged files in this new folder")
    args = parser.parse_args()
    report = Report()
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.cases:
            run_case(report, args.program, name, args.dtypes, args.seed, args.keep or scratch)
    print(f"parity with PyTorch {torch.__version__}: "
          f"{'all agree' if not report.failures else f'{report.failures} checks FAILED'}")
    sys.exit(1 if report.failures else 0)


if __name__ == "__main__":
    main()
