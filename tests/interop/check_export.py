#!/usr/bin/env python3
"""Models that `tandem export` wrote, read by transformers and PyTorch: names, shapes, losses and end tokens.

    check_export.py PATH_TO_TANDEM [unittest arguments]

Part of tests/nightly.sh. Exit codes: 0 all agree, 1 something differs, 77 a package is missing (packages.py).
"""
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "program")]
import packages

packages.require("check of exported models", "transformers", "torch", "safetensors")

import torch
import transformers
from safetensors.torch import load_file

import tandem_program
from tandem_program import Workspace, run, words

CONTEXT = 16
# `tandem eval` prints six decimals, and computes in f32: a hundred roundings of 2^-24 of a loss of 3 are 2e-5.
LOSS = 3e-5
LLAMA3 = ["--model.rope_theta", "500000", "--model.rope_scaling", "llama3", "--model.rope_factor", "8",
          "--model.rope_original_context", "12"]
CASES = {
    "gpt": (None, []),
    "gpt-untied": (2, ["--model.tie_embeddings", "false", "--model.ffn_width", "80", "--model.norm_eps", "1e-6",
                       "--model.positions", "24", "--dist.zero", "1"]),
    "llama": (3, ["--model.kind", "llama", "--model.kv_heads", "1", "--dist.zero", "3", "--model.ffn_width", "56"]),
    "llama-llama3": (2, ["--model.kind", "llama", "--model.tie_embeddings", "false", *LLAMA3, "--dist.zero", "2"]),
    "llama-linear": (None, ["--model.kind", "llama", "--model.rope_scaling", "linear", "--model.rope_factor", "4"]),
    "llama-head-attention-bias": (2, ["--model.kind", "llama", "--model.head_width", "24", "--model.attention_bias", "true"]),
    "qwen2": (None, ["--model.kind", "llama", "--model.qkv_bias", "true"]),
    "qwen3": (2, ["--model.kind", "llama", "--model.qk_norm", "true", "--model.head_width", "24"]),
    "mistral": (None, ["--model.kind", "llama", "--model.sliding_window", "5", "--model.head_width", "24"]),
}


class BasicBlock(torch.nn.Module):
    """torchvision's, with the shortcut of He et al. that has no parameters (option A)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.stride = 1 if inputs == outputs else 2
        self.conv1 = torch.nn.Conv2d(inputs, outputs, 3, self.stride, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(outputs)
        self.conv2 = torch.nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(outputs)

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        skipped = x[:, :, ::self.stride, ::self.stride]
        return torch.relu(y + torch.nn.functional.pad(skipped, (0, 0, 0, 0, 0, y.shape[1] - x.shape[1])))


class ResNet8(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 16, 3, 1, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(16)
        for stage, (inputs, outputs) in enumerate([(16, 16), (16, 32), (32, 64)], 1):
            setattr(self, f"layer{stage}", torch.nn.Sequential(BasicBlock(inputs, outputs)))
        self.fc = torch.nn.Linear(64, classes)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


class Exported(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.validation = words(3000)[int(len(words(3000)) * 0.9):]  # the last tenth
        cls.bytes = cls.path("bytes.h5")
        cls.check(run("prepare", "text", "--input", cls.text_file, "--output", cls.bytes, "--tokenizer", "bytes"))

    def exported(self, name, *arguments):
        folder = self.path("exported-" + "-".join([name, *arguments]))
        self.check(run("export", "--checkpoint", self.run_folder(name), "--output", folder, *arguments))
        return folder

    def load(self, folder, dtype):
        """The model; its files must have exactly the tensors that it has."""
        model, found = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
        for problem in ["missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"]:
            self.assertFalse(found.get(problem), f"{problem}: {found.get(problem)}")
        return model.eval()

    def loss_of(self, model, tokens):
        """Every target of the validation part once, in windows of the context."""
        total, count = 0.0, 0
        with torch.no_grad():
            for start in range(0, len(tokens) - 1, CONTEXT):
                window = tokens[start:start + CONTEXT + 1]
                logits = model(window[None, :-1]).logits[0]
                total += torch.nn.functional.cross_entropy(logits.double(), window[1:], reduction="sum").item()
                count += len(window) - 1
        return total / count, count

    def eval(self, name):
        shown = self.check(run("eval", "--checkpoint", self.run_folder(name))).stdout
        return (float(re.search(r"val_loss +(\S+)", shown)[1]), int(re.search(r"targets +(\d+)", shown)[1]))

    def test_losses(self):
        for name, (ranks, settings) in CASES.items():
            with self.subTest(name):
                self.train(name, *settings, "--optim.lr", "0.03", "--train.steps", "100", ranks=ranks,
                           data=self.bytes if name == "gpt" else self.text)
                folder = self.exported(name)
                # AutoTokenizer reads every tokenizer of a Qwen2 as Qwen's own.
                reader = transformers.PreTrainedTokenizerFast if name == "qwen2" else transformers.AutoTokenizer
                tokenizer = reader.from_pretrained(folder)
                tokens = tokenizer(self.validation, return_tensors="pt")["input_ids"][0]
                self.assertEqual(tokenizer.decode(tokens), self.validation)
                ours, targets = self.eval(name)
                theirs, count = self.loss_of(self.load(folder, torch.float64), tokens)
                print(f"{name}: loss {ours:.6f} here, {theirs:.6f} there")
                self.assertEqual(targets, count)
                self.assertLess(theirs, 2.5)  # of random letters: 3
                self.assertLess(abs(ours - theirs), LOSS)

    def test_types_and_shards(self):
        self.train("types", "--model.kind", "llama", "--train.steps", "2")
        whole = self.load(self.exported("types"), "auto").state_dict()
        for word, dtype in [("bf16", torch.bfloat16), ("fp16", torch.float16)]:
            model = self.load(self.exported("types", "--dtype", word, "--shard-gb", "0.00001"), "auto")
            self.assertEqual(model.dtype, dtype)
            for key, value in model.state_dict().items():
                self.assertTrue(torch.equal(value, whole[key].to(dtype)), key)

    def test_an_imported_model_keeps_every_byte(self):
        sizes = dict(vocab_size=40, bos_token_id=0, eos_token_id=3)
        for name, model in [
                ("gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(
                    **sizes, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, layer_norm_epsilon=1e-6))),
                ("llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(
                    **sizes, max_position_embeddings=CONTEXT, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, rope_parameters={"rope_type": "linear", "rope_theta": 5e5,
                                                                                   "factor": 2.0})))]:
            for word, dtype in [("f32", torch.float32), ("bf16", torch.bfloat16)]:
                with self.subTest(name, dtype=word):
                    source, target = self.path(f"{name}-{word}"), self.path(f"{name}-{word}-back")
                    model.to(dtype).save_pretrained(source, max_shard_size="30KB")
                    self.check(run("export", "--checkpoint", source, "--output", target, "--dtype", word))
                    before, after = self.load(source, dtype), self.load(target, "auto")
                    self.assertEqual(before.state_dict().keys(), after.state_dict().keys())
                    for key, value in before.state_dict().items():
                        self.assertTrue(torch.equal(value, after.state_dict()[key]), key)
                    tokens = torch.arange(CONTEXT)[None] % 40
                    with torch.no_grad():
                        self.assertTrue(torch.equal(before(tokens).logits, after(tokens).logits))
                    self.assertEqual(after.config.eos_token_id, 3)

    def test_resnet(self):
        self.make_digits()
        self.train("digits", "--model.kind", "resnet", "--model.depth", "8", data=self.digits)
        tensors = load_file(os.path.join(self.exported("digits"), "model.safetensors"))
        model = ResNet8(4)
        model.load_state_dict(tensors)
        model.eval()
        with open(os.path.join(self.path("digits"), "t10k-images-idx3-ubyte"), "rb") as file:
            pixels = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8).reshape(-1, 1, 8, 8)
        with open(os.path.join(self.path("digits"), "t10k-labels-idx1-ubyte"), "rb") as file:
            labels = torch.frombuffer(bytearray(file.read()[8:]), dtype=torch.uint8).long()
        with open(os.path.join(self.path("digits"), "train-images-idx3-ubyte"), "rb") as file:
            train = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8).double() / 255
        images = (pixels.double() / 255 - train.mean()) / train.std(unbiased=False)
        with torch.no_grad():
            theirs = torch.nn.functional.cross_entropy(model.double()(images), labels).item()
        ours, _ = self.eval("digits")
        print(f"resnet: loss {ours:.6f} here, {theirs:.6f} there")
        self.assertLess(abs(ours - theirs), LOSS * max(1, theirs))


if __name__ == "__main__":
    tandem_program.main()
