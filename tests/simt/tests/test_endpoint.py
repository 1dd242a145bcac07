#!/usr/bin/env python3
"""`tandem serve` on the emulated GPU, under every schedule of its streams, beside the CPU. Argument: the program."""
import concurrent.futures
import json
import math
import os
import random
import sys

TESTS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(TESTS, folder) for folder in ["program", "serve", "interop"]]
import tandem_program
from hostile_files import png
from tandem_program import Workspace
from test_program import BANDS, MODELS, QUICK
from server import Server

SCHEDULES = ["in-order", "compute-late", "comm-late", "shuffled:4"]


def at_once(server, *requests):
    def ask(request):
        status, text = server.ask("POST", *request)
        if status != 200:
            raise AssertionError(text)
        return json.loads(text)
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(ask, requests))


class Emulated(Workspace):
    def servers(self, name):
        """Servers of a run on the emulated GPU, one after the other."""
        for schedule in SCHEDULES:
            server = Server(self.run_folder(name), "--device", "cuda", "--batch", "3", TANDEM_SIMT_STREAMS=schedule)
            yield server
            self.assertEqual(server.end(), (0, ""))

    def test_greedy_texts_follow_the_cpu(self):
        """The CPU, in f32, gives each token of a reply the log-probability that the GPU gave it, and no other token one that is greater
        by more than both may be off."""
        pick = random.Random(4)
        prompts = [" ".join(pick.choice(["red", "the", "old", "stone"]) for _ in range(pick.randrange(1, 3))) for _ in range(8)]
        for model in ["gpt", "llama"]:
            for precision, band in BANDS.items():
                name = f"{model}-{precision}"
                self.train(name, *QUICK, *MODELS[model], "--model.context", 24, "--train.precision", precision)
                asked = [("/v1/completions", {"prompt": prompt, "max_tokens": 24 - len(prompt), "temperature": 0, "logprobs": 0, "echo": True})
                         for prompt in prompts]
                replies = [[reply["choices"][0] for reply in at_once(server, *asked)] for server in self.servers(name)]
                texts = [reply["text"] for reply in replies[0]]
                cpu = Server(self.run_folder(name), "--device", "cpu")
                scored = at_once(cpu, *[("/v1/completions", {"prompt": text, "max_tokens": 0, "logprobs": 1, "echo": True}) for text in texts])
                self.assertEqual(cpu.end(), (0, ""))
                for under_schedule in replies:
                    self.assertEqual([reply["text"] for reply in under_schedule], texts)
                    for prompt, reply, score in zip(prompts, under_schedule, scored):
                        expected = score["choices"][0]["logprobs"]
                        for at in range(1, 24):
                            found, right = reply["logprobs"]["token_logprobs"][at], expected["token_logprobs"][at]
                            self.assertAlmostEqual(found, right, delta=-band * right)
                            if at >= len(prompt):
                                self.assertGreaterEqual(right, max(expected["top_logprobs"][at].values()) + 2 * band * right)

    def test_classes_of_images_follow_the_cpu(self):
        pick = random.Random(4)
        self.train("resnet", *QUICK, *MODELS["resnet"], data=self.images)
        asked = [("/invocations", png(32, 32, colour=2, rows=b"".join(b"\0" + pick.randbytes(96) for _ in range(32))), {"Content-Type": "image/png"})
                 for _ in range(5)]
        cpu = Server(self.run_folder("resnet"), "--device", "cpu")
        expected = at_once(cpu, *asked)
        self.assertEqual(cpu.end(), (0, ""))
        for server in self.servers("resnet"):
            for found, right in zip(at_once(server, *asked), expected):
                of_class = {each["label"]: each["probability"] for each in found["predictions"]}
                for each in right["predictions"]:
                    self.assertAlmostEqual(math.log(of_class[each["label"]]), math.log(each["probability"]),
                                           delta=-BANDS["f32"] * math.log(each["probability"]))


if __name__ == "__main__":
    tandem_program.main()
