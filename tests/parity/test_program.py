#!/usr/bin/env python3
"""Compares five steps of `tandem train` with PyTorch, with no training setting at its default.

test_parity.py compares models and optimizers; this test compares what lies between them and a user's settings. Initial
weights come from a checkpoint of the program. Batches are read from the dataset; the order of samples is computed here too, as
src/data/sampler.h describes it. PyTorch computes in float64.

    test_program.py PATH_TO_TANDEM [unittest arguments]

Exit codes: 0 all agree, 1 something differs, 77 a package is missing (1 if TANDEM_REQUIRE_PARITY=1).
"""
import fnmatch
import math
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "program"), os.path.join(HERE, "..", "interop")]

import packages

packages.require("parity of the program", "torch", "numpy", "h5py")

import h5py
import numpy as np
import torch

import reference
import tandem_program
from run_files import DocumentBatches, TokenBatches, weights_in
from sample_order import sample
from sft_files import store_hash
from tandem_program import Workspace, metrics, run, words

STEPS, SEED = 5, 11
RUN = {"run.seed": SEED, "run.device": "cpu", "run.threads": 1, "log.progress": "none",
       "train.steps": STEPS, "train.log_every": 1}
ADAMW = {"optim.kind": "adamw", "optim.schedule": "linear", "optim.lr": 0.02, "optim.min_lr": 0.004, "optim.warmup_steps": 2,
         "optim.beta1": 0.7, "optim.beta2": 0.8, "optim.eps": 1e-3, "optim.weight_decay": 1.5, "optim.clip_norm": 0.3}
SGD = {"optim.kind": "sgd", "optim.lr": 0.1, "optim.min_lr": 0.03, "optim.warmup_steps": 1, "optim.schedule": "cosine",
       "optim.momentum": 0.6, "optim.nesterov": True, "optim.weight_decay": 0.3, "optim.clip_norm": 2}
WITH_MUON = {**ADAMW, "optim.kind": "muon", "optim.momentum": 0.9}
CASES = {
    "llama": {"model.kind": "llama", "model.layers": 2, "model.heads": 4, "model.kv_heads": 2, "model.width": 32,
              "model.ffn_width": 40, "model.context": 12, "model.tie_embeddings": False,
              "train.global_batch": 10, "train.micro_batch": 5, **ADAMW},
    "gpt": {"model.kind": "gpt", "model.layers": 1, "model.heads": 2, "model.width": 24, "model.ffn_width": 56,
            "model.context": 10, "model.tie_embeddings": False, "model.freeze": "wpe,*.ln_1.gain,*attn.qkv*,blocks.0.mlp.fc.bias",
            "train.global_batch": 7, **ADAMW, "optim.schedule": "constant"},
    "gpt-documents": {"model.kind": "gpt", "model.layers": 2, "model.heads": 2, "model.width": 24, "model.context": 20,
                      "model.tie_embeddings": False, "data.windows": "documents", "train.global_batch": 6, "train.micro_batch": 2,
                      "train.steps": 10, **ADAMW},
    "llama-documents": {"model.kind": "llama", "model.layers": 2, "model.heads": 4, "model.kv_heads": 2, "model.width": 32,
                        "model.context": 20, "model.ffn_width": 40, "model.tie_embeddings": False, "data.windows": "documents", "train.global_batch": 6,
                        "train.micro_batch": 2, "train.steps": 10, **ADAMW},
    "gpt-muon": {"model.kind": "gpt", "model.layers": 2, "model.heads": 2, "model.width": 24, "model.context": 20,
                 "model.tie_embeddings": False, "train.global_batch": 6, "train.steps": 10, **WITH_MUON},
    "llama-muon": {"model.kind": "llama", "model.layers": 2, "model.heads": 4, "model.kv_heads": 2, "model.width": 32,
                   "model.context": 20, "model.ffn_width": 40, "model.tie_embeddings": False, "train.global_batch": 6,
                   "train.steps": 10, **WITH_MUON},
    "mlp": {"model.kind": "mlp", "model.layers": 2, "model.width": 24,
            "train.global_batch": 20, "train.micro_batch": 10, **SGD},
    "resnet": {"model.kind": "resnet", "model.depth": 8, "train.global_batch": 20,
               **SGD, "optim.lr": 0.02, "optim.min_lr": 0.01, "optim.clip_norm": 1.5},
}
# Relative tolerances. f32 rounds by up to 2^-24 = 6e-8. About ten roundings follow each other between the input and a
# loss, about a hundred between the input and a gradient, and later steps start with the errors of earlier ones. AdamW's eps
# is about as large as a gradient's elements, so that AdamW does not amplify noise, and updates are as exact as gradients. The
# error of a weight is divided by how far the weight moved, not by its size: a setting that is ignored gives percents of that.
LOSS, GRADIENT, ROUNDING = 1e-6, 1e-5, 2 ** -24
# Muon lets small singular values of a matrix grow by up to 3.4445^5 = 485, and their errors with them. Few are so small.
MUON = 4 * GRADIENT
EXACT = 1e-12  # f64 on both sides


class Batches:
    """The global batch of each step: (inputs, targets)."""

    def __init__(self, dataset, settings):
        self.batch, self.context = settings["train.global_batch"], settings.get("model.context")
        if self.context:
            by_documents = settings.get("data.windows") == "documents"
            self.texts = (DocumentBatches if by_documents else TokenBatches)(dataset, SEED, self.batch, self.context)
            return
        with h5py.File(dataset) as file:
            train = file["train"]
            images, channels = train["images"][()] / 255, (1, -1, 1, 1)
            self.images = (images - file.attrs["mean"].reshape(channels)) / file.attrs["std"].reshape(channels)
            self.labels, self.size = train["labels"][()].astype(np.int64), len(images)
            self.classes = len(np.unique(self.labels))

    def at(self, step):
        if self.context:
            return tuple(map(torch.from_numpy, self.texts.at(step)))
        indices = [sample(SEED, step * self.batch + i, self.size)[1] for i in range(self.batch)]
        return torch.from_numpy(self.images[indices]), torch.from_numpy(self.labels[indices])

    def model(self, settings):
        config = {key.removeprefix("model."): value for key, value in settings.items() if key.startswith("model.")}
        sizes = {"vocab": self.texts.vocab} if self.context else {"classes": self.classes, "image": list(self.images.shape[1:])}
        return reference.build({**config, **sizes}).double()


def steps_of(settings):
    return settings.get("train.steps", STEPS)


def lr_at(settings, step):
    lr, least, warmup = (settings["optim." + key] for key in ["lr", "min_lr", "warmup_steps"])
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    left = 1 - (step - warmup) / (steps_of(settings) - warmup)
    height = {"constant": 1, "linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2}[settings["optim.schedule"]]
    return least + (lr - least) * height


def train_with_torch(settings, batches, start):
    """Returns the figures of each step, and the weights after the last step."""
    model = batches.model(settings)
    reference.load_parameters(model, start)
    for name, parameter in model.named_parameters():
        frozen = any(fnmatch.fnmatchcase(name, pattern) for pattern in settings.get("model.freeze", "").split(","))
        parameter.requires_grad_(not frozen)
    optimizer = reference.build_optimizer(model, {key.removeprefix("optim."): value for key, value in settings.items()})
    figures = []
    for step in range(steps_of(settings)):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(settings, step)
        optimizer.zero_grad()
        loss = reference.loss_of(model, *batches.at(step))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings["optim.clip_norm"])
        optimizer.step()
        figures.append({"loss": loss.item(), "lr": lr_at(settings, step), "grad_norm": norm.item()})
    return figures, {name: reference.to_tandem(p.detach().numpy()) for name, p in model.named_parameters()}


class Program(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.make_digits()
        # 270 characters to train on: five steps read more than one epoch.
        with open(cls.path("few.txt"), "w") as out:
            out.write(words(100)[:300])
        cls.make_stories(60)
        cls.masked = shutil.copy(cls.stories, cls.path("masked.h5"))  # a third of its tokens is predicted
        with h5py.File(cls.masked, "r+") as file:
            for split in ["train", "val"]:
                file[split]["loss"] = (np.arange(len(file[split]["tokens"])) // 4 % 3 == 0).astype(np.uint8)
        store_hash(cls.masked)
        cls.few = cls.path("few.h5")
        cls.check(run("prepare", "text", "--input", cls.path("few.txt"), "--output", cls.few, "--tokenizer", "char"))

    def program(self, name, settings, data, ranks=None):
        command = {**RUN, **settings, "data.path": data, "run.dir": self.path("runs"), "run.name": name}
        spelled = {key: str(value).lower() if isinstance(value, bool) else value for key, value in command.items()}
        self.check(run("train", *(word for key, value in spelled.items() for word in ("--" + key, value)), ranks=ranks))
        return self.run_folder(name)

    def compare(self, kind, tensor=None, masked=False):
        settings, kind = CASES[kind], kind + (f"-{tensor}" if tensor else "") + ("-masked" if masked else "")
        data = self.few if "model.context" in settings else self.digits
        if "data.windows" in settings:
            data = self.masked if masked else self.stories
        steps = steps_of(settings)
        # The initial weights are not this seed's: they come from a run with another seed and a learning rate of 0.
        still = {"run.seed": 5, "train.steps": 1, "optim.lr": 0, "optim.min_lr": 0}
        start = self.program(kind + "-start", {**settings, **still}, data)
        settings_of_run = {**settings, "checkpoint.init_from": start}
        folder = self.program(kind, {**settings_of_run, **({"dist.tensor": tensor} if tensor else {})}, data, ranks=tensor)
        if tensor:  # one rank saves what the others held, after a step that computes nothing
            self.program(kind, {**settings_of_run, "train.steps": steps + 1, "train.skip_batches": steps + 1}, data)
        before, after = weights_in(start, 1), weights_in(folder, steps + bool(tensor))
        figures, expected = train_with_torch(settings, Batches(data, settings), before)
        clipped = [step["grad_norm"] > settings["optim.clip_norm"] for step in figures]
        self.assertIn(True, clipped, "clipping must bite")
        lines = [line for line in metrics(folder) if "loss" in line]
        self.assertEqual(len(lines), steps)
        for line, want in zip(lines, figures):
            for key, limit in [("lr", EXACT), ("loss", LOSS), ("grad_norm", GRADIENT)]:
                self.assertLessEqual(abs(line[key] - want[key]), limit * want[key], f"{kind}: {key} of step {line['step']}")
        self.assertEqual(after.keys(), expected.keys())
        for name, want in expected.items():
            error, moved = np.linalg.norm(after[name] - want), np.linalg.norm(want - before[name])
            if moved == 0:  # frozen
                self.assertTrue((after[name] == before[name]).all(), name)
                continue
            share = MUON if settings["optim.kind"] == "muon" else GRADIENT
            limit = share * moved + steps * ROUNDING * np.linalg.norm(want)
            self.assertLessEqual(error, limit, f"{kind}: {name} is off by {error / moved:.1e} of how far it came")

    def test_llama(self):
        self.compare("llama")

    def test_gpt(self):
        self.compare("gpt")

    def test_llama_that_ranks_cut(self):
        self.compare("llama", tensor=2)

    def test_gpt_that_ranks_cut(self):
        self.compare("gpt", tensor=2)

    def test_documents(self):
        for kind in ["gpt-documents", "llama-documents"]:
            for tensor in [None, 2]:
                for masked in [False, True]:
                    self.compare(kind, tensor, masked)

    def test_muon(self):
        for kind in ["gpt-muon", "llama-muon"]:
            self.compare(kind)

    def test_mlp(self):
        self.compare("mlp")

    def test_resnet(self):
        self.compare("resnet")


if __name__ == "__main__":
    tandem_program.main()
