#!/usr/bin/env python3
"""`tandem eval --choices`: the log-probabilities of answers, against the model's logits.

    test_choices.py PATH_TO_TANDEM [unittest arguments]
"""
import json
import math
import os
import random
import re
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program"))
import tandem_program  # noqa: E402
from tandem_program import CONFIG, DATA, OK, Workspace, run, words  # noqa: E402

CONTEXT, VOCAB = 48, 256  # tokens are bytes
MODEL = ["--model.kind", "llama", "--model.layers", "2", "--model.heads", "2", "--model.width", "16", "--model.context", str(CONTEXT), "--model.vocab", str(VOCAB)]
# Logits are f32, and so is a log-probability of about 5: about twenty roundings of 2^-24 of it, in each of up to 40 tokens.
NEAR = 40 * 20 * 5 * 2**-24


def hellaswag_text(text):
    """As lm-evaluation-harness prepares it."""
    text = re.sub("\\[.*?\\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


class Choices(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with open(cls.path("bytes.txt"), "w") as out:
            out.write(words(2000))
        cls.data = cls.path("bytes.h5")
        cls.check(run("prepare", "text", "--input", cls.path("bytes.txt"), "--output", cls.data, "--tokenizer", "bytes"))
        cls.check(run("train", "--data.path", cls.data, "--run.dir", cls.path("runs"), "--run.name", "model", "--train.steps", "30",
                      "--train.global_batch", "8", "--optim.warmup_steps", "1", "--optim.lr", "0.01", "--log.progress", "none",
                      "--log.tensorboard", "false", "--run.device", "cpu", *MODEL))
        dice = random.Random(2)

        def text(most):
            return words(dice.randint(1, most), dice.random()).strip()
        cls.questions = [{"prompt": text(4), "choices": [text(3) for _ in range(dice.randint(2, 4))], "label": dice.randint(0, 1)}
                         for _ in range(30)]

    def file(self, questions, name="questions.jsonl"):
        with open(self.path(name), "w", encoding="utf-8") as out:
            out.write("".join((line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)) + "\n" for line in questions))
        return self.path(name)

    def evaluated(self, questions, *options, code=OK, **how):
        return self.check(run("eval", self.run_folder("model"), "--choices", self.file(questions), "--device", "cpu", "--threads", "1",
                              "--output", self.path("scores.jsonl"), *options, **how), code)

    def scores(self, questions, *options, **how):
        self.evaluated(questions, *options, **how)
        with open(self.path("scores.jsonl")) as lines:
            return [json.loads(line) for line in lines]

    def sums(self, *given):
        return [score["sums"] for score in self.scores(*given)]

    def log_probability(self, before, after):
        """Of the bytes `after`, by the model's logits for all."""
        program = os.path.join(os.path.dirname(tandem_program.TANDEM), "tandem_interop")
        tokens = before + after
        done = subprocess.run([program, "logits", self.run_folder("model"), *map(str, tokens[:-1])], stdout=subprocess.PIPE, check=True)
        logits = struct.unpack(f"{(len(tokens) - 1) * VOCAB}f", done.stdout)
        total = 0.0
        for place in range(len(before) - 1, len(tokens) - 1):
            row = logits[place * VOCAB:(place + 1) * VOCAB]
            total += row[tokens[place + 1]] - math.log(math.fsum(map(math.exp, row)))
        return total

    def test_sums_and_shares(self):
        printed = json.loads(self.evaluated(self.questions, "--json").stdout)
        hits = {"acc": 0, "acc_norm": 0}
        for question, score in zip(self.questions, self.scores(self.questions), strict=True):
            want = [self.log_probability(list(question["prompt"].encode()), list((" " + choice).encode()))
                    for choice in question["choices"]]
            sizes = [len(choice) for choice in question["choices"]]
            self.assertEqual((score["label"], score["bytes"]), (question["label"], sizes))
            for got, expected in zip(score["sums"], want, strict=True):
                self.assertAlmostEqual(got, expected, delta=NEAR)
            by_byte = [one / size for one, size in zip(want, sizes)]
            hits["acc"] += want.index(max(want)) == question["label"]
            hits["acc_norm"] += by_byte.index(max(by_byte)) == question["label"]
        self.assertEqual(printed["questions"], 30)
        for share, count in hits.items():
            self.assertTrue(0 < count < 30)
            self.assertEqual(printed[share], count / 30)
            self.assertAlmostEqual(printed[share + "_stderr"], math.sqrt(count / 30 * (1 - count / 30) / 29), delta=1e-15)

    def test_any_number_of_ranks(self):
        for batch in ["1", "3"]:
            want = self.evaluated(self.questions, "--batch", batch).stdout
            with open(self.path("scores.jsonl")) as one:
                alone = one.read()
            self.assertEqual(self.evaluated(self.questions, "--batch", batch, ranks=3).stdout, want)
            with open(self.path("scores.jsonl")) as three:
                self.assertEqual(three.read(), alone)

    def test_prompts_that_end_in_space_or_are_long_or_empty(self):
        plain, space, apart = self.sums([{"prompt": prompt, "choices": choices, "label": 0} for prompt, choices in [
            ("the old", ["river", "stone"]), ("the old ", ["river", "stone"]), ("the old", [" river", " stone"])]])
        self.assertEqual(space, apart)  # two spaces
        self.assertGreater(min(plain), max(space))
        long = "sings under the " * 9
        whole, cut = self.sums([{"prompt": prompt, "choices": ["green", "red"], "label": 1}
                                for prompt in [long + "old", (long + "old")[-(CONTEXT + 1 - len(" green")):]]])
        self.assertEqual(whole[0], cut[0])
        empty = self.evaluated([{"prompt": " ", "choices": ["green", "red"], "label": 1}], code=DATA)
        self.assert_one_line(empty, "the prompt is empty, and no token of the tokenizer begins or ends texts")

    def test_examples_before_questions(self):
        before = "".join(f"{one['prompt']} {one['choices'][one['label']]}\n\n" for one in self.questions[:2])
        shown = [{**one, "prompt": before + one["prompt"]} for one in self.questions[2:]]
        self.assertEqual(self.sums(self.questions, "--shots", "2"), self.sums(shown))

    def test_hellaswag(self):
        item = {"ind": 24, "activity_label": "Roof shingle removal", "ctx_a": " A man is  sitting on a roof.", "ctx_b": "hE ÉTAIT [a [b]", "ctx": "",
                "endings": ["is [step] using wrap.", " [title] is ripping tiles", "holds\na [broken\n] cube", "starts pulling  up"], "label": "3"}
        prompt = hellaswag_text(item["activity_label"] + ": " + item["ctx_a"] + " " + item["ctx_b"].capitalize())
        self.assertTrue(prompt.endswith("He était "), prompt)
        plain = {"prompt": prompt, "choices": [hellaswag_text(ending) for ending in item["endings"]], "label": 3}
        for first in ["ßa", "ǆa", "", "ΑΣ ΑΣ", "İa"]:
            other = {**item, "ctx_b": first}
            text = hellaswag_text(item["activity_label"] + ": " + item["ctx_a"] + " " + first.capitalize())
            self.assertEqual(self.scores([other]), self.scores([{**plain, "prompt": text}]), first)
        self.assertEqual(self.scores([item]), self.scores([plain]))

    def test_bad_questions_are_named(self):
        good = self.questions[0]
        for record, said in [("{", "not valid JSON"), ("[1]", "not a JSON object"), ({**good, "label": 4}, "field 'label' is no number of 0 to "),
                             ({**good, "label": "x"}, "field 'label' is no number"), ({**good, "label": None}, "field 'label' is no number"),
                             ({**good, "label": 1.0}, "field 'label' is no number"), ({**good, "choices": ["a"]}, "not a list of two texts or more"),
                             ({**good, "choices": ["a", 1]}, "something other than texts"), ({**good, "choices": ["a", ""]}, "a choice is empty"),
                             ({**good, "prompt": 1}, "field 'prompt' is not a string"), ({"prompt": "a", "label": 0}, "field 'choices' is not a list"),
                             ({**good, "choices": ["a", "b" * CONTEXT]}, f"a choice has {CONTEXT + 1} tokens; possible are 1 to {CONTEXT}")]:
            for ranks in [None, 2]:
                self.assert_one_line(self.evaluated([good, record], code=DATA, ranks=ranks), f"questions.jsonl:2: .*{said}")
        self.assertTrue(self.scores([good]))
        self.evaluated([good, "{"], code=DATA)
        with open(self.path("scores.jsonl")) as kept:  # of the run before
            self.assertEqual(len(kept.readlines()), 1)
        self.assert_one_line(self.evaluated([good], "--shots", "1", code=DATA), "has no questions after the 1 of --shots")
        self.assert_one_line(self.evaluated([], code=DATA), "has no questions")

    def test_options_that_do_not_go_together(self):
        model, questions = self.run_folder("model"), self.file(self.questions)
        for options in [["--shots", "1"], ["--output", self.path("x")], ["--choices", questions, "--data", self.data],
                        ["--choices", questions, "--verify"]]:
            self.assert_one_line(self.check(run("eval", model, *options), CONFIG), "--choices")
        self.assert_one_line(self.check(run("eval", model, "--choices", self.path("none.jsonl")), DATA), "none.jsonl")


if __name__ == "__main__":
    tandem_program.main()
