#!/usr/bin/env python3
"""Compares adapters with peft's: ten steps of training, and the logits of what the program exports and of what peft saved.

    check_adapters.py PATH_TO_TANDEM [unittest arguments]

Part of tests/nightly.sh, with check_hugging_face.py, whose models, batches and bounds are used here.
Exit codes: 0 all agree, 1 something differs or cannot be installed, 77 a package is missing.
"""
import json
import os
import re
import shutil
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
from tandem_program import DATA, losses, run

RANK, ALPHA = 4, 8
TOKENS = [(7 * i * i + 3 * i) % VOCAB for i in range(CONTEXT)]
CASES = {"gpt-all": ("gpt", "all"), "gpt-two": ("gpt", "c_attn,mlp.c_proj"),
         "llama-all": ("llama", "all"), "llama-two": ("llama", "q_proj,v_proj")}
SETTINGS = {"run.seed": SEED, "run.device": "cpu", "run.threads": 1, "log.progress": "none", "run.watch_spot": "off",
            "train.steps": STEPS, "train.global_batch": BATCH, "train.log_every": 1, "optim.lr": ADAMW["lr"],
            "optim.schedule": "constant", "optim.warmup_steps": 0, "optim.beta1": ADAMW["betas"][0],
            "optim.beta2": ADAMW["betas"][1], "optim.eps": ADAMW["eps"], "optim.weight_decay": ADAMW["weight_decay"],
            "optim.clip_norm": 1, "lora.rank": RANK, "lora.alpha": ALPHA}
check_hugging_face.CASES = {"gpt": dict(kind="gpt"), "llama": dict(kind="llama")}  # Its class makes these bases.


class Adapters(check_hugging_face.HuggingFace):
    # What whole models must do is not tested again.
    test_logits = test_generation = test_import_then_export = test_shards_were_made = test_ten_steps = None

    def trained(self, case, ranks=1, zero=0, recompute="none", **given):
        """The folder of a run that trains adapters, and what it exports for peft; made by the first call."""
        kind, targets = CASES[case]
        name = "-".join(map(str, [case, ranks, zero, recompute, *given]))
        folder, out = self.run_folder(name), self.path(name + "-peft")
        if not os.path.exists(out):
            settings = {**SETTINGS, "run.dir": self.path("runs"), "run.name": name, "data.path": self.data, "dist.zero": zero,
                        "train.recompute": recompute, "lora.targets": targets, "checkpoint.init_from": self.models[kind], **given}
            self.check(run("train", *[word for key, value in settings.items() for word in ("--" + key, value)], ranks=ranks))
            self.check(run("export", folder, "--output", out))
        return folder, out

    def train_with_peft(self, case, start):
        """Trains from the adapters `start`. Returns losses and adapters."""
        kind, layers = CASES[case]
        config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0, bias="none", fan_in_fan_out=kind == "gpt",
                                 task_type="CAUSAL_LM", target_modules="all-linear" if layers == "all" else layers.split(","))
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
        return found, self.joined(peft.get_peft_model_state_dict(model))

    @staticmethod
    def adapters(folder):
        return load_file(os.path.join(folder, "adapter_model.safetensors"))

    @staticmethod
    def joined(adapters):
        return np.concatenate([adapters[name].double().numpy().ravel() for name in sorted(adapters)])

    def test_ten_steps_of_adapters(self):
        for case in CASES:
            start = self.adapters(self.trained(case, **{"train.steps": 1, "optim.lr": 0, "optim.min_lr": 0})[1])
            for name, tensor in start.items():  # Peft begins with such numbers.
                bound = 0 if "lora_B" in name else tensor.shape[1] ** -0.5
                self.assertTrue(0.9 * bound <= tensor.abs().max() <= bound, name)
            curve, want = self.train_with_peft(case, start)
            moved = np.linalg.norm(want - self.joined(start))
            for ranks, zero, recompute in [(1, 0, "none"), (3, 0, "none"), (3, 3, "none"), (1, 0, "block")]:
                with self.subTest(case, ranks=ranks, zero=zero, recompute=recompute):
                    folder, out = self.trained(case, ranks, zero, recompute)
                    got = list(losses(folder).values())
                    worst = max(abs(ours - theirs) / theirs for ours, theirs in zip(got, curve, strict=True))
                    error = np.linalg.norm(self.joined(self.adapters(out)) - want) / moved
                    print(f"{os.path.basename(folder)}: losses {curve[0]:.3f} to {curve[-1]:.3f} are off by {worst:.1e}, "
                          f"adapters by {error:.1e} of how far they came")
                    self.assertLess(curve[-1], 0.95 * curve[0])
                    self.assertLess(worst, TRAINING)
                    self.assertLess(error, TRAINING)

    @staticmethod
    def logits(model):
        with torch.no_grad():
            return model(torch.tensor([TOKENS])).logits[0].numpy()

    def logits_of_peft(self, kind, folder):
        return self.logits(peft.PeftModel.from_pretrained(self.loaded(self.models[kind]), folder))

    def test_exported_adapters(self):
        """In peft's folder and merged; with one of peft's settings changed, the logits are others."""
        for case, (kind, _) in CASES.items():
            with self.subTest(case):
                folder, out = self.trained(case)
                merged = self.path(case + "-merged")
                self.check(run("export", folder, "--output", merged, "--merge"))
                want = self.logits_of_peft(kind, out)

                def off(logits):
                    return np.abs(logits - want).max() / np.abs(want).max()

                whole = off(self.logits(self.loaded(merged)))
                own = off(self.f32("logits", merged, *TOKENS).reshape(want.shape))
                with open(os.path.join(out, "adapter_config.json")) as file:
                    config = json.load(file)
                changed = {"no adapters": off(self.logits(self.loaded(self.models[kind])))}
                for key, value in {"lora_alpha": 2 * ALPHA, "target_modules": config["target_modules"][1:]}.items():
                    other = shutil.copytree(out, self.path(f"{case}-{key}"))
                    with open(os.path.join(other, "adapter_config.json"), "w") as file:
                        json.dump({**config, key: value}, file)
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # Adapters without a module are meant.
                        changed["other " + key] = off(self.logits_of_peft(kind, other))
                print(f"{case}: logits of the merged model are off by {whole:.1e} in transformers, {own:.1e} here; with "
                      + ", ".join(f"{what} by {error:.1e}" for what, error in changed.items()))
                self.assertLess(max(whole, own), LOGITS)
                self.assertGreater(min(changed.values()), 100 * LOGITS)
                before, after = ({name: tensor.numpy().tobytes() for name, tensor in self.tensors(model).items()}
                                 for model in (self.models[kind], merged))
                self.assertEqual(before.keys(), after.keys())
                adapted = {name.replace("lora_A.", "") for name in self.adapters(out) if "lora_A" in name}
                self.assertEqual({"base_model.model." + name for name in before if before[name] != after[name]}, adapted)

    def made_by_peft(self, kind, name, **settings):
        """A folder that peft saves, with numbers in all adapters."""
        torch.manual_seed(5)
        config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, task_type="CAUSAL_LM", fan_in_fan_out=kind == "gpt",
                                 **{"target_modules": "all-linear", **settings})
        model = peft.get_peft_model(self.loaded(self.models[kind], torch.float32), config)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data.normal_(0, 0.1)
        model.save_pretrained(self.path(name))
        return self.path(name)

    def loss(self, *model):
        shown = self.check(run("eval", *model, "--data", self.data, "--device", "cpu", "--threads", 1)).stdout
        return float(re.search(r"val_loss +(\S+)", shown)[1])

    def test_adapters_that_peft_made(self):
        for kind, layers in [("gpt", ["c_attn", "mlp.c_proj"]), ("llama", ["q_proj", "v_proj"])]:
            for name, settings in {"all": {}, "two": {"target_modules": layers}, "gaussian": {"init_lora_weights": "gaussian"},
                                   "orthogonal": {"init_lora_weights": "orthogonal", "lora_dropout": 0.1}}.items():
                with self.subTest(kind, adapters=name):
                    model, folder = self.models[kind], self.made_by_peft(kind, f"{kind}-{name}-of-peft", **settings)
                    for to, options in [("-merged", ["--merge"]), ("-again", [])]:
                        self.check(run("export", model, "--adapter", folder, "--output", folder + to, *options))
                    want = self.logits_of_peft(kind, folder)
                    logits = [self.f32("logits", path, *TOKENS).reshape(want.shape) for path in [folder + "-merged", model]]
                    error, without = (np.abs(got - want).max() / np.abs(want).max() for got in logits)
                    print(f"{kind}, {name} of peft: logits are off by {error:.1e} with the adapters, {without:.1e} without")
                    self.assertLess(error, LOGITS)
                    self.assertGreater(without, 100 * LOGITS)
                    # Rounded sums of f32 on the way to a loss, which is printed with six decimals.
                    self.assertAlmostEqual(self.loss(model, "--adapter", folder), self.loss(folder + "-merged"), delta=1e-5)
                    theirs, again = self.adapters(folder), self.adapters(folder + "-again")
                    self.assertEqual(theirs.keys(), again.keys())
                    self.assertTrue(all(torch.equal(theirs[name], again[name]) for name in theirs))

    def test_settings_of_peft_that_are_missing_here(self):
        for key, value in [("init_lora_weights", "pissa"), ("init_lora_weights", "pissa_niter_2"), ("init_lora_weights", "olora"),
                           ("layers_to_transform", [0, 2]), ("exclude_modules", ["v_proj"]), ("rank_pattern", {"q_proj": 2}),
                           ("alpha_pattern", {"q_proj": 2}), ("use_rslora", True), ("use_dora", True), ("modules_to_save", ["lm_head"])]:
            with self.subTest(key, value=value):
                folder = self.made_by_peft("llama", f"missing-{key}-{value}", target_modules=["q_proj", "v_proj"], **{key: value})
                refused = self.check(run("eval", self.models["llama"], "--adapter", folder, "--data", self.data), DATA)
                self.assert_one_line(refused, f"adapter_config.json: {key} = .*is not in this program")


if __name__ == "__main__":
    tandem_program.main()
