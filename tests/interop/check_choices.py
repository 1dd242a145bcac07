#!/usr/bin/env python3
"""Compares the log-probabilities of `tandem eval --choices` with those of transformers, taken as lm-evaluation-harness does.

    check_choices.py PATH_TO_TANDEM [unittest arguments]

Part of tests/nightly.sh. Exit codes: 0 all agree, 1 something differs or cannot be installed, 77 a package is missing.
"""
import json
import random
import re
from pathlib import Path

import packages

packages.require("check of choices", "transformers", "torch", "safetensors", "tokenizers", "numpy", "h5py")

import check_hugging_face
import tokenizers
import torch

import sft_files
import tandem_program
from make_tokenizers import OTHERS, SPACE, SPECIAL, WORDS

QUESTIONS, CONTEXT, NEAR = 300, 96, 1e-4  # A sum has up to about 50 losses of about 5, in f32.
# The names of their tokenizers in chats.json, and the token before a text without a prompt. That of llama begins all texts.
TOKENIZERS = {"gpt": ("Qwen", 0), "llama": ("Llama 2", 1)}
check_hugging_face.CASES = {"gpt": dict(kind="gpt", vocab_size=320, n_positions=CONTEXT),
                            "llama": dict(kind="llama", vocab_size=560, max_position_embeddings=CONTEXT)}
# No text spells a special token, which tokenizers would read as one.
PARTS = [*sorted({*OTHERS} - {*SPECIAL, "<s>", "</s>"}), "Straße", "naïve", "река", "東京", "?", "(", "%"]
MARKUP = 9 * ["[title]", "[step]", "[header]", "[substeps]", "[a [b]", "[open", " ", "]"] + PARTS
ENDS = ["", "", "", "", " ", "\n\n", " \t", "?\n", SPACE + "\u3000"]  # The last two are tokens, of Qwen and of Llama 2.


def question_of(dice):
    def text(first, most, rare=PARTS):
        parts = [first] + [dice.choice(WORDS if dice.random() < 0.6 else rare) for _ in range(dice.randrange(most))]
        return "".join(part + dice.choice(["", " ", " ", " "]) for part in parts).rstrip()
    first, *words = dice.sample(WORDS, dice.randint(3, 6))  # The choices differ.
    if dice.random() < 0.4:
        b = dice.choice(["", "", "the ", "ßA ", "éTAIT ", "ΟΔΟΣ ΣΑΣ ", "ǆ ", "İ ", "2ND "])
        endings = [dice.choice(["", "", "[step] ", " [title] "]) + text(word, 9, MARKUP) for word in words]
        return {"ind": 3, "activity_label": text(first, 3), "ctx_a": text(first, 20, MARKUP), "ctx_b": b and b + text(first, 5),
                "ctx": first, "endings": endings, "label": str(dice.randrange(len(words)))}
    prompt = text(first, dice.choice([1, 5, 15, 80])) + dice.choice(ENDS)
    prompt, space = dice.choice([*7 * [(prompt, "")], (prompt, " "), (prompt, "\n"), ("", " ")])
    return dict(prompt=prompt, choices=[space + text(word, dice.choice([1, 8])) for word in words], label=dice.randrange(len(words)))


def prepared(question):  # prompt, choices, label
    if "endings" not in question:
        return question["prompt"], question["choices"], int(question["label"])
    texts = [question["activity_label"] + ": " + question["ctx_a"] + " " + question["ctx_b"].capitalize(), *question["endings"]]
    texts = [re.sub("\\[.*?\\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ") for text in texts]
    return texts[0], texts[1:], int(question["label"])


class Choices(check_hugging_face.HuggingFace):
    # What whole models must do is not tested again.
    test_logits = test_generation = test_import_then_export = test_shards_were_made = test_ten_steps = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.set_num_threads(1)
        known = {one["name"]: one["tokenizer"] for one in json.loads(Path(__file__).with_name("chats.json").read_text())["cases"]}
        known["Qwen"]["model"]["vocab"]["?\u010a"] = 304  # GPT-2's letter for \n
        known["Qwen"]["model"]["merges"].append(["?", "\u010a"])
        for kind, (name, _) in TOKENIZERS.items():
            sft_files.write_tokenizer(cls.models[kind], known[name])
        cls.questions = [question_of(dice) for dice in map(random.Random, range(QUESTIONS))]

    def scores(self, kind, questions, *options, ranks=None):
        """What is printed, and the lines of --output."""
        given, output = Path(self.path("questions.jsonl")), Path(self.path("scores.jsonl"))
        given.write_text("".join(json.dumps(question, ensure_ascii=False) + "\n" for question in questions), "utf-8")
        done = self.check(tandem_program.run("eval", self.models[kind], "--choices", given, "--output", output, "--json",
                                             "--device", "cpu", "--threads", 1, *options, ranks=ranks))
        return json.loads(done.stdout), output.read_bytes().splitlines()

    def test_sums_and_shares(self):
        for kind, (_, begin) in TOKENIZERS.items():
            tokenizer, model = tokenizers.Tokenizer.from_file(self.path(kind + "/tokenizer.json")), self.loaded(self.path(kind))
            (printed, lines), hits, counts, off = self.scores(kind, self.questions), {"acc": 0, "acc_norm": 0}, [0, 0, 0], []
            for line, (prompt, choices, label) in zip(map(json.loads, lines), map(prepared, self.questions), strict=True):
                sums, sizes = [], [len(choice.encode()) for choice in choices]
                for text in [prompt + " " + choice for choice in choices]:
                    head, whole = (tokenizer.encode(one).ids for one in [prompt.rstrip(), text])
                    both = (head or [begin]) + whole[len(head):]
                    tokens = torch.tensor(both[-(CONTEXT + 1):])
                    rows = model(tokens[None, :-1]).logits[0].log_softmax(-1).gather(1, tokens[1:, None])
                    sums.append(rows[len(head) - len(whole):].sum().item())
                    counts = [old + new for old, new in zip(counts, [1, len(both) > CONTEXT + 1, whole[:len(head)] != head])]
                self.assertEqual((line["label"], line["bytes"], len(line["sums"])), (label, sizes, len(sums)))
                off.append((max(abs(one - other) for one, other in zip(line["sums"], sums)), prompt, choices, line["sums"], sums))
                for share, values in {"acc": sums, "acc_norm": [one / size for one, size in zip(sums, sizes)]}.items():
                    hits[share] += values.index(max(values)) == label
            print("{}: {} choices, {} cut, {} merged with the prompt;".format(kind, *counts), sum(one[0] >= NEAR for one in off),
                  f"questions differ, the worst by {max(off)[0]:.1e}; {hits} of {QUESTIONS}")
            with self.subTest(kind):
                self.assertLess(max(off)[0], NEAR, max(off))
                self.assertGreater(min(*counts, *hits.values()), 0)
                for share, p in [(share, count / QUESTIONS) for share, count in hits.items()]:
                    self.assertEqual(printed[share], p)
                    self.assertAlmostEqual(printed[share + "_stderr"], (p * (1 - p) / (QUESTIONS - 1)) ** 0.5, delta=1e-15)

    def test_ranks_and_examples(self):
        some = sorted(self.questions, key=lambda question: len(prepared(question)[0]))[40:100]  # Prompts that fit.
        before = "".join(f"{prompt} {choices[label]}\n\n" for prompt, choices, label in map(prepared, some[:2]))
        written = [dict(zip(["prompt", "choices", "label"], [before + one[0], *one[1:]])) for one in map(prepared, some[2:])]
        for kind in TOKENIZERS:
            for batch in [(), ("--batch", 2)]:
                alone = self.scores(kind, self.questions, *batch)
                self.assertEqual(self.scores(kind, self.questions, *batch, ranks=3), alone)
                print(f"{kind}{batch}: 1 and 3 ranks write the same {len(b''.join(alone[1]))} bytes")
            got, want, bare = (self.scores(kind, *given)[1] for given in [(some, "--shots", 2), (written,), (some[2:],)])
            print(f"{kind}: 2 examples change the sums of {sum(map(bytes.__ne__, got, bare))} of {len(bare)} questions")
            self.assertEqual(got, want)
            self.assertFalse(any(map(bytes.__eq__, got, bare)))


if __name__ == "__main__":
    tandem_program.main()
