#!/usr/bin/env python3
"""`tandem serve` asked by OpenAI's own client and by EleutherAI's lm-evaluation-harness.

    check_openai.py PATH_TO_TANDEM [unittest arguments]

Part of tests/nightly.sh. Exit codes: 0 all agree, 1 something differs or cannot be installed, 77 a package is missing.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "program"), os.path.join(HERE, "..", "serve")]
import packages

packages.require("check of OpenAI's client", "openai", "lm_eval", "aiohttp", "transformers", "torch", "h5py")

import openai
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
import sft_files
import tandem_program
from tandem_program import Workspace, run
from server import Server


class Clients(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        golden = sft_files.golden_chats()
        case = next(case for case in golden["cases"] if case["name"] == "Qwen")
        tokenizer = sft_files.write_tokenizer(cls.path("Qwen"), case["tokenizer"])
        data = sft_files.prepared(cls, golden["records"], tokenizer, case["template"])
        cls.train(cls, "chats", "--data.windows", "documents", "--train.steps", "1", "--model.context", 128, data=data.path)
        cls.model = cls.path("answers")
        cls.check(run("export", os.path.join(cls.path("runs"), "chats"), "--output", cls.model))
        cls.server = Server(cls.model, "--queue", "1", "--batch", "1")
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.end() == (0, "")
        super().tearDownClass()

    def test_completions(self):
        asked = {"model": "answers", "prompt": "the", "max_tokens": 20, "temperature": 0}
        whole = self.client.completions.create(**asked)
        text = self.check(run("generate", self.model, "--prompt", "the", "--tokens", "20", "--temperature", "0")).stdout[:-1]
        self.assertEqual(whole.choices[0].text, text)
        self.assertEqual(whole.usage.completion_tokens, 20)
        told = self.client.completions.create(**asked, logprobs=2).choices[0].logprobs
        self.assertEqual([len(each) for each in [told.tokens, told.token_logprobs, told.text_offset, told.top_logprobs]], [20] * 4)
        read = self.client.completions.create(**{**asked, "max_tokens": 0}, logprobs=1, echo=True).choices[0].logprobs
        self.assertEqual((read.token_logprobs[0], "".join(read.tokens)), (None, "the"))
        pieces = list(self.client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(piece.choices[0].text for piece in pieces[:-1]), text)
        self.assertEqual(pieces[-1].usage, whole.usage)
        self.assertEqual(pieces[-2].choices[0].finish_reason, "length")

    def test_the_harness_reads_log_probabilities(self):
        """Against transformers: a sum of at most ten losses of about 6 in f32, whose attention adds in another order."""
        pairs = [("the", " a"), ("a b", " c a c"), ("aaa a", " b b"), ("a", " the the the"), ("b c", " " + "ab" * 5)]
        harness = LocalCompletionsAPI(base_url=f"http://127.0.0.1:{self.server.port}/v1/completions", model="answers", tokenizer=self.model,
                                      tokenizer_backend="huggingface", max_length=128)
        found = harness.loglikelihood([Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)], disable_tqdm=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.model)
        model = transformers.AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)
        for (before, after), (total, is_greedy) in zip(pairs, found):
            ids, begin = tokenizer.encode(before + after), len(tokenizer.encode(before))
            with torch.no_grad():
                losses = model(torch.tensor([ids])).logits[0].log_softmax(-1)[begin - 1:-1]
            self.assertAlmostEqual(total, sum(loss[token].item() for loss, token in zip(losses, ids[begin:])), delta=1e-4)
            self.assertEqual(is_greedy, losses.argmax(-1).tolist() == ids[begin:])

    def test_chats(self):
        asked = {"model": "answers", "messages": [{"role": "system", "content": "b"}, {"role": "user", "content": "a"}], "temperature": 0,
                 "max_completion_tokens": 20}
        whole = self.client.chat.completions.create(**asked).choices[0].message
        self.assertEqual(whole.role, "assistant")
        told = self.client.chat.completions.create(**asked, logprobs=True, top_logprobs=2).choices[0].logprobs.content
        self.assertEqual([len(token.top_logprobs) for token in told], [2] * len(told))
        self.assertEqual([token.bytes for token in told], [token.top_logprobs[0].bytes for token in told])
        pieces = list(self.client.chat.completions.create(**asked, stream=True))
        self.assertEqual("".join(piece.choices[0].delta.content for piece in pieces), whole.content)

    def test_errors(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["answers"])
        with self.assertRaisesRegex(openai.BadRequestError, "do not fit the window of 128"):
            self.client.completions.create(model="answers", prompt="a", max_tokens=1000)
        with self.assertRaisesRegex(openai.BadRequestError, "'presence_penalty' is not supported"):
            self.client.completions.create(model="answers", prompt="a", presence_penalty=1)
        with self.assertRaisesRegex(openai.NotFoundError, "the model 'gpt-4' does not exist"):
            self.client.completions.create(model="gpt-4", prompt="a")


if __name__ == "__main__":
    tandem_program.main()
