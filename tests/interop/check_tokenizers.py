#!/usr/bin/env python3
"""Tokenizers against Hugging Face's `tokenizers`, which is installed for the moment: ids of 40,000 mixed texts, and training.

    check_tokenizers.py build/tandem_tokenizer [unittest arguments]

Part of tests/nightly.sh, because it needs a network: without one it says so, and fails where TANDEM_REQUIRE_INTEROP=1.
TANDEM_GPT2_VOCAB=DIR adds GPT-2's own vocabulary (encoder.json, vocab.bpe), TANDEM_CORPUS=FILE a text to train on.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TEXTS = 40000


def have_tokenizers():
    """Goes on in a new environment that has them where this one has not."""
    try:
        import tokenizers  # noqa: F401
        return True
    except ImportError:
        if os.environ.get("TANDEM_IN_VENV"):
            return False
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder:
        python = os.path.join(folder, "bin", "python")
        if subprocess.run([sys.executable, "-m", "venv", folder]).returncode or \
                subprocess.run([python, "-m", "pip", "install", "--quiet", "tokenizers==0.23.3"]).returncode:
            return False
        sys.exit(subprocess.run([python, *sys.argv], env={**os.environ, "TANDEM_IN_VENV": "1"}).returncode)


if not have_tokenizers():
    print("tests/interop: no `tokenizers` here, and pip cannot install it: not checked", file=sys.stderr)
    sys.exit(1 if os.environ.get("TANDEM_REQUIRE_INTEROP") == "1" else 0)

import tokenizers  # noqa: E402

import make_tokenizers  # noqa: E402
from tokenizer_test import TokenizerTest  # noqa: E402


class CheckTokenizers(TokenizerTest):
    def compare_ids(self, tokenizer, texts):
        mine = self.result(self.encode(json.loads(tokenizer.to_str()), texts))
        theirs = make_tokenizers.ids_of(tokenizer, texts)
        different = [text for text, one, other in zip(texts, mine, theirs, strict=True) if one != other]
        self.assertEqual(different, [])

    def test_ids_and_decodings(self):
        texts = make_tokenizers.mixed_texts(TEXTS, 11)
        count = decoded = 0
        for name, tokenizer in make_tokenizers.all_tokenizers(make_tokenizers.mixed_texts(3000, 12), 3000):
            with self.subTest(name):
                self.compare_ids(tokenizer, texts)
                theirs = make_tokenizers.decoded(tokenizer, texts)
                self.compare_decodings(json.loads(tokenizer.to_str()), texts, theirs)
                count += 1
                decoded += len(theirs) - theirs.count(None)
        print(f"{count} tokenizers, {len(texts)} texts, {sum(map(len, texts))} characters; {decoded} decodings")

    def test_ids_of_gpt2(self):
        folder = os.environ.get("TANDEM_GPT2_VOCAB")
        if not folder:
            self.skipTest("set TANDEM_GPT2_VOCAB to the folder of OpenAI's encoder.json and vocab.bpe")
        model = tokenizers.models.BPE.from_file(*[os.path.join(folder, name) for name in ["encoder.json", "vocab.bpe"]])
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.add_special_tokens(make_tokenizers.SPECIAL[:1])
        self.compare_ids(tokenizer, make_tokenizers.mixed_texts(TEXTS, 13))

    def train(self, texts, size):
        """Training here and there; and a tokenizer.json that was written here is read there."""
        path = self.write("texts", texts)
        theirs = json.loads(make_tokenizers.gpt2_like(texts, size).to_str())["model"]
        for threads in ["1", "4"]:
            mine = self.result(self.run_program("train", str(size), threads, path))
            self.assertEqual(mine["model"]["merges"], theirs["merges"])
            self.assertEqual(mine["model"]["vocab"], theirs["vocab"])
        self.compare_ids(tokenizers.Tokenizer.from_str(json.dumps(mine)), make_tokenizers.mixed_texts(1000, 14))
        print(f"{len(texts)} texts, {sum(map(len, texts))} characters, {len(theirs['merges'])} merges")

    def test_training_on_mixed_scripts(self):
        self.train(make_tokenizers.mixed_texts(20000, 15), 20000)

    def test_training_on_the_sources(self):
        listing = subprocess.run(["git", "ls-files", "-z", "src", "layers", "comm", "optim", "launch", "tests/*.py", "*.md"],
                                 cwd=ROOT, check=True, capture_output=True, text=True)
        texts = []
        for name in listing.stdout.split("\0")[:-1]:
            with open(os.path.join(ROOT, name), encoding="utf-8") as file:
                texts.append(file.read())
        self.train(texts, 10000)

    def test_training_on_a_corpus(self):
        if "TANDEM_CORPUS" not in os.environ:
            self.skipTest("set TANDEM_CORPUS to a file of text")
        with open(os.environ["TANDEM_CORPUS"], encoding="utf-8") as file:
            self.train([file.read()], 10000)


if __name__ == "__main__":
    unittest.main(verbosity=2)
