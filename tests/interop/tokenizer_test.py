"""What the tests of tokenizers share: a folder, and tandem_tokenizer, the first argument of the command line."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))


class TokenizerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="tandem-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name

    def write(self, name, value):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(value, file)
        return path

    @staticmethod
    def run_program(*words):
        return subprocess.run([PROGRAM, *words], capture_output=True, text=True)

    def encode(self, tokenizer, texts, word="encode"):
        self.write("tokenizer.json", tokenizer)
        return self.run_program(word, self.folder, self.write("texts", texts))

    def repeat(self, tokenizer, texts):
        return self.encode(tokenizer, texts, "repeat")

    def compare_decodings(self, tokenizer, texts, theirs):
        """Texts encoded and decoded; where theirs is None, anything."""
        mine = self.result(self.repeat(tokenizer, texts[:len(theirs)]))
        self.assertEqual([one for one, other in zip(mine, theirs, strict=True) if other not in (None, one)], [])

    def result(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.splitlines()[0])
