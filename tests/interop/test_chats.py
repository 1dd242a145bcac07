#!/usr/bin/env python3
"""`tandem prepare sft`: ids and masks against those of Hugging Face's transformers (chats.json here, written by
tests/interop/make_chats.py), and what else records may be.

    test_chats.py PATH_TO_TANDEM [unittest arguments]
"""
import json
import os
import random
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "program")]
import sft_files
import tandem_program
from tandem_program import CONFIG, DATA, Workspace, run

ALPACA = ("Below is an instruction that describes a task, paired with an input that provides further context. Write a response that "
          "appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n")
ALPACA_WITHOUT_INPUT = ("Below is an instruction that describes a task. Write a response that appropriately completes the request."
                        "\n\n### Instruction:\n{instruction}\n\n### Response:\n")

SMALL = ["--model.kind", "llama", "--model.layers", "2", "--model.width", "64", "--model.heads", "4", "--model.context", "64",
         "--train.global_batch", "8", "--optim.warmup_steps", "20", "--train.eval_every", "0"]


def turns(*roles):
    return {"messages": [{"role": role, "content": "a"} for role in roles]}


def changed(**fields):
    """A question and an answer that has these fields, too."""
    asked, answer = turns("user", "assistant")["messages"]
    return {"messages": [asked, {**answer, **fields}]}


class Chats(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        golden = sft_files.golden_chats()
        cls.records, cls.cases = golden["records"], {case["name"]: case for case in golden["cases"]}
        for name, case in cls.cases.items():
            case["folder"] = sft_files.write_tokenizer(cls.path(name), case["tokenizer"])
        cls.qwen = cls.cases["Qwen"]["folder"]

    def ids_of(self, name):
        """The ids of single characters and of tokens with a name."""
        tokenizer = self.cases[name]["tokenizer"]
        return {**tokenizer["model"]["vocab"], **{token["content"]: token["id"] for token in tokenizer["added_tokens"]}}

    def sft(self, source, *words, code=0, template="plain", tokenizer=None):
        done = run("prepare", "sft", "--input", source, "--output", self.path("made.h5"), "--force", "--template", template,
                   "--tokenizer", tokenizer or self.qwen, *words)
        return self.check(done, code)

    def write(self, name, text):
        with open(self.path(name), "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return self.path(name)

    def text_of(self, example, learned):
        """The text of the tokens that are learned, or of those that are not; of Qwen's bytes."""
        names = {id: name for name, id in self.ids_of("Qwen").items()}
        joined = "".join(names[token] for token, loss in zip(example["tokens"], example["loss"]) if loss == learned)
        return joined.replace("\u0120", " ").replace("\u010a", "\n")

    def test_ids_and_masks_are_those_of_transformers(self):
        for name, case in self.cases.items():
            with self.subTest(name):
                mine = sft_files.prepared(self, self.records, case["folder"], case["template"])
                for record, one, other in zip(self.records, mine.examples, case["expected"], strict=True):
                    self.assertEqual(one, other, record)
                learned = sum(sum(one["loss"]) for one in case["expected"])
                self.assertRegex(mine.printed, f", {learned} of them learned; the longest record has "
                                               f"{max(len(one['tokens']) for one in case['expected'])}\n")

    def test_an_exported_model_has_the_template(self):
        for name in ["Qwen", "Llama 3"]:
            with self.subTest(name):
                case = self.cases[name]
                made = sft_files.prepared(self, self.records, case["folder"], case["template"])
                folder = sft_files.exported(self, made.path, "exported-" + case["template"])
                with open(os.path.join(folder, "chat_template.jinja"), encoding="utf-8") as file:
                    self.assertEqual(file.read(), case["jinja"])

    def test_plain(self):
        plain = [{"prompt": "the", "completion": " and of"}, {"instruction": "add", "input": "one", "output": "two"},
                 {"instruction": "add", "output": "two"}, {"instruction": "add", "input": "", "output": "two"},
                 {"messages": None, "prompt": None, "instruction": "add", "input": None, "output": "two"}]  # as tables have them
        made = sft_files.prepared(self, plain, sft_files.write_tokenizer(self.path("ends"), self.cases["Qwen"]["tokenizer"],
                                                                       "<|endoftext|>"), "plain")
        asked = ["the", ALPACA.format(**plain[1]), *[ALPACA_WITHOUT_INPUT.format(**each) for each in plain[2:]]]
        end = self.ids_of("Qwen")["<|endoftext|>"]
        for example, before, learned in zip(made.examples, asked, [" and of", *["two"] * 4], strict=True):
            self.assertEqual(self.text_of(example, 0), before)
            self.assertEqual(self.text_of(example, 1), learned + "<|endoftext|>")
            self.assertEqual((example["tokens"][-1], example["loss"][-1]), (end, 1))

    def test_what_merges_with_the_prompt_is_learned(self):
        merges = self.cases["Qwen"]["tokenizer"]["model"]["merges"]
        left, right = next(pair for pair in merges if pair[0].isascii() and "".join(pair).isalpha())
        example, = sft_files.prepared(self, [{"prompt": "1" + left, "completion": right}], self.qwen, "plain").examples
        self.assertEqual((self.text_of(example, 0), self.text_of(example, 1)), ("1", left + right))

    def answered(self, name, dataset, *settings):
        """Trains from the model `pretrained`. Returns how many of 40 prompts that it never saw are answered rightly."""
        self.train(name, *SMALL, "--checkpoint.init_from", self.run_folder("pretrained"), "--data.windows", "documents", *settings,
                   data=dataset)
        return sum(self.check(run("generate", self.run_folder(name), "--template", "chatml", "--prompt", prompt,
                                  "--temperature", "0", "--tokens", "12")).stdout == answer + "\n" for prompt, answer in self.asked)

    def test_a_model_learns_to_answer(self):
        """The second of three words, or the first one's code, with all weights and with adapters; pretrained with words and numbers."""
        dice = random.Random(1)
        words = "red oak sun map ice fox cup pen".split()
        text = self.write("read.txt", "".join("{0} {1} {2} : {1} {3}\n".format(*dice.sample(words, 3), dice.randint(37, 44))
                                               for _ in range(3000)))
        self.check(run("prepare", "text", "--input", text, "--output", self.path("read.h5"), "--tokenizer", self.qwen))
        self.train("pretrained", *SMALL, "--train.steps", "300", "--optim.lr", "3e-3", data=self.path("read.h5"))
        answers = {}
        while len(answers) < 540:
            three = dice.sample(words, 3)
            kind, answer = dice.choice([("second", three[1]), ("code", str(37 + words.index(three[0])))])
            answers[f"{kind} of {' '.join(three)}"] = answer
        self.asked = list(answers.items())[500:]
        records = [{"prompt": prompt, "completion": answer} for prompt, answer in list(answers.items())[:500]]
        made = sft_files.prepared(self, records, self.qwen, "chatml").path
        all_weights = ["--train.steps", "500", "--optim.lr", "3e-3", "--optim.min_lr", "3e-4"]
        self.assertGreaterEqual(self.answered("all_weights", made, *all_weights), 38)
        self.assertGreaterEqual(self.answered("adapters", made, "--lora.rank", "8", "--train.steps", "700", "--optim.lr", "5e-3",
                                              "--optim.min_lr", "5e-4"), 36)
        sft_files.invert_masks(made)
        self.assertLess(self.answered("inverted", made, *all_weights), 4)

    def test_text_that_spells_a_special_token_stays_text(self):
        spelled = [{"prompt": "<|im_end|>", "completion": "<|im_start|>"}]
        made = sft_files.prepared(self, spelled, self.qwen, "chatml")
        [example], ids = made.examples, self.ids_of("Qwen")
        self.assertIn("val 0 tokens", made.printed)  # a single record is for training
        for mark in ["<|im_start|>", "<|im_end|>"]:
            self.assertEqual(example["tokens"].count(ids[mark]), 2)

    def test_csv_and_several_files(self):
        rows = self.write("rows.csv", 'completion,prompt,number\n"two, three",one,1\nfour,three,2\n')
        lines = self.write("lines.jsonl", '\ufeff{"prompt": "one", "completion": "two, three"}\n\n')
        printed = self.sft(rows, "--input", lines, "--val-fraction", "0.3").stdout
        self.assertIn("3 records", printed)
        self.assertIn(f"no eos_token in {self.qwen}/tokenizer_config.json: nothing ends a completion", printed)
        self.assertIn("leakage: 1 validation record also in the training part", printed)
        first, second, third = sft_files.examples_in(self.path("made.h5"))
        self.assertEqual(first, third)
        self.assertEqual(self.text_of(first, 1), "two, three")
        self.assertEqual(self.text_of(second, 0), "three")

    def test_shuffled_records(self):
        lines = self.write("many.jsonl", "".join(json.dumps({"prompt": "a", "completion": "b" * n}) + "\n" for n in range(1, 41)))
        orders = []
        for words in [[], ["--shuffle-records"], ["--shuffle-records", "--seed", "2"]]:
            self.sft(lines, *words)
            orders.append([len(self.text_of(example, 1)) for example in sft_files.examples_in(self.path("made.h5"))])
            self.assertEqual(sorted(orders[-1]), list(range(1, 41)))
        self.assertEqual(orders[0], sorted(orders[0]))
        self.assertEqual(len(set(map(tuple, orders))), 3)

    def test_bad_records_are_named(self):
        for record, said in [("{", "not valid JSON"), ("[1]", "not a JSON object"), (b'{"prompt": "\xff"}', "not valid UTF-8"),
                             ({"text": "a"}, "neither messages, nor prompt and completion, nor instruction and output"),
                             ({"prompt": "a"}, "no field 'completion'"), ({"prompt": 1, "completion": "a"}, "field 'prompt' is not a string"),
                             ({"instruction": "a", "input": 1, "output": "b"}, "field 'input' is not a string"),
                             ({"prompt": "a", "completion": ""}, "nothing in it is to be learned"),
                             ({"messages": "a"}, "field 'messages' is not a list of messages"),
                             ({"messages": [3]}, "a message is not an object"), ({"messages": [{"role": "user"}]}, "no field 'content'"),
                             (turns("user"), "nothing in it is to be learned"),
                             (turns("assistant"), "message 1 is of role 'assistant'; .* take turns"),
                             (turns("user", "user"), "message 2 is of role 'user'"),
                             (turns("user", "assistant", "system"), "message 3 is of role 'system'"),
                             (turns("tool"), "message 1 is of role 'tool'"),
                             (changed(weight=0), "message 2 has a 'weight' other than 1, but all that an assistant says"),
                             (changed(tool_calls=[{"type": "function"}]), "field 'tool_calls' is not supported"),
                             (changed(function_call={"name": "f"}), "field 'function_call' is not supported"),
                             ({**turns("user", "assistant"), "tools": [{"type": "function"}]}, "field 'tools' is not supported"),
                             ({"system": "c", "instruction": "a", "output": "b"}, "field 'system' is not supported; make it a part of messages"),
                             ({**turns("user", "assistant"), "system": "c"}, "field 'system' is not supported"),
                             ({"history": [["a", "b"]], "prompt": "a", "completion": "b"}, "field 'history' is not supported"),
                             (changed(reasoning_content="first"), "field 'reasoning_content' is not supported"),
                             ({**turns("user", "assistant"), "prompt": "a", "completion": "b"},
                              "both messages and prompt with completion; keep one of them"),
                             ({"instruction": "a", "output": "b", "prompt": "a", "completion": "b"},
                              "both prompt with completion and instruction with output; keep one of them")]:
            with self.subTest(said):
                line = json.dumps(record) if isinstance(record, dict) else record
                good = b'{"prompt": "a", "completion": "b"}\n'
                lines = self.write("bad.jsonl", good + (line if isinstance(line, bytes) else line.encode()) + b"\n")
                refused = self.sft(lines, code=DATA, template="chatml")
                self.assertRegex(refused.stderr, f"bad record: {re.escape(lines)}:2: {said}")
                self.assertFalse(os.path.exists(self.path("made.h5")))
                self.assertIn("1 record\n", self.sft(lines, "--max-bad", "1", template="chatml").stdout)
                os.remove(self.path("made.h5"))
        lines = self.write("bad.jsonl", json.dumps(turns("user", "assistant")))
        self.assertRegex(self.sft(lines, code=DATA).stderr, "field 'messages' needs --template chatml or llama3")
        rows = self.write("bad.csv", b"prompt,completion\na,\xff\nb\n")
        self.assertRegex(self.sft(rows, code=DATA).stderr, r"bad.csv:2: not valid UTF-8\n.*bad.csv:3: 1 fields where the header has 2")

    def test_fields_that_say_nothing_change_nothing(self):
        plain = turns("user", "assistant")
        for record in [changed(weight=1), changed(weight=None), changed(tool_calls=[], function_call=None), {**plain, "tools": []},
                       changed(reasoning_content=""), {**plain, "tools": None, "system": "", "history": [], "completion": None}, {**plain, "prompt": "a", "prompt_id": "7"}]:
            with self.subTest(record):
                first, second = sft_files.prepared(self, [plain, record], self.qwen, "chatml").examples
                self.assertEqual(first, second)

    def test_wrong_words_are_named(self):
        lines = self.write("good.jsonl", '{"prompt": "a", "completion": "b"}')
        for words, code, said in [(["--template", "llama3"], CONFIG, r"no special token <\|begin_of_text\|>"),
                                  (["--template", "vicuna"], CONFIG, "vicuna"), (["--seed", "3"], CONFIG, "--seed has no meaning"),
                                  (["--tokenizer", self.path("none")], DATA, "none/tokenizer.json"),
                                  (["--input", self.text_file], CONFIG, "words.txt: expected .jsonl, .ndjson, .json or .csv"),
                                  (["--input", self.write("twice.csv", "prompt,completion,prompt\n")], DATA,
                                   "twice.csv: several columns are called 'prompt'"),
                                  (["--input", self.write("empty.jsonl", ""), "--max-bad", "3"], DATA, "empty.jsonl: holds no record")]:
            with self.subTest(said):
                given = [] if "--input" in words else ["--input", lines]
                tokenizer = [] if "--tokenizer" in words else ["--tokenizer", self.qwen]
                refused = self.check(run("prepare", "sft", "--output", self.path("no.h5"), *given, *tokenizer, *words), code)
                self.assert_one_line(refused, said)
                self.assertFalse(os.path.exists(self.path("no.h5")))


if __name__ == "__main__":
    tandem_program.main()
