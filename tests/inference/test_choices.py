#!/usr/bin/env python3
"""`tandem eval --choices`: the log-probabilities of answers, against the model's logits. train.eval_choices: the same in training.

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
from ended_run import Run, has_events  # noqa: E402
from tandem_program import CONFIG, DATA, OK, Workspace, metrics, run, tensors_in, words  # noqa: E402

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
        cls.many = [{"prompt": text(4), "choices": [text(3) for _ in range(dice.randint(2, 4))], "label": dice.randint(0, 1)}
                    for _ in range(300)]
        cls.questions = cls.many[:30]

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
                self.assert_one_line(self.evaluated([good, record], code=DATA, ranks=ranks), f"^tandem: [^:]*questions.jsonl:2: (?!.*jsonl).*{said}")
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

    def asks(self, name, *settings, file=None, steps=20, **how):
        """A run that asks the questions every five steps."""
        return self.train(name, *MODEL, "--train.eval_every", "5", "--optim.lr", "0.01", "--train.steps", str(steps),
                          "--train.eval_choices", file or self.file(self.many), *settings, data=self.data, **how)

    def asked(self, name):
        """choices_acc by step."""
        return {line["step"]: line.get("choices_acc") for line in metrics(self.run_folder(name)) if "val_loss" in line}

    def test_a_run_logs_what_eval_gives(self):
        often = ["--checkpoint.every_steps", "5", "--checkpoint.keep", "9"]
        # Batches of the training have as many samples as those of questions, but no positions.
        shown = self.asks("asks", *often, "--train.micro_batch", "4").stdout
        logged = self.asked("asks")
        self.assertEqual(list(logged), [5, 10, 15, 20])
        self.assertGreater(len(set(logged.values())), 1)
        for step, acc in logged.items():
            printed = self.check(run("eval", self.run_folder("asks") + f"/checkpoints/step-{step:08d}", "--choices", self.path("questions.jsonl"),
                                     "--device", "cpu", "--json")).stdout
            self.assertEqual(acc, json.loads(printed)["acc"])
        self.assertEqual(re.findall(r"  choices_acc (\S+)  over ", shown), [f"{acc:.4f}" for acc in logged.values()])
        self.assertEqual(has_events("val/choices_acc")(Run(self.run_folder("asks"))), [True])
        # Nothing else changes.
        self.asks("quiet", *often, "--train.micro_batch", "4", "--train.eval_choices", "")
        self.assert_same_bits("asks", "quiet")
        self.assertEqual(set(self.asked("quiet").values()), {None})
        self.assertEqual(has_events("choices_acc")(Run(self.run_folder("quiet"))), [False])
        for step in logged:
            one, other = (tensors_in(self.run_folder(name) + f"/checkpoints/step-{step:08d}") for name in ["asks", "quiet"])
            self.assertGreater(len(one), 0)
            self.assertEqual(one, other)

    def test_a_run_on_any_ranks_stages_and_islands(self):
        exact = ["--dist.reduce", "exact", "--train.micro_batch", "2"]
        self.asks("one-rank", *exact)
        self.assertGreater(len(set(self.asked("one-rank").values())), 1)
        for zero in ["0", "2", "3"]:
            name = "ranks-" + zero
            self.asks(name, *exact, "--dist.zero", zero, ranks=3)
            self.assertEqual(self.asked(name), self.asked("one-rank"))
            self.assert_same_bits(name, "one-rank")
        self.asks("islands", "--dist.islands", "2", "--dist.sync_every", "5", "--dist.zero", "3", ranks=4)
        self.assertEqual(self.asked("islands")[20], json.loads(self.check(run(
            "eval", self.run_folder("islands"), "--choices", self.path("questions.jsonl"), "--device", "cpu", "--json")).stdout)["acc"])

    def test_bad_questions_end_a_run_before_it_begins(self):
        good = self.questions[0]
        for questions, said in [([good, "{"], "questions.jsonl:2: not valid JSON"), ([], "questions.jsonl: has no questions$"),
                                ([good, good, {**good, "choices": ["a", "b" * CONTEXT]}], "questions.jsonl:3: a choice has 49 tokens")]:
            for ranks in [None, 2]:
                self.assert_one_line(self.asks("bad", file=self.file(questions), ranks=ranks, code=DATA), said)
        self.assert_one_line(self.asks("bad", file=self.path("none.jsonl"), code=DATA), "none.jsonl: cannot open")
        self.assertFalse(os.path.exists(self.run_folder("bad")))

    def test_all_ranks_must_have_the_same_questions(self):
        for command, arguments, name in [
                ("train", ["--data.path", self.data, *MODEL, "--run.dir", self.path("runs"), "--run.name", "apart", "--run.device", "cpu",
                           "--train.eval_choices", "own.jsonl"], "train.eval_choices = own.jsonl"),
                ("eval", [self.run_folder("model"), "--device", "cpu", "--choices", "own.jsonl"], "tandem: own.jsonl")]:
            parts = []
            for rank, label in enumerate([0, 1]):
                os.makedirs(self.path(f"rank{rank}"), exist_ok=True)
                self.file([{**self.questions[0], "label": label}], f"rank{rank}/own.jsonl")
                parts += [":", "-np", "1", "--wdir", self.path(f"rank{rank}"), tandem_program.TANDEM, command, *arguments]
            done = subprocess.run(["timeout", "-k", "5", "120", "mpirun", *parts[1:]], env=tandem_program.MPI_ENV, capture_output=True, text=True)
            self.assert_one_line(self.check(done, DATA), f"{name} is not the same on all ranks: rank 1 differs")

    def test_sums_that_are_not_finite_say_nothing(self):
        self.asks("lost", "--model.kind", "gpt", "--optim.lr", "1e30", "--train.on_nonfinite", "skip", steps=5)
        self.assertEqual(self.asked("lost"), {5: None})
        self.assertIn("choices_acc", metrics(self.run_folder("lost"))[-1])

    def test_where_a_run_looks_for_questions(self):
        self.file(self.questions)  # two folders above that of the run
        self.asks("above", file="questions.jsonl", cwd="/")
        self.assertNotIn(None, self.asked("above").values())

    def test_what_does_not_go_with_questions(self):
        for settings, ranks, said in [
                (["--dist.tensor", "2"], 2, "train.eval_choices = .*questions.jsonl is not possible with dist.tensor = 2"),
                (["--train.eval_every", "0", "--checkpoint.at_end", "false"], None, "train.eval_choices = .* train.eval_every = 0 there are none"),
                (["--train.eval_every", "21", "--checkpoint.at_end", "false"], None, "train.eval_choices = .* train.eval_every = 21 there are none")]:
            self.assert_one_line(self.asks("refused", *settings, ranks=ranks, code=CONFIG), said)
        self.train("images", "--model.kind", "mlp", "--train.steps", "1", data=self.images)
        asked = self.check(run("eval", self.run_folder("images"), "--choices", self.file(self.questions), "--device", "cpu"), CONFIG)
        self.assert_one_line(asked, "model.kind = mlp writes no text; use a gpt or llama")
        images = self.train("refused", "--model.kind", "resnet", "--train.eval_choices", self.file(self.questions), data=self.images, code=CONFIG)
        self.assert_one_line(images, "train.eval_choices = .* has no meaning with model.kind = resnet")
        with open(self.path("short.txt"), "w") as out:
            out.write(words(500))
        self.check(run("prepare", "text", "--input", self.path("short.txt"), "--output", self.path("short.h5"), "--tokenizer", "bytes", "--val-fraction", "0"))
        short = self.train("refused", *MODEL, "--train.eval_choices", self.file(self.questions), data=self.path("short.h5"), code=DATA)
        self.assert_one_line(short, "the validation set is empty")


if __name__ == "__main__":
    tandem_program.main()
