#!/usr/bin/env python3
"""Tokenizers of Hugging Face's form against what `tokenizers` makes of the same files and texts (tokenizers.json here, written
by tests/interop/make_tokenizers.py).

    test_tokenizers.py build/tandem_tokenizer [unittest arguments]
"""
import copy
import functools
import json
import os
import unittest

from tokenizer_test import TokenizerTest

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(pattern, behavior="Isolated"):
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, BYTE_LEVEL]}


class Tokenizers(TokenizerTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizers.json"), encoding="ascii") as file:
            cls.golden = json.load(file)
        cls.plain = cls.golden["cases"][0]["tokenizer"]

    def test_ids_are_those_of_tokenizers(self):
        self.assertEqual(len(self.golden["cases"]), 16)
        for case in self.golden["cases"]:
            with self.subTest(case["name"]):
                ids = self.result(self.encode(case["tokenizer"], self.golden["texts"]))
                for text, mine, theirs in zip(self.golden["texts"], ids, case["ids"], strict=True):
                    self.assertEqual(mine, theirs, repr(text))
                self.compare_decodings(case["tokenizer"], self.golden["texts"], case["decoded"])

    def test_merges_as_pairs_and_as_text_are_the_same(self):
        legacy = copy.deepcopy(self.plain)
        legacy["model"]["merges"] = [" ".join(pair) for pair in legacy["model"]["merges"]]
        del legacy["model"]["type"]  # as the published GPT-2 has it
        self.assertEqual(self.result(self.encode(legacy, self.golden["texts"])), self.golden["cases"][0]["ids"])

    def test_training_gives_the_merges_of_tokenizers(self):
        texts = self.write("texts", self.golden["trained_on"])
        for threads in ["1", "3"]:
            model = self.result(self.run_program("train", "700", threads, texts))["model"]
            self.assertEqual(model["merges"], self.golden["trained"]["merges"])
            self.assertEqual(model["vocab"], self.golden["trained"]["vocab"])
        self.assertLess(len(model["merges"]), 700 - 257 + 1)

    @staticmethod
    def nested(depth):
        """The file with a pre-tokenizer at that depth."""
        value = 0
        for _ in range(depth - 1):
            value = [value]
        return {"pre_tokenizer": value}

    def test_what_is_not_supported_is_named(self):
        def changed(*path_and_value, of=self.plain):
            tokenizer = copy.deepcopy(of)
            *path, last, value = path_and_value
            place = tokenizer
            for name in path:
                place = place[name]
            place[last] = value
            return tokenizer
        llama2 = next(case["tokenizer"] for case in self.golden["cases"] if case["name"] == "Llama 2")
        pieces = functools.partial(changed, of=llama2)
        metaspace = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"}
        added = {"id": 300, "content": "x y", "special": False, "single_word": True}
        cut = split("a", "Sometimes")
        for tokenizer, said in [
                (changed("normalizer", {"type": "NFKC"}), "normalizer: NFKC is not supported"),
                (changed("truncation", {"max_length": 5}), "truncation is not supported"),
                (changed("pre_tokenizer", None), 'pre_tokenizer: "type" is missing'),
                (changed("pre_tokenizer", {"type": "Whitespace"}), "Whitespace is not supported"),
                (changed("pre_tokenizer", {"type": "Metaspace", "replacement": "_"}), "there is no ByteLevel"),
                (changed("pre_tokenizer", {"type": "Digits"}), "there is no ByteLevel"),
                (changed("pre_tokenizer", {"type": "Sequence", "pretokenizers": [BYTE_LEVEL, {"type": "Digits"}]}),
                 "Digits after ByteLevel"),
                (changed("pre_tokenizer", cut), "behavior 'Sometimes' is not supported"),
                (changed("pre_tokenizer", split(r"\w+")), r"uses '\\w'"),
                (changed("pre_tokenizer", split(r"\p{Han}+")), r"uses '\\p\{Han\}'"),
                (changed("pre_tokenizer", split("[a-z&&[^b]]")), "uses '&&'"),
                (changed("pre_tokenizer", split("a{1,3}+")), r"uses '\}\+'"),
                (changed("pre_tokenizer", split("(?m:a)")), r"uses '\(\?m'"),
                (changed("pre_tokenizer", split("a(b")), "the regular expression is wrong: missing closing parenthesis"),
                (changed("pre_tokenizer", split("a*")), "may match the empty text"),
                (changed("post_processor", {"type": "RobertaProcessing"}), "post_processor RobertaProcessing is not supported"),
                (changed("decoder", {"type": "WordPiece"}), "decoder WordPiece is not supported"),
                (changed("model", {"type": "Unigram", "vocab": []}), "model Unigram is not supported"),
                (changed("model", "byte_fallback", True), "model.byte_fallback with a decoder other than Replace"),
                (pieces("decoder", "decoders", 0, "content", "_"), "model.byte_fallback with a decoder other than Replace"),
                (pieces("pre_tokenizer", BYTE_LEVEL), "ByteLevel does not go with model.byte_fallback"),
                (pieces("pre_tokenizer", {"type": "Metaspace"}), '"replacement" is missing'),
                (pieces("pre_tokenizer", metaspace), "Metaspace with prepend_scheme 'last' is not supported"),
                (pieces("normalizer", {"type": "Replace", "pattern": {"Regex": " +"}, "content": ""}), '"String" is missing'),
                (pieces("model", "vocab", "<0x0A>", 300), "two tokens have the id 300"),
                (pieces("model", "vocab", {"a": 3}), "no token for byte 0"),
                (changed("model", "dropout", 0.1), "model.dropout is not supported"),
                (changed("model", "end_of_word_suffix", "</w>"), "model.end_of_word_suffix is not supported"),
                (changed("added_tokens", [added]), "added token 'x y' with single_word, lstrip or rstrip is not supported"),
                (changed("model", "merges", self.plain["model"]["merges"][:1] * 2), "a merge stands there twice"),
                (changed("model", "merges", [["a", "\u0120"]]), "merge 1: the merge of 'a' and '\u0120' has no token"),
                (changed("model", "merges", ["a"]), "merge 1: expected two symbols"),
                (changed("model", "vocab", {"<|endoftext|>": 0, "a": 1}), "no token for byte 0"),
                (changed("model", "vocab", "a", -1), "token 'a' has no id from 0 to 299"),
                (changed("model", "vocab", "a", 5), "two tokens have the id 5"),
                (self.nested(64), "model without merges is not supported"),
                (self.nested(65), "nested too deeply"),
                ([], "not a JSON object")]:
            with self.subTest(said):
                done = self.encode(tokenizer, ["a"])
                self.assertEqual(done.returncode, 3, done.stdout)
                self.assertRegex(done.stderr, f"^{self.folder}/tokenizer.json.*({said}).*\n$")

    def test_a_normalizer_that_grows_without_measure_is_an_error(self):
        step = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 60}
        tokenizer = {**self.plain, "normalizer": {"type": "Sequence", "normalizers": [step] * 8}}
        done = self.encode(tokenizer, ["e" * 700])  # 1e17 bytes
        self.assertEqual(done.returncode, 3, done.stdout)
        said = "normalizer makes over 45824 bytes of a text of 700; shorten what it inserts"
        self.assertRegex(done.stderr, f"^{self.folder}/tokenizer.json: {said}\n$")
        before = os.times().children_user
        self.result(self.encode({**self.plain, "normalizer": {"type": "Sequence", "normalizers": [step] * 100000}}, ["a"]))
        self.assertLess(os.times().children_user - before, 3)  # 0.5 s; 13 s where reading n objects of a list takes n^2 steps
        nested = step
        for depth in range(40):
            nested = {"type": "Sequence", "normalizers": [nested]}
            done = self.encode({**self.plain, "normalizer": nested}, ["a"])
            self.assertEqual(done.returncode, 0 if depth < 30 else 3, done.stderr)
        self.assertRegex(done.stderr, f"^{self.folder}/tokenizer.json: nested too deeply\n$")

    def test_an_expression_that_takes_too_long_is_an_error(self):
        tokenizer = copy.deepcopy(self.plain)
        tokenizer["pre_tokenizer"] = split(r"(a+)+\d")
        before = os.times().children_user
        done = self.encode(tokenizer, ["a" * 60])
        self.assertLess(os.times().children_user - before, 3)  # ten million steps take 0.05 s; the largest limit 6 s
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertRegex(done.stderr, "gives up at byte 0 of a text of 60 bytes: match limit exceeded")

    def test_a_long_word_takes_no_long_time(self):  # quadratic, it would take longer than the test may
        for case in self.golden["cases"][:7]:
            ids = self.result(self.encode(case["tokenizer"], ["na" * 500000, "x" * 1000000 + " " * 1000000]))
            self.assertGreater(len(ids[0]), 100000)


if __name__ == "__main__":
    unittest.main(verbosity=2)
