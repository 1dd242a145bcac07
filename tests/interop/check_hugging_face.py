#!/usr/bin/env python3
"""Compares models that transformers made with what the program makes of them: logits, texts, ten steps of training, and what
it exports again.

    check_hugging_face.py PATH_TO_TANDEM [unittest arguments]

Part of tests/nightly.sh, because it needs transformers 5 and a recent PyTorch. With TANDEM_REQUIRE_INTEROP=1 they are
installed beside the program, in a folder interop-venv, unless this Python has them; otherwise their lack skips the check.

Exit codes: 0 all agree, 1 something differs or cannot be installed, 77 a package is missing.
"""
import glob
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[1:1] = [os.path.join(HERE, "..", "parity"), os.path.join(HERE, "..", "program")]

import packages

packages.require("check of Hugging Face models", "transformers", "torch", "safetensors", "numpy")

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

import tandem_program
from sample_order import sample, window_start, windows
from tandem_program import Workspace, losses, run, words

CONTEXT, VOCAB, STEPS, SEED, BATCH = 48, 260, 10, 11, 6  # bytes have 256 tokens
TOKENS = [(7 * i * i + 3 * i) % VOCAB for i in range(CONTEXT)]
SIZES = {"gpt": dict(vocab_size=VOCAB, n_positions=CONTEXT, n_embd=48, n_layer=3, n_head=4),
         "llama": dict(vocab_size=VOCAB, max_position_embeddings=CONTEXT, hidden_size=64, intermediate_size=88,
                       num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2)}
SIZES["qwen2"] = SIZES["qwen3"] = SIZES["mistral"] = SIZES["llama"]
# Of the pairs of a head, one keeps its frequency, one is in between, and two are divided.
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 320}
# transformers computes in f64, but cosines and sines in f32, and both read the same weights. What remains is f32's rounding
# here: about a hundred roundings of 2^-24 between input and logits.
LOGITS = 2e-5
# Losses, and the change of each tensor in ten steps; AdamW's eps is large enough that it does not amplify noise.
TRAINING = 1e-4
ADAMW = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-4, "weight_decay": 0.1}


def make(kind, folder, dtype=torch.float32, rename=None, config=(), shard="5GB", **settings):
    """Saves a random model with numbers large enough to matter. `rename`: a change of each tensor's name."""
    family = {"gpt": "GPT2", "llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}[kind]
    configuration = getattr(transformers, family + "Config")
    model = getattr(transformers, family + ("LMHeadModel" if kind == "gpt" else "ForCausalLM"))
    torch.manual_seed(3)
    made = model(configuration(**{**SIZES[kind], "bos_token_id": 0, "eos_token_id": 0, **settings}))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
            else:
                parameter.add_(0.2 * torch.randn_like(parameter))
    made.to(dtype).save_pretrained(folder, max_shard_size=shard)
    if rename:
        path = os.path.join(folder, "model.safetensors")
        tensors = {rename(name): tensor for name, tensor in load_file(path).items()}
        masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 4, 4) for i in range(3)}
        save_file({**tensors, **masks}, path, {"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path) as file:
        written = json.load(file)
    for key, value in dict(config).items():
        written.pop(key) if value is None else written.update({key: value})
    with open(path, "w") as file:
        json.dump(written, file)
    return folder


CASES = {
    "gpt": dict(kind="gpt", layer_norm_epsilon=1e-6),
    "gpt-untied-inner": dict(kind="gpt", tie_word_embeddings=False, n_inner=80),
    "gpt-without-prefix": dict(kind="gpt", rename=lambda name: name.removeprefix("transformer.")),
    "gpt-bf16-shards": dict(kind="gpt", dtype=torch.bfloat16, shard="120KB"),
    "llama": dict(kind="llama", rms_norm_eps=1e-6),
    "llama-llama3-bf16-shards": dict(kind="llama", dtype=torch.bfloat16, shard="150KB", rope_parameters=LLAMA3),
    "llama-tied-theta": dict(kind="llama", tie_word_embeddings=True,
                             rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
    "llama-linear-fp16": dict(kind="llama", dtype=torch.float16,
                              rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    # As transformers 4 wrote it.
    "llama-old": dict(kind="llama", num_key_value_heads=8, rope_parameters=LLAMA3,
                      config={"rope_parameters": None, "rope_theta": 5e5,
                              "rope_scaling": {key: value for key, value in LLAMA3.items() if key != "rope_theta"}}),
}
# Heads of their own size, with biases and windows; the model is 96 wide.
WIDE = dict(hidden_size=96, num_attention_heads=4)
CASES.update({
    "llama-head-24-bias": dict(kind="llama", **WIDE, head_dim=24, num_key_value_heads=1, attention_bias=True),
    "llama-head-80": dict(kind="llama", **WIDE, head_dim=80, num_key_value_heads=4),
    "llama-head-128": dict(kind="llama", **WIDE, head_dim=128, num_key_value_heads=2),
    "qwen2": dict(kind="qwen2", num_key_value_heads=8),
    "qwen2-tied-head-128-window": dict(kind="qwen2", **WIDE, head_dim=128, tie_word_embeddings=True, use_sliding_window=True,
                                       sliding_window=7, max_window_layers=0),
    "qwen2-unused-window": dict(kind="qwen2", use_sliding_window=True, sliding_window=7, max_window_layers=3),
    "qwen3": dict(kind="qwen3", head_dim=24),
    "qwen3-tied-head-80-bias": dict(kind="qwen3", **WIDE, head_dim=80, num_key_value_heads=1, attention_bias=True, tie_word_embeddings=True),
    "qwen3-default-head-window-bf16": dict(kind="qwen3", **WIDE, num_key_value_heads=4, dtype=torch.bfloat16, use_sliding_window=True,
                                           sliding_window=5, max_window_layers=0, config={"head_dim": None}),
    "mistral-window": dict(kind="mistral", sliding_window=9),
    "mistral-head-24-window-of-one": dict(kind="mistral", **WIDE, head_dim=24, num_key_value_heads=1, sliding_window=1),
    "mistral-long-window-bf16": dict(kind="mistral", dtype=torch.bfloat16, sliding_window=100),
    "mistral-no-window": dict(kind="mistral", sliding_window=None, num_key_value_heads=1)})
TRAINED = ["gpt", "llama-llama3-bf16-shards", "llama-tied-theta", "llama-head-24-bias", "qwen2-tied-head-128-window",
           "qwen3", "qwen3-tied-head-80-bias", "mistral-window"]


class HuggingFace(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.text_tokens = np.frombuffer(words(400).encode(), np.uint8).astype(np.int64)
        with open(cls.path("few.txt"), "wb") as file:
            file.write(bytes(cls.text_tokens.astype(np.uint8)))
        cls.data = cls.path("few.h5")
        cls.check(run("prepare", "text", "--input", cls.path("few.txt"), "--output", cls.data, "--tokenizer", "bytes"))
        cls.models = {}
        for name, case in CASES.items():
            cls.models[name] = make(folder=cls.path(name), **case)

    def f32(self, what, path, *tokens):
        program = os.path.join(os.path.dirname(tandem_program.TANDEM), "tandem_interop")
        done = subprocess.run([program, what, path, *map(str, tokens)], stdout=subprocess.PIPE, check=True)
        return np.frombuffer(done.stdout, np.float32).astype(np.float64)

    @staticmethod
    def loaded(folder, dtype=torch.float64):
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    def logits(self, folder):
        with torch.no_grad():
            return self.loaded(folder)(torch.tensor([TOKENS])).logits[0].numpy()

    def compare_logits(self, name, got, want):
        error = np.abs(got.reshape(want.shape) - want).max() / np.abs(want).max()
        print(f"{name}: logits are off by {error:.1e} of the largest, {np.abs(want).max():.2f}")
        self.assertLess(error, LOGITS)

    def test_logits(self):
        for name, folder in self.models.items():
            with self.subTest(name):
                self.compare_logits(name, self.f32("logits", folder, *TOKENS), self.logits(folder))

    def test_generation(self):
        """The likeliest tokens, one after the other, with cached keys and values; never one that no byte has."""
        for name, folder in self.models.items():
            with self.subTest(name), torch.no_grad():
                model, tokens = self.loaded(folder), list(b"the old ")
                begin = len(tokens)
                while len(tokens) < CONTEXT and 0 not in tokens:  # the end token
                    tokens.append(int(model(torch.tensor([tokens])).logits[0, -1, :256].argmax()))
                done = subprocess.run([tandem_program.TANDEM, "generate", "--checkpoint", folder, "--tokenizer", self.data,
                                       "--prompt", "the old ", "--tokens", str(CONTEXT - begin), "--temperature", "0",
                                       "--threads", "1"], stdout=subprocess.PIPE, check=True)
                want = bytes(token for token in tokens[begin:] if token != 0).decode(errors="replace") + "\n"
                print(f"{name}: {len(tokens) - begin} tokens, {len(set(tokens[begin:]))} of them different")
                self.assertEqual(done.stdout.decode(), want)

    @staticmethod
    def tensors(folder):
        """All tensors of a model by name, with the names that transformers gives them."""
        found = {}
        for file in glob.glob(os.path.join(folder, "*.safetensors")):
            found.update(load_file(file))
        prefix = "transformer." if "h.0.ln_1.weight" in found else ""
        return {prefix + name: tensor for name, tensor in found.items() if not name.endswith(".attn.bias")}

    def test_import_then_export(self):
        """Every tensor has the same bytes, and transformers computes the same; a step without learning comes between."""
        for name, folder in self.models.items():
            with self.subTest(name):
                want, out = self.tensors(folder), self.path(name + "-out")
                stored = CASES[name].get("dtype", torch.float32)
                dtype = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "fp16"}[stored]
                self.check(run("train", "--checkpoint.init_from", folder, "--data.path", self.data, "--run.name", name,
                               "--run.dir", self.path("same"), "--run.device", "cpu", "--log.progress", "none",
                               "--train.steps", 1, "--train.global_batch", 1, "--optim.lr", 0, "--optim.min_lr", 0))
                self.check(run("export", "--checkpoint", self.path("same/" + name), "--output", out, "--dtype", dtype))
                got = self.tensors(out)
                self.assertEqual(got.keys(), want.keys())
                for tensor in want:
                    self.assertTrue(torch.equal(got[tensor], want[tensor]) and got[tensor].dtype == want[tensor].dtype, tensor)
                self.compare_logits(name + " exported", self.logits(out), self.logits(folder))

    def test_shards_were_made(self):
        for name in self.models:
            files = [file for file in os.listdir(self.models[name]) if file.endswith(".safetensors")]
            self.assertEqual(len(files) > 1, "shards" in name, files)

    def batch(self, step):
        # The first 90 % are for training.
        train = self.text_tokens[:int(len(self.text_tokens) * 0.9)]
        size = windows(CONTEXT, len(train))
        starts = [window_start(SEED, *sample(SEED, step * BATCH + i, size), CONTEXT, len(train)) for i in range(BATCH)]
        rows = torch.from_numpy(np.stack([train[start:start + CONTEXT + 1] for start in starts]))
        return rows[:, :-1], rows[:, 1:]

    def train_with_torch(self, folder):
        model = self.loaded(folder)
        matrices = [p for p in model.parameters() if p.dim() > 1]
        optimizer = torch.optim.AdamW([{"params": matrices}, {"params": [p for p in model.parameters() if p.dim() < 2],
                                                               "weight_decay": 0}], **ADAMW)
        found = []
        for step in range(STEPS):
            tokens, targets = self.batch(step)
            optimizer.zero_grad()
            logits = model(tokens).logits
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
            optimizer.step()
            found.append(loss.item())
        return found, model

    def test_ten_steps(self):
        settings = {"run.seed": SEED, "run.device": "cpu", "run.threads": 1, "run.dir": self.path("runs"),
                    "log.progress": "none", "run.watch_spot": "off", "data.path": self.data, "train.steps": STEPS,
                    "train.global_batch": BATCH, "train.log_every": 1, "optim.lr": ADAMW["lr"],
                    "optim.schedule": "constant", "optim.warmup_steps": 0,
                    "optim.beta1": ADAMW["betas"][0], "optim.beta2": ADAMW["betas"][1], "optim.eps": ADAMW["eps"],
                    "optim.weight_decay": ADAMW["weight_decay"], "optim.clip_norm": 1}
        for name in TRAINED:
            curve, model = self.train_with_torch(self.models[name])
            after = self.path(name + "-after")
            model.float().save_pretrained(after)
            before, want = self.f32("weights", self.models[name]), self.f32("weights", after)
            moved = np.linalg.norm(want - before)
            for ranks, zero in [(1, 0), (3, 0), (3, 3)]:
                with self.subTest(name, ranks=ranks, zero=zero):
                    run_name = f"{name}-{ranks}-{zero}"
                    given = {**settings, "run.name": run_name, "dist.zero": zero, "checkpoint.init_from": self.models[name]}
                    spelled = [word for key, value in given.items() for word in ("--" + key, value)]
                    self.check(run("train", *spelled, ranks=ranks))
                    got = list(losses(self.run_folder(run_name)).values())
                    worst = max(abs(ours - theirs) / theirs for ours, theirs in zip(got, curve, strict=True))
                    error = np.linalg.norm(self.f32("weights", self.run_folder(run_name)) - want) / moved
                    print(f"{run_name}: losses {curve[0]:.3f} to {curve[-1]:.3f} are off by {worst:.1e}, "
                          f"weights by {error:.1e} of how far they came")
                    self.assertLess(curve[-1], 0.8 * curve[0])
                    self.assertLess(worst, TRAINING)
                    self.assertLess(error, TRAINING)


if __name__ == "__main__":
    tandem_program.main()
