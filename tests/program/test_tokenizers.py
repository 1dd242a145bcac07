#!/usr/bin/env python3
"""BPE as users of `tandem` meet it: prepare, train, generate.

    test_tokenizers.py PATH_TO_TANDEM [unittest arguments]
"""
import json
import os
import re
import subprocess

import tandem_program
from tandem_program import CONFIG, DATA, Workspace, run

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop", "tokenizers.json")


class Tokenizers(Workspace):
    def prepare(self, name, *words, code=0):
        done = run("prepare", "text", "--input", self.text_file, "--output", self.path(name), *words)
        return self.check(done, code)

    def generate(self, model, *words):
        return self.check(run("generate", "--checkpoint", model, "--tokens", "50", "--seed", "3", *words)).stdout

    def write(self, name, value):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            json.dump(value, file)

    def test_a_trained_one(self):
        printed = self.prepare("bpe.h5", "--tokenizer", "bpe", "--vocab-size", "280").stdout
        self.assertIn("vocabulary 280 (bpe)", printed)
        self.train("bpe", data=self.path("bpe.h5"))
        model = self.run_folder("bpe")
        os.rename(self.path("bpe.h5"), self.path("moved.h5"))
        self.assertNotEqual(self.generate(model, "--prompt", "the red \u00e9"), "\n")
        self.assertNotEqual(self.generate(model), "\n")
        self.assertIn("tokenizer   bpe, 280 tokens", self.check(run("inspect", self.path("moved.h5"))).stdout)

    @staticmethod
    def golden(name):
        with open(GOLDEN, encoding="ascii") as file:
            return next(case["tokenizer"] for case in json.load(file)["cases"] if case["name"] == name)

    def test_sentence_pieces(self):
        """Exported and read back, the tokenizer gives the same dataset, and the folder the text of the run."""
        self.write("llama2/tokenizer.json", self.golden("Llama 2"))
        self.write("llama2/tokenizer_config.json", {"eos_token": "</s>"})
        self.prepare("llama2.h5", "--tokenizer", self.path("llama2"))
        self.train("llama2", data=self.path("llama2.h5"))
        folder = self.path("llama2-exported")
        self.check(run("export", "--checkpoint", self.run_folder("llama2"), "--output", folder))
        self.prepare("again.h5", "--tokenizer", folder)
        hashes = [re.search(r"hash +(\S+)", self.check(run("inspect", self.path(name))).stdout)[1] for name in ["llama2.h5", "again.h5"]]
        self.assertEqual(*hashes)
        self.assertEqual(self.generate(self.run_folder("llama2"), "--prompt", "the"), self.generate(folder, "--prompt", "the"))

    def test_one_of_hugging_face(self):
        tokenizer = self.golden("Llama 3")
        self.write("hf/tokenizer.json", tokenizer)
        self.assertIn("no eos_token in", self.prepare("hf.h5", "--tokenizer", self.path("hf")).stdout)
        self.write("hf/tokenizer_config.json", {"eos_token": "<|endoftext|>"})
        self.assertNotIn("no eos_token in", self.prepare("hf.h5", "--tokenizer", self.path("hf"), "--force").stdout)
        self.train("hf", data=self.path("hf.h5"))
        model = self.run_folder("hf")
        os.remove(self.path("hf.h5"))
        with_bos = self.generate(model, "--prompt", "the")
        self.assertNotEqual(self.generate(model), "\n")
        # The template puts BOS before the prompt; the model sees it.
        folder = self.path("hf-exported")
        self.check(run("export", model, "--output", folder))
        self.assertEqual(self.generate(folder, "--prompt", "the"), with_bos)
        tokenizer["post_processor"] = None
        self.write("hf-exported/tokenizer.json", tokenizer)
        self.assertNotEqual(self.generate(folder, "--prompt", "the"), with_bos)
        tokenizer["normalizer"] = {"type": "Lowercase"}
        self.write("hf/tokenizer.json", tokenizer)
        refused = self.prepare("no.h5", "--tokenizer", self.path("hf"), code=DATA)
        self.assert_one_line(refused, "normalizer: Lowercase is not supported")
        self.assertFalse(os.path.exists(self.path("no.h5")))

    def test_memory_does_not_grow_with_a_text(self):
        """Of TANDEM_LARGE_TEXT_MIB; 96 MiB took 770 MiB where texts and tokens were held at once."""
        size = int(os.environ.get("TANDEM_LARGE_TEXT_MIB", "96")) << 20
        line = b"hello world, this is a line of a long text\n"
        with open(self.path("large.txt"), "wb") as file:
            while file.tell() < size:
                file.write(line * 10000)

        def peak_mib(text, *tokenizer):
            job = subprocess.Popen([tandem_program.TANDEM, "prepare", "text", "--input", text, "--output", self.path("large.h5"),
                                    "--force", "--tokenizer", *tokenizer], stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(job.pid, 0)
            job.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(job.returncode, 0)
            return usage.ru_maxrss >> 10
        least = peak_mib(self.text_file, "bytes")  # with a GPU's libraries more than 200
        for tokenizer in [["bytes"], ["char"], ["bpe", "--vocab-size", "300"]]:
            self.assertLess(peak_mib(self.path("large.txt"), *tokenizer), max(256, least + 64), tokenizer)

    def test_wrong_words_are_named(self):
        for words, said in [(["nosuch"], "--tokenizer nosuch: no such folder; say char, bytes, gpt2, bpe"),
                            (["bpe"], "--vocab-size is missing"),
                            (["bpe", "--vocab-size", "100"], "--vocab-size 100: allowed are 257"),
                            (["char", "--vocab-size", "300"], "--vocab-size: only --tokenizer bpe"),
                            ([self.folder, "--vocab", self.folder], "--vocab: only --tokenizer gpt2")]:
            self.assert_one_line(self.prepare("no.h5", "--tokenizer", *words, code=CONFIG), said)
        refused = self.prepare("no.h5", "--tokenizer", "bpe", "--vocab-size", "1e3", code=CONFIG)
        self.assertRegex(refused.stderr, "^tandem: command line: vocab-size = 1e3 must be [^\n]*\n$")


if __name__ == "__main__":
    tandem_program.main()
