#!/usr/bin/env python3
"""tandem export: what it writes, from any number of ranks, and what it refuses. Usage: test_export.py PATH_TO_TANDEM"""
import array
import glob
import json
import math
import os
import re
import shutil
import struct
import unittest

import tandem_program
from tandem_program import CONFIG, DATA, Workspace, letters_of_bytes, run

FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
STATISTICS = ["--model.kind", "resnet", "--model.depth", "8", "--train.steps", "2"]


def read_safetensors(path):
    """{name: (type, shape, bytes)} of one file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    assert header.pop("__metadata__") == {"format": "pt"}
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])]) for name, entry in header.items()}


def read_folder(folder):
    tensors = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        tensors.update(read_safetensors(path))
    return tensors


def read_json(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return json.load(file)


def values(tensor):
    assert tensor[0] == "F32"
    return array.array("f", tensor[2])


class Export(Workspace):
    def export(self, name, *arguments, code=0):
        folder = self.path(f"exported-{name}-{len(os.listdir(self.folder))}")
        result = run("export", "--checkpoint", self.run_folder(name), "--output", folder, *arguments)
        self.check(result, code)
        return folder, result

    def test_ranks_and_stages_change_nothing(self):
        exact = ["--dist.reduce", "exact", "--train.micro_batch", "1", "--train.steps", "4", "--model.kind", "llama",
                 "--model.kv_heads", "1"]
        self.train("one", *exact)
        self.train("three", *exact, "--dist.zero", "3", ranks=3)
        one, three = self.export("one")[0], self.export("three")[0]
        self.assertEqual(sorted(os.listdir(one)), FILES)
        self.assertEqual(read_folder(one), read_folder(three))
        for name in FILES:
            if name.endswith(".json"):
                self.assertEqual(read_json(one, name), read_json(three, name))

    def test_a_trained_tokenizer_goes_with_its_model(self):
        """The exported folder alone gives the text that the run gives."""
        data = self.path("bpe.h5")
        self.check(run("prepare", "text", "--input", self.text_file, "--output", data, "--tokenizer", "bpe", "--vocab-size", "300"))
        self.train("bpe", "--data.path", data, "--train.steps", "3")
        folder = self.export("bpe")[0]
        texts = [self.check(run("generate", source, "--prompt", "the ", "--tokens", "40", "--seed", "5")).stdout
                 for source in [self.run_folder("bpe"), folder]]
        self.assertGreater(len(texts[0]), 40)
        self.assertEqual(*texts)

    def test_tokenizers(self):
        """char as characters; bytes and gpt2 with the characters that stand for bytes, as in GPT-2's files."""
        vocabulary = self.path("vocabulary")
        os.makedirs(vocabulary)
        shown = letters_of_bytes()
        ids = {shown[byte]: 255 - byte for byte in range(256)}
        ids.update({"th": 256, "\u0120th": 257, "<|endoftext|>": 258})
        with open(os.path.join(vocabulary, "encoder.json"), "w") as file:
            json.dump(ids, file)
        with open(os.path.join(vocabulary, "vocab.bpe"), "w") as file:
            file.write("#version: 0.2\nt h\n\u0120 th\n")
        with open(self.text_file) as file:
            characters = sorted(set(file.read()))
        for kind, expected, merges, end in [
                ("char", {character: i for i, character in enumerate(characters)}, [], None),
                ("bytes", {shown[byte]: byte for byte in range(256)}, [], None),
                ("gpt2", ids, [["t", "h"], ["\u0120", "th"]], 258)]:
            with self.subTest(kind):
                data = self.path(f"{kind}.h5")
                more = ["--vocab", vocabulary] if kind == "gpt2" else []
                self.check(run("prepare", "text", "--input", self.text_file, "--output", data, "--tokenizer", kind, *more))
                self.train("with-" + kind, "--train.steps", "1", data=data)
                folder = self.export("with-" + kind)[0]
                written = read_json(folder, "tokenizer.json")
                self.assertEqual(written["model"]["vocab"], expected)
                self.assertEqual(written["model"]["merges"], merges)
                self.assertEqual((written["pre_tokenizer"] or {}).get("use_regex"), {"bytes": False, "gpt2": True}.get(kind))
                self.assertEqual([token["id"] for token in written["added_tokens"]], [end] if end else [])
                self.assertEqual(read_json(folder, "tokenizer_config.json").get("eos_token"), "<|endoftext|>" if end else None)
                for name in ["config.json", "generation_config.json"]:
                    self.assertEqual(read_json(folder, name)["eos_token_id"], end)
                again = self.path(f"{kind}-again.h5")  # what was exported is read back, and gives the same tokens
                self.check(run("prepare", "text", "--input", self.text_file, "--output", again, "--tokenizer", folder))
                losses = [re.search(r"val_loss +(\S+)", self.check(run("eval", "--checkpoint", folder, "--data", path)).stdout)[1]
                          for path in [data, again]]
                self.assertEqual(*losses)

    def test_tokens_before_and_after_a_text(self):
        """A tokenizer whose texts begin with a token of their own: it is the model's bos, the end of text its eos."""
        tokenizer = self.path("with-start")
        self.check(run("prepare", "text", "--input", self.text_file, "--output", self.path("start.h5"), "--tokenizer", "bpe",
                       "--vocab-size", "300"))
        self.train("ends", "--train.steps", "1", data=self.path("start.h5"))
        shutil.copytree(self.export("ends")[0], tokenizer)
        written = read_json(tokenizer, "tokenizer.json")
        start = 1 + max([*written["model"]["vocab"].values(), written["added_tokens"][0]["id"]])
        written["added_tokens"].append({**written["added_tokens"][0], "id": start, "content": "<s>"})
        written["post_processor"] = {"type": "TemplateProcessing", "pair": [], "special_tokens": {
            "<s>": {"id": "<s>", "ids": [start], "tokens": ["<s>"]}},
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}
        with open(os.path.join(tokenizer, "tokenizer.json"), "w") as out:
            json.dump(written, out)
        self.check(run("prepare", "text", "--input", self.text_file, "--output", self.path("begins.h5"), "--tokenizer", tokenizer))
        self.train("begins", "--train.steps", "1", data=self.path("begins.h5"))
        folder = self.export("begins")[0]
        end = read_json(tokenizer, "config.json")["eos_token_id"]
        for name in ["config.json", "generation_config.json"]:
            self.assertEqual((read_json(folder, name)["bos_token_id"], read_json(folder, name)["eos_token_id"]), (start, end))
        named = read_json(folder, "tokenizer_config.json")
        self.assertEqual((named["bos_token"], named["eos_token"]), ("<s>", "<|endoftext|>"))
        # A model of theirs keeps its own, or has those of the tokenizer that is given.
        several = {"bos_token_id": 7, "eos_token_id": [5, end]}
        for own, expected in [(several, several), ({}, {"bos_token_id": start, "eos_token_id": end})]:
            with open(os.path.join(folder, "generation_config.json"), "w") as out:
                json.dump(own, out)
            again = self.path("begins-again" + "-without" * (not own))
            self.check(run("export", folder, "--output", again, "--tokenizer", self.path("begins.h5")))
            for name in ["config.json", "generation_config.json"]:
                self.assertLessEqual(expected.items(), read_json(again, name).items())

    def test_a_checkpoint_without_its_tokenizer(self):
        self.train("moved", "--train.steps", "1")
        checkpoint = glob.glob(os.path.join(self.run_folder("moved"), "checkpoints", "step-*"))[0]
        alone, folder = self.path("alone"), self.path("alone-exported")
        shutil.copytree(checkpoint, alone)
        result = self.check(run("export", "--checkpoint", alone, "--output", folder))
        self.assert_one_line(result, "tokenizer.h5: the exported model has no tokenizer")
        self.assertEqual(sorted(os.listdir(folder)), ["config.json", "generation_config.json", "model.safetensors"])
        again = self.path("alone-again")
        self.check(run("export", "--checkpoint", alone, "--output", again, "--tokenizer", self.text))
        self.assertEqual(sorted(os.listdir(again)), FILES)

    def test_shards_and_types(self):
        self.train("types", "--train.steps", "1")
        whole = read_folder(self.export("types")[0])
        split = self.export("types", "--shard-gb", "0.00002")[0]
        self.assertEqual(read_folder(split), whole)
        index = read_json(split, "model.safetensors.index.json")
        self.assertEqual(index["metadata"]["total_size"], sum(len(tensor[2]) for tensor in whole.values()))
        self.assertEqual(set(index["weight_map"]), set(whole))
        self.assertGreater(len(set(index["weight_map"].values())), 2)
        for name, shard in index["weight_map"].items():
            self.assertEqual(read_safetensors(os.path.join(split, shard))[name], whole[name])
        for path in glob.glob(os.path.join(split, "*.safetensors")):
            found = read_safetensors(path)
            self.assertTrue(len(found) == 1 or sum(len(tensor[2]) for tensor in found.values()) <= 20000, path)

        brain = read_folder(self.export("types", "--dtype", "bf16")[0])
        for name, tensor in whole.items():
            bits = array.array("I", tensor[2])
            rounded = array.array("H", [(x + 0x7FFF + (x >> 16 & 1)) >> 16 for x in bits])
            self.assertEqual(brain[name], ("BF16", tensor[1], rounded.tobytes()), name)
        half = read_folder(self.export("types", "--dtype", "fp16")[0])
        for name, tensor in whole.items():
            self.assertEqual(half[name], ("F16", tensor[1], struct.pack(f"<{len(values(tensor))}e", *values(tensor))), name)

    def test_a_resnet_has_the_names_of_torchvision(self):
        self.make_digits()
        self.train("digits", *STATISTICS, data=self.digits)
        refused = self.check(run("export", self.run_folder("digits"), "--output", self.path("no"), "--tokenizer", self.text_file), CONFIG)
        self.assert_one_line(refused, "a resnet has no tokenizer; leave --tokenizer out")
        folder = self.export("digits")[0]
        self.assertEqual(os.listdir(folder), ["model.safetensors"])
        tensors = read_folder(folder)
        self.assertEqual(tensors["conv1.weight"][1], [16, 1, 3, 3])
        self.assertEqual(tensors["layer3.0.conv2.weight"][1], [64, 64, 3, 3])
        self.assertTrue(all(value > 0 for value in values(tensors["layer2.0.bn1.running_var"])))
        self.assertTrue(all(map(math.isfinite, values(tensors["fc.bias"]))))

    def test_what_is_refused(self):
        self.train("fine", "--train.steps", "1")
        checkpoint = self.run_folder("fine")
        taken = self.path("taken")
        os.makedirs(taken)
        here = self.check(run("export", checkpoint, "--output", ".", cwd=taken), CONFIG)
        self.assert_one_line(here, "--output .: is in use .*; name a folder that is not there yet")
        with open(os.path.join(taken, "precious"), "w") as file:
            file.write("mine")
        for arguments, code, said in [
                ((), CONFIG, "--checkpoint and --output are needed"),
                (("--checkpoint", checkpoint), CONFIG, "--checkpoint and --output are needed"),
                (("--checkpoint", checkpoint, "--output", taken), CONFIG, "taken: exists; name another folder"),
                (("--checkpoint", checkpoint, "--output", self.text_file), CONFIG, "exists; name another folder"),
                (("--checkpoint", checkpoint, "--output", self.path("a"), "--dtype", "f64"), CONFIG, "dtype"),
                (("--checkpoint", checkpoint, "--output", self.path("a"), "--shard-gb", "0"), CONFIG, "shard-gb"),
                (("--checkpoint", self.path("none"), "--output", self.path("a")), DATA, "no checkpoint here"),
                (("--checkpoint", checkpoint, "--output", "/proc/no/such"), DATA, "/proc/no")]:
            with self.subTest(said=said, arguments=arguments):
                result = self.check(run("export", *arguments), code)
                self.assertRegex(result.stderr, said)
                self.assertFalse(os.path.exists(self.path("a")))
        self.assertEqual(os.listdir(taken), ["precious"])
        self.train("layers", "--model.kind", "mlp", "--train.steps", "1", data=self.images)
        _, result = self.export("layers", code=CONFIG)
        self.assert_one_line(result, "model.kind = mlp is in neither transformers nor torchvision")
        self.assertEqual(glob.glob(self.path("*.partial")), [])

    def test_what_a_failed_export_left_is_replaced(self):
        self.train("again", "--train.steps", "1")
        folder = self.path("again-exported")
        os.makedirs(folder + ".partial")
        with open(os.path.join(folder + ".partial", "model-00001-of-00002.safetensors.partial"), "w") as file:
            file.write("half")
        os.makedirs(folder)  # empty
        self.check(run("export", "--checkpoint", self.path("nowhere"), "--output", folder), DATA)
        os.symlink(folder, self.path("link"))
        linked = self.check(run("export", "--checkpoint", self.run_folder("again"), "--output", self.path("link")), CONFIG)
        self.assert_one_line(linked, "link: exists; name another folder")
        self.assertEqual(os.listdir(folder), [])
        self.check(run("export", "--checkpoint", self.run_folder("again"), "--output", folder + "/"))
        self.assertEqual(sorted(os.listdir(folder)), FILES)
        self.assertFalse(os.path.exists(folder + ".partial"))

    def test_damage_leaves_nothing(self):
        self.train("damaged", "--train.steps", "1")
        checkpoint = glob.glob(os.path.join(self.run_folder("damaged"), "checkpoints", "step-*"))[0]
        damaged = self.path("copy")
        shutil.copytree(checkpoint, damaged)
        with open(os.path.join(damaged, "rank-0000.h5"), "r+b") as file:
            file.seek(-100, os.SEEK_END)
            old = file.read(1)
            file.seek(-100, os.SEEK_END)
            file.write(bytes([old[0] ^ 1]))
        result = self.check(run("export", "--checkpoint", damaged, "--output", self.path("none")), DATA)
        self.assertRegex(result.stderr, "rank-0000.h5")
        self.assertEqual(glob.glob(self.path("none*")), [])


if __name__ == "__main__":
    tandem_program.main()
