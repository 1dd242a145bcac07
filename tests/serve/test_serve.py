#!/usr/bin/env python3
"""`tandem serve` as its clients see it: replies are those of `tandem generate`, every limit, and how it ends. Argument: the program."""
import concurrent.futures
import contextlib
import json
import math
import os
import random
import signal
import struct
import subprocess
import sys

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(TESTS, "program"), os.path.join(TESTS, "interop")]
import sft_files
import tandem_program
from server import DEADLINE, Served, Server, events
from tandem_program import CONFIG, Workspace, run, words

CONTEXT, COLUMNS = 64, 32


class Serving(Served):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train(cls, "model", "--train.steps", "60", "--model.context", CONTEXT, "--model.vocab", COLUMNS, "--train.precision", "bf16")
        cls.model = os.path.join(cls.path("runs"), "model")
        cls.server = Server(cls.model, "--batch", "5")

    def generate(self, prompt, *options):
        return self.check(run("generate", self.model, "--prompt", prompt, *map(str, options))).stdout[:-1]

    def refused(self, status, pattern, path="/v1/completions", **request):
        got, text = self.server.ask("POST", path, request)
        self.assertEqual(got, status, text)
        self.assertRegex(json.loads(text)["error"]["message"], pattern)

    def test_a_reply_depends_on_its_request_alone(self):
        pick = random.Random(1)
        requests = []
        for seed in range(32):
            prompt = " ".join(pick.choice(["red", "the", "old", "stone", "sings"]) for _ in range(pick.randrange(1, 7)))
            requests.append({"prompt": prompt, "max_tokens": pick.randrange(1, CONTEXT - len(prompt) + 1), "seed": seed,
                             "temperature": pick.choice([0, 0.7, 1.3]), "top_p": pick.choice([1, 0.8]),
                             "stop": pick.choice([[], ["sto"], ["e", "gr"]]), "top_k": pick.choice([0, 5])})

        def reply(request):
            choice, = self.server.complete(**request)["choices"]
            return choice["text"]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            replies = list(pool.map(reply, requests))
        for request, text in zip(requests, replies):
            options = [f"--{name.replace('max_', '').replace('_', '-')}={request[name]}"
                       for name in ["max_tokens", "seed", "temperature", "top_p", "top_k"]]
            options += [f"--stop={stop}" for stop in request["stop"]]
            self.assertEqual(text, self.generate(request["prompt"], *options, "--threads", "2"))

    def test_completions(self):
        whole = self.server.complete(prompt="the old ", max_tokens=20, seed=3, n=2, temperature=0.8, model="model", user="me")
        texts = self.generate("the old ", "--tokens", "20", "--seed", "3", "--samples", "2").split("\n---------------\n")
        self.assertEqual([choice["text"] for choice in whole["choices"]], texts)
        self.assertEqual(whole["usage"], {"prompt_tokens": 8, "completion_tokens": 40, "total_tokens": 48})
        self.assertEqual([choice["finish_reason"] for choice in whole["choices"]], ["length"] * 2)
        stopped = self.server.complete(prompt="the old ", max_tokens=20, seed=3, temperature=0.8, stop=texts[0][5:7], echo=True)
        self.assertEqual(stopped["choices"][0]["text"], "the old " + texts[0][:texts[0].find(texts[0][5:7])])
        self.assertEqual(stopped["choices"][0]["finish_reason"], "stop")
        several = self.server.complete(prompt=["a", "red"], max_tokens=4, temperature=0, n=2)
        self.assertEqual([choice["text"] for choice in several["choices"]],
                         [self.generate(prompt, "--tokens", "4", "--temperature", "0") for prompt in ["a", "a", "red", "red"]])
        tokens = self.server.complete(prompt=[1, 2, 3], max_tokens=4, temperature=0, echo=True)["choices"][0]["text"]
        self.assertEqual(tokens[3:], self.generate(tokens[:3], "--tokens", "4", "--temperature", "0"))
        self.assertEqual(self.server.complete(prompt="a")["usage"]["completion_tokens"], 16)
        unseeded = self.server.complete(prompt=["a", "a"], max_tokens=40, temperature=2, stop=1024 * "a")["choices"]
        unseeded += self.server.complete(prompt="a", max_tokens=40, temperature=2)["choices"]
        self.assertEqual(len({choice["text"] for choice in unseeded}), 3)

    def test_streams(self):
        request = {"prompt": "red ", "max_tokens": 30, "seed": 5, "temperature": 0.8, "stream": True, "stream_options": {"include_usage": True},
                   "n": 2, "echo": True}
        status, text = self.server.ask("POST", "/v1/completions", request)
        self.assertEqual(status, 200)
        *chunks, usage, done = events(text)
        self.assertEqual(done, "[DONE]")
        self.assertEqual(json.loads(usage)["usage"]["total_tokens"], 64)
        whole = self.server.complete(**{**request, "stream": False, "stream_options": None})
        for choice in whole["choices"]:
            own = [chunk["choices"][0] for chunk in map(json.loads, chunks) if chunk["choices"][0]["index"] == choice["index"]]
            self.assertEqual("".join(each["text"] for each in own), choice["text"])
            self.assertEqual([each["finish_reason"] for each in own], [None] * (len(own) - 1) + ["length"])

    def test_logprobs(self):
        """Against the logits of a whole forward pass, whose attention adds in another order: 1e-4 of logits of order one is far above."""
        request = {"prompt": "the old ", "max_tokens": 6, "temperature": 1.3, "seed": 2, "logprobs": 3, "echo": True}
        choice, = self.server.complete(**request)["choices"]
        told, characters = choice["logprobs"], sorted(set(words(3000)))
        self.assertEqual("".join(told["tokens"]), choice["text"])
        self.assertEqual(told["text_offset"], list(range(14)))
        self.assertEqual((told["token_logprobs"][0], told["top_logprobs"][0]), (None, None))
        ids = [characters.index(letter) for letter in choice["text"]]
        done = subprocess.run([os.path.join(os.path.dirname(tandem_program.TANDEM), "tandem_interop"), "logits", self.model, *map(str, ids)],
                              stdout=subprocess.PIPE, check=True)
        for i in range(1, 14):
            logits = struct.unpack_from(f"<{len(characters)}f", done.stdout, 4 * COLUMNS * (i - 1))
            total = math.log(sum(map(math.exp, logits)))
            expected = sorted(((logit - total, letter) for logit, letter in zip(logits, characters)), reverse=True)
            top = told["top_logprobs"][i]
            likeliest = [letter for _, letter in expected[:3]]
            self.assertEqual(list(top), likeliest + [choice["text"][i]] * (choice["text"][i] not in likeliest))
            for value, letter in expected:
                for found in [top.get(letter)] + [told["token_logprobs"][i]] * (letter == choice["text"][i]):
                    self.assertAlmostEqual(found or value, value, delta=1e-4)
        chosen = self.server.complete(**{**request, "echo": False})["choices"][0]
        self.assertEqual(chosen["text"], choice["text"][8:])
        read, = self.server.complete(**{**request, "max_tokens": 0})["choices"]
        self.assertEqual((read["text"], read["finish_reason"]), ("the old ", "length"))
        for name in told:
            self.assertEqual(chosen["logprobs"][name], [each - 8 if name == "text_offset" else each for each in told[name][8:]])
            self.assertEqual(read["logprobs"][name], told[name][:8])
        chunks = [json.loads(event)["choices"][0] for event in events(self.server.ask("POST", "/v1/completions", {**request, "stream": True})[1])[:-1]]
        for name in told:
            self.assertEqual([each for chunk in chunks for each in chunk["logprobs"][name]], told[name])
        self.refused(400, "'logprobs' must be a whole number from 0 to 5", prompt="a", logprobs=6)
        alone = self.server.complete(prompt="a", max_tokens=1, logprobs=0)["choices"][0]["logprobs"]
        self.assertEqual(alone["top_logprobs"], [{alone["tokens"][0]: alone["token_logprobs"][0]}])
        whole_window = self.server.complete(prompt="a" * CONTEXT, max_tokens=0, echo=True, logprobs=0)
        self.assertEqual(len(whole_window["choices"][0]["logprobs"]["tokens"]), CONTEXT)
        self.assertEqual(whole_window["usage"]["completion_tokens"], 0)
        self.refused(400, "'max_tokens' must be a whole number from 1", prompt="a", max_tokens=0)

    def test_sagemaker(self):
        self.assertEqual(self.server.ask("GET", "/ping"), (200, ""))
        body = {"inputs": "red ", "parameters": {"max_new_tokens": 12, "do_sample": True, "temperature": 0.7, "top_k": 9, "seed": 4}}
        expected = self.generate("red ", "--tokens", "12", "--temperature", "0.7", "--top-k", "9", "--seed", "4")
        self.assertEqual(json.loads(self.server.ask("POST", "/invocations", body)[1]), [{"generated_text": expected}])
        body["parameters"]["return_full_text"] = True
        self.assertEqual(json.loads(self.server.ask("POST", "/invocations", body)[1]), [{"generated_text": "red " + expected}])
        pieces = [json.loads(event) for event in events(self.server.ask("POST", "/invocations", {**body, "stream": True})[1])]
        self.assertEqual("".join(piece["token"]["text"] for piece in pieces), expected)
        self.assertEqual([piece["generated_text"] for piece in pieces], [None] * 11 + ["red " + expected])
        del body["parameters"]["do_sample"]
        self.assertEqual(json.loads(self.server.ask("POST", "/invocations", body)[1]), [{"generated_text": "red " + expected}])
        greedy = self.server.ask("POST", "/invocations", {"inputs": "red ", "parameters": {"max_new_tokens": 5}})[1]
        self.assertEqual(json.loads(greedy)[0]["generated_text"], self.generate("red ", "--tokens", "5", "--temperature", "0"))

    def test_what_is_refused(self):
        self.refused(400, "'inputs' is missing", "/invocations")
        self.refused(400, "'max_new_tokens' must be a whole number", "/invocations", inputs="a", parameters={"max_new_tokens": 2**63})
        self.refused(400, "'repetition_penalty' is not supported", "/invocations", inputs="a", parameters={"repetition_penalty": 1.1})
        self.refused(400, "parameter 'typical_p' is not known", "/invocations", inputs="a", parameters={"typical_p": 0.5})
        self.refused(400, "'prompt' must be")
        self.refused(400, "'prompt' has a token that is none of", prompt=[1, -1])
        self.refused(400, "'prompt' has a token that is none of", prompt=[2**63])
        self.refused(400, "vocabulary", prompt="Ω")
        self.refused(400, "'frequency_penalty' is not supported", prompt="a", frequency_penalty=0.5)
        self.refused(400, "parameter 'mirostat' is not known", prompt="a", mirostat=1)
        self.refused(400, "'n' times the prompts", prompt=["a"] * 129)
        self.refused(400, "'temperature' must be a number", prompt="a", temperature="hot")
        for stop in ["", 1025 * "a"]:
            self.refused(400, "'stop' must be a text or a list of at most 16, each of 1 to 1024 bytes", prompt="a", stop=["b", stop])
        self.refused(400, "'stream' must be true or false", prompt="a", stream=1)
        self.refused(400, "'stream_options' must be an object, and needs 'stream'", prompt="a", stream=True, stream_options=5)
        self.refused(400, "'stream_options' must be an object, and needs 'stream'", prompt="a", stream_options={})
        self.refused(404, "the model 'other' does not exist", prompt="a", model="other")
        self.refused(404, "no chat template", "/v1/chat/completions", messages=[])
        deep = ['{"prompt": ' + "[" * depth + "]" * depth + "}" for depth in [15, 16]]
        for body, pattern in [("", "no JSON"), ("{", "no JSON"), ("[1]", "no JSON object"), ("nul", "no JSON"), (b'{"prompt": "\xff"}', "in UTF-8"),
                              (deep[0], "'prompt' has"), (deep[1], "nested deeper than 16"), ("[" * 100000, "nested deeper than 16")]:
            status, text = self.server.ask("POST", "/v1/completions", body)
            self.assertEqual(status, 400, body[:20])
            self.assertRegex(json.loads(text)["error"]["message"], pattern)
        for kind, status in [("text/html", 415), ("application/jsonl", 415), ("Application/JSON; charset=utf-8", 400),
                             ("application/x-www-form-urlencoded; charset=UTF-8", 400)]:
            self.assertEqual(self.server.ask("POST", "/v1/completions", "{}", {"Content-Type": kind})[0], status, kind)
        self.assertEqual(self.server.ask("GET", "/v1/completions")[0], 405)
        self.assertEqual(self.server.ask("POST", "/ping")[0], 405)
        self.assertEqual(self.server.ask("DELETE", "/ping")[0], 405)
        self.assertEqual(self.server.ask("GET", "/nothing")[0], 404)
        self.assertEqual(json.loads(self.server.ask("GET", "/v1/models")[1])["data"][0]["id"], "model")

    def test_the_window_is_crossed_by_one(self):
        prompt = "a" * 40
        self.server.complete(prompt=prompt, max_tokens=CONTEXT - 40)
        self.refused(400, "do not fit the window of 64", prompt=prompt, max_tokens=CONTEXT - 40 + 1)
        self.assertEqual(self.server.complete(prompt="a" * 63)["usage"]["completion_tokens"], 1)
        self.refused(400, "do not fit", prompt="a" * CONTEXT)

    def test_who_hangs_up_loses_the_slot(self):
        before = self.server.metric("tandem_tokens_total")
        connections = [self.server.connect() for _ in range(20)]  # enough for seconds, in which a busy machine sees the slots in use
        for connection in connections:
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "n": 128, "max_tokens": 60}))
        self.server.wait_for("tandem_slots_in_use", 5)
        for connection in connections:
            connection.close()
        self.server.wait_for("tandem_slots_in_use", 0)
        self.assertLess(self.server.metric("tandem_tokens_total") - before, len(connections) * 60 * 128)
        self.assertEqual(self.server.metric("tandem_queued_requests"), 0)


class Chats(Workspace):
    def test_chat_completions(self):
        golden = sft_files.golden_chats()
        case = next(case for case in golden["cases"] if case["name"] == "Qwen")
        tokenizer = sft_files.write_tokenizer(self.path("Qwen"), case["tokenizer"], "<|endoftext|>")
        data = sft_files.prepared(self, golden["records"], tokenizer, case["template"])
        self.train("chats", "--data.windows", "documents", "--train.steps", "1", "--model.kind", "llama", "--model.context", 128, data=data.path)
        model = self.path("chats-exported")
        self.check(run("export", self.run_folder("chats"), "--output", model))
        with open(os.path.join(model, "generation_config.json")) as file:
            self.assertEqual(json.load(file)["eos_token_id"], [0, 303])  # <|endoftext|>, and <|im_end|> after an answer
        server = Server(model)

        def chat(*said, **more):
            roles = ["user", "assistant"] * 2 if len(said) % 2 else ["system", *["user", "assistant"] * 2]
            messages = [{"role": role, "content": text} for role, text in zip(roles, said)]
            return server.ask("POST", "/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 4, **more})
        status, text = chat("a")
        self.assertEqual(status, 200, text)
        whole = json.loads(text)
        self.assertEqual(whole["choices"][0]["message"],
                         {"role": "assistant", "content": self.check(run("generate", model, "--template", "chatml", "--prompt", "a",
                                                                         "--temperature", "0", "--tokens", "4")).stdout[:-1]})
        self.assertEqual(whole["object"], "chat.completion")
        for more, most in [({}, 128 - whole["usage"]["prompt_tokens"]), ({"max_completion_tokens": 3}, 3)]:
            other = json.loads(chat("a", max_tokens=None, **more)[1])
            self.assertEqual((other["usage"]["completion_tokens"], other["choices"][0]["finish_reason"]), (most, "length"))
        *chunks, _ = map(json.loads, events(chat("a", stream=True)[1])[:-1] + ["0"])
        self.assertEqual([chunk["choices"][0]["delta"].get("role") for chunk in chunks], ["assistant"] + [None] * (len(chunks) - 1))
        self.assertEqual("".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks), whole["choices"][0]["message"]["content"])
        told = json.loads(chat("a", logprobs=True, top_logprobs=20)[1])["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(told), 4)
        for token in told:  # the likeliest is chosen
            top = token.pop("top_logprobs")
            self.assertEqual((len(top), top[0]), (20, token))
            self.assertEqual(top, sorted(top, key=lambda each: -each["logprob"]))
            self.assertLess(sum(math.exp(each["logprob"]) for each in top), 1)
        pieces = [json.loads(event)["choices"][0]["logprobs"] for event in events(chat("a", logprobs=True, stream=True)[1])[:-1]]
        self.assertEqual([{**token, "top_logprobs": []} for token in told], [token for piece in pieces if piece for token in piece["content"]])
        self.assertGreater(json.loads(chat("b", "a")[1])["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"])
        self.assertEqual(chat("a", "b", "c")[0], 200)
        for messages in [[], None, [{"role": "system", "content": "a"}], [{"role": "user", "content": "a"}] * 2, ["a"], [{"role": "user"}, 3],
                         [{"role": "tool", "content": "a"}], [{"role": "user", "content": ["a"]}]]:
            self.assertEqual(chat(messages=messages)[0], 400, messages)
        for bad in [{"tools": [1]}, {"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 1}, {"echo": True}]:
            self.assertEqual(chat("a", **bad)[0], 400, bad)
        self.assertEqual(server.end(), (0, ""))


class Limits(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Wide and deep enough that texts take a while.
        cls.train(cls, "slow", "--train.steps", "1", "--model.context", "1024", "--model.width", "256", "--model.layers", "8")
        cls.model = os.path.join(cls.path("runs"), "slow")

    def begin(self, server, tokens=1000, texts=1):
        """Asks for a text and returns the connection, whose answer has not come."""
        connection = server.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": tokens, "n": texts, "stream": True}))
        return connection

    def test_the_queue_is_full(self):
        server = Server(self.model, "--batch", "1", "--queue", "2")
        running = self.begin(server)
        server.wait_for("tandem_slots_in_use", 1)
        waiting = [self.begin(server)]
        server.wait_for("tandem_queued_requests", 1)
        waiting.append(self.begin(server))
        server.wait_for("tandem_queued_requests", 2)
        connection = self.begin(server)
        response = connection.getresponse()
        self.assertEqual((response.status, response.headers["Retry-After"]), (429, "1"))
        self.assertEqual(server.ask("GET", "/ping")[0], 200)
        waiting[0].close()
        server.wait_for("tandem_queued_requests", 1)
        waiting[1].close()
        running.close()
        server.wait_for("tandem_slots_in_use", 0)
        self.assertLess(server.metric("tandem_tokens_total"), 1000)  # not even the first text was written to its end
        self.assertEqual(server.end(), (0, ""))

    def test_the_body_the_window_and_the_time(self):
        server = Server(self.model, "--max-body-kb", "1", "--timeout-s", "1", "--context", "1000")
        self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1000})[0], 400)
        fits = json.dumps({"prompt": "a", "max_tokens": 1, "user": ""})
        fits = fits.replace('""', '"' + "u" * (1024 - len(fits)) + '"')
        self.assertEqual(server.ask("POST", "/v1/completions", fits)[0], 200)
        self.assertEqual(server.ask("POST", "/v1/completions", fits + " ")[0], 413)
        status, text = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 999, "n": 16})
        self.assertEqual(status, 504, text)
        server.wait_for("tandem_slots_in_use", 0)
        self.assertEqual(server.end(), (0, ""))

    def test_ends_when_asked_to(self):
        server = Server(self.model, "--batch", "1")
        running = self.begin(server, 400)
        server.wait_for("tandem_slots_in_use", 1)
        waiting = server.connect()
        waiting.request("POST", "/v1/completions", json.dumps({"prompt": "a"}))
        server.wait_for("tandem_queued_requests", 1)
        keeps = server.connect()
        keeps.connect()
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(waiting.getresponse().status, 503)
        keeps.request("GET", "/ping")
        self.assertEqual(keeps.getresponse().status, 503)
        self.assertEqual(events(running.getresponse().read().decode())[-1], "[DONE]")
        output, errors = server.process.communicate(timeout=DEADLINE)
        self.assertEqual((server.process.returncode, errors), (0, ""))

    def test_a_request_that_has_begun_gets_all_its_texts(self):
        server = Server(self.model, "--batch", "1")
        running = self.begin(server, 100, texts=3)
        server.wait_for("tandem_slots_in_use", 1)
        server.process.send_signal(signal.SIGTERM)
        choices = [json.loads(event)["choices"] for event in events(running.getresponse().read().decode())[:-1]]
        self.assertEqual({choice["index"] for [choice] in choices if choice["finish_reason"]}, {0, 1, 2})
        output, errors = server.process.communicate(timeout=DEADLINE)
        self.assertEqual((server.process.returncode, errors), (0, ""))

    def test_does_not_wait_longer_than_its_grace(self):
        server = Server(self.model, "--grace-s", "0")
        running = self.begin(server)
        server.wait_for("tandem_slots_in_use", 1)
        self.assertEqual(server.end(), (0, ""))
        last = events(running.getresponse().read().decode())[-1]
        self.assertEqual(json.loads(last)["error"]["message"], "the server ends")

    def test_a_second_signal_ends_at_once(self):
        server = Server(self.model)
        running = self.begin(server)
        server.wait_for("tandem_slots_in_use", 1)
        server.process.send_signal(signal.SIGTERM)
        while server.ask("GET", "/ping")[0] != 503:
            pass
        self.assertEqual(server.end(signal.SIGINT)[0], 128 + signal.SIGINT)
        running.close()

    def test_a_model_that_fails(self):
        broken = self.path("broken")
        self.check(run("export", self.model, "--output", broken))
        with open(os.path.join(broken, "model.safetensors"), "r+b") as file:
            size = os.path.getsize(file.name)
            file.seek(size // 2)
            file.write(b"\xff" * (size - size // 2))  # NaN
        server = Server(broken)
        keeps = server.connect()
        keeps.connect()
        waiting = [self.begin(server)]
        with contextlib.suppress(OSError):  # it may have ended already
            waiting += [self.begin(server), self.begin(server)]
        self.assertEqual(waiting[0].getresponse().status, 500)
        output, errors = server.process.communicate(timeout=DEADLINE)
        self.assertEqual(server.process.returncode, 70)
        self.assertRegex(errors, "^tandem: a step of the model failed: .*not finite.*\n$")
        for each in [keeps, *waiting]:
            each.close()

    def test_what_keeps_it_from_starting(self):
        server = Server(self.model)
        self.assert_one_line(self.check(run("serve", self.model, "--port", server.port), CONFIG), rf"127\.0\.0\.1.*{server.port}.*in use")
        self.assertEqual(server.end(), (0, ""))
        self.assert_one_line(self.check(run("serve", self.model, "--context", "1025"), CONFIG), "--context 1025 must be at most")
        for command in ["serve", "generate"]:
            refused = self.check(run(command, self.model, "--template", "chatml"), CONFIG)
            self.assert_one_line(refused, r"the tokenizer has no special token <\|im_end\|>")
        self.assert_one_line(self.check(run("serve", self.model, "--host", "no.such.place"), CONFIG), "no.such.place")


if __name__ == "__main__":
    tandem_program.main()
