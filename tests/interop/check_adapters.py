#!/usr/bin/env python3
"""Compares adapters with peft's: ten steps of training, and the logits of what the program exports.

    check_adapters.py PATH_TO_TANDEM [unittest arguments]

Part of tests/nightly.sh, with check_hugging_face.py, whose models, batches and bounds are used here.

Exit codes: 0 all agree, 1 something differs or cannot be installed, 77 a package is missing.
"""
import json
import os
import shutil
import sys
import unittest
import warnings

import packages

packages.require("check of adapters", "peft", "transformers", "torch", "safetensors", "numpy")

import check_hugging_face
import numpy as np
import peft
import torch
from check_hugging_face import ADAMW, BATCH, CONTEXT, LOGITS, SEED, STEPS, TRAINING, VOCAB
from safetensors.torch import load_file

import tandem_program
from tandem_program import losses, run

RANK, ALPHA = 4, 8
CASES = {"gpt-all": ("gpt", "all"), "gpt-two": ("gpt", "c_attn,mlp.c_proj"),
         "llama-all": ("llama", "all"), "llama-two": ("llama", "q_proj,v_proj")}
SETTINGS = {"run.seed": SEED, "run.device": "cpu", "run.threads": 1, "log.progress": "none", "run.watch_spot": "off",
            "train.steps": STEPS, "train.global_batch": BATCH, "train.log_every": 1, "optim.lr": ADAMW["lr"],
            "optim.schedule": "constant", "optim.warmup_steps": 0, "optim.beta1": ADAMW["betas"][0],
            "optim.beta2": ADAMW["betas"][1], "optim.eps": ADAMW["eps"], "optim.weight_decay": ADAMW["weight_decay"],
            "optim.clip_norm": 1, "lora.rank": RANK, "lora.alpha": ALPHA}
check_hugging_face.CASES = {"gpt": dict(kind="gpt"), "llama": dict(kind="llama")}  # bases, which its class makes


class Adapters(check_hugging_face.HuggingFace):
    # What whole models must do is not tested again.
    test_logits = test_generation = test_import_then_export = test_shards_were_made = test_ten_steps = None

    def train(self, case, ranks=1, zero=0, recompute="none", **given):
        """Trains adapters and exports them once. Returns the run's folder and peft's."""
        kind, targets = CASES[case]
        name = "-".join(map(str, [case, ranks, zero, recompute, *given.values()]))
        folder, out = self.run_folder(name), self.path(name + "-peft")
        if not os.path.exists(out):
            settings = {**SETTINGS, "run.dir": self.path("runs"), "run.name": name, "data.path": self.data, "dist.zero": zero,
                        "train.recompute": recompute, "lora.targets": targets, "checkpoint.init_from": self.models[kind],
                        **{key.replace("__", "."): value for key, value in given.items()}}
            self.check(run("train", *[word for key, value in settings.items() for word in ("--" + key, value)], ranks=ranks))
            self.check(run("export", folder, "--output", out))
        return folder, out

    def train_with_peft(self, case, start):
        """Trains from the adapters `start`. Returns losses and adapters."""
        kind, targets = CASES[case]
        config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0, bias="none", fan_in_fan_out=kind == "gpt",
                                 task_type="CAUSAL_LM", target_modules="all-linear" if targets == "all" else targets.split(","))
        model = peft.get_peft_model(self.loaded(self.models[kind]), config)
        self.assertEqual(peft.get_peft_model_state_dict(model).keys(), start.keys())
        peft.set_peft_model_state_dict(model, start)
        adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.assertEqual({parameter.dtype for parameter in adapters}, {torch.float64})
        optimizer, found = torch.optim.AdamW(adapters, **ADAMW), []
        for step in range(STEPS):
            tokens, targets = self.batch(step)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(tokens).logits.reshape(-1, VOCAB), targets.reshape(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(adapters, 1)
            optimizer.step()
            found.append(loss.item())
        return found, peft.get_peft_model_state_dict(model)

    @staticmethod
    def adapters(folder):
        return load_file(os.path.join(folder, "adapter_model.safetensors"))

    @staticmethod
    def joined(adapters):
        return np.concatenate([adapters[name].double().numpy().ravel() for name in sorted(adapters)])

    def test_ten_steps_of_adapters(self):
        for case in CASES:
            start = self.adapters(self.train(case, train__steps=1, optim__lr=0, optim__min_lr=0)[1])
            for name, tensor in start.items():  # as peft begins
                bound = 0 if "lora_B" in name else tensor.shape[1] ** -0.5
                self.assertTrue(0.9 * bound <= tensor.abs().max() <= bound, name)
            curve, adapters = self.train_with_peft(case, start)
            want = self.joined(adapters)
            moved = np.linalg.norm(want - self.joined(start))
            for ranks, zero, recompute in [(1, 0, "none"), (3, 0, "none"), (3, 3, "none"), (1, 0, "block")]:
                with self.subTest(case, ranks=ranks, zero=zero, recompute=recompute):
                    folder, out = self.train(case, ranks, zero, recompute)
                    got = list(losses(folder).values())
                    worst = max(abs(ours - theirs) / theirs for ours, theirs in zip(got, curve, strict=True))
                    error = np.linalg.norm(self.joined(self.adapters(out)) - want) / moved
                    print(f"{os.path.basename(folder)}: losses {curve[0]:.3f} to {curve[-1]:.3f} are off by {worst:.1e}, "
                          f"adapters by {error:.1e} of how far they came")
                    self.assertLess(curve[-1], 0.95 * curve[0])
                    self.assertLess(worst, TRAINING)
                    self.assertLess(error, TRAINING)

    def logits(self, model):
        with torch.no_grad():
            return model(torch.tensor([self.tokens])).logits[0].numpy()

    tokens = [(7 * i * i + 3 * i) % VOCAB for i in range(CONTEXT)]

    def logits_of_peft(self, kind, folder):
        return self.logits(peft.PeftModel.from_pretrained(self.loaded(self.models[kind]), folder).eval())

    def test_exported_adapters(self):
        """In peft's folder and merged; with one number or module of peft's settings changed, the logits are others."""
        for case, (kind, targets) in CASES.items():
            with self.subTest(case):
                folder, out = self.train(case)
                merged = self.path(case + "-merged")
                self.check(run("export", folder, "--output", merged, "--merge"))
                want = self.logits_of_peft(kind, out)

                def off(logits):
                    return np.abs(logits - want).max() / np.abs(want).max()

                whole, own = off(self.logits(self.loaded(merged))), off(self.f32("logits", merged, *self.tokens).reshape(want.shape))
                without, changed = off(self.logits(self.loaded(self.models[kind]))), {}
                for key, change in {"lora_alpha": lambda alpha: 2 * alpha, "target_modules": lambda modules: modules[1:]}.items():
                    other = shutil.copytree(out, self.path(f"{case}-{key}"))
                    with open(os.path.join(other, "adapter_config.json"), "r+") as file:
                        config = json.load(file)
                        config[key] = change(config[key])
                        file.seek(0)
                        file.truncate()
                        json.dump(config, file)
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # that adapters are left over is meant
                        changed[key] = off(self.logits_of_peft(kind, other))
                print(f"{case}: logits of the merged model are off by {whole:.1e} in transformers and {own:.1e} here; "
                      f"without adapters by {without:.1e}, " + ", ".join(f"other {key} {by:.1e}" for key, by in changed.items()))
                self.assertLess(max(whole, own), LOGITS)
                self.assertGreater(min(without, *changed.values()), 100 * LOGITS)
                before, after = self.tensors(self.models[kind]), self.tensors(merged)
                self.assertEqual(before.keys(), after.keys())
                adapted = {name.removeprefix("base_model.model.").replace("lora_A.", "") for name in self.adapters(out)
                           if "lora_A" in name}
                self.assertEqual({name for name in before if not torch.equal(before[name], after[name])}, adapted)


if __name__ == "__main__":
    tandem_program.main()
