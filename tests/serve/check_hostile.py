#!/usr/bin/env python3
"""200 hostile clients against `tandem serve` while others get their texts: /ping answers within 250 ms throughout, memory stays
within 32 MiB, and afterwards all slots and connections are free. Then SIGTERM under load, 50 times.

    check_hostile.py PATH_TO_TANDEM [unittest arguments]

Part of tests/nightly.sh.
"""
import concurrent.futures
import json
import os
import random
import socket
import sys
import threading
import time

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(TESTS, "program"), os.path.join(TESTS, "serve")]
import tandem_program
from tandem_program import Workspace
from server import DEADLINE, Server, events

GOOD = json.dumps({"prompt": "the old ", "max_tokens": 30, "seed": 1, "temperature": 0.8})
CLIENTS, STOPS = 200, 50


def post(body, *fields, path="/v1/completions"):
    head = [f"POST {path} HTTP/1.1", "Host: a", *(fields or [f"Content-Length: {len(body)}"])]
    return "\r\n".join([*head, "", body]).encode()


def chunked(body):
    return post(body, "Transfer-Encoding: chunked")


# What is sent, and how: whole, a byte at a time, never read, or left at a byte.
def attacks(dice):
    streamed = json.dumps({"prompt": "a", "max_tokens": 60, "n": 100, "stream": True})
    whole = [post('{"prompt": "' + "[" * 1000), post("[" * 500000), post('{"prompt": "\\u0000"}'), post('{"prompt": "a", "max_tokens": 9223372036854775808}'),
             post(GOOD, "Content-Length: 9223372036854775808"), post(GOOD, "Content-Length: -1"), post(GOOD, f"Content-Length: {len(GOOD) + 9}"),
             chunked("1;" + "x" * 20000), chunked("ffffffffffffffff\r\n"), chunked("1\r\na\r\n" * 20000), b"GET /" + b"a" * 9000, b"\0" * 1000,
             b"\x16\x03\x01\x02\x00" * 10, post(GOOD) * 20, b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n" * 500, post(streamed)]
    return dice.choice(whole), dice.choice(["whole", "slow", "unread", "left"])


def attack(port, seed, ends):
    dice = random.Random(seed)
    while time.monotonic() < ends:
        data, way = attacks(dice)
        with socket.create_connection(("127.0.0.1", port), timeout=2) as client:
            try:
                if way == "slow":
                    for byte in data[:40]:
                        client.send(bytes([byte]))
                        time.sleep(dice.random() / 20)
                elif way == "left":
                    client.sendall(data[:dice.randrange(len(data))])
                else:
                    client.sendall(data)
                    if way == "whole":
                        client.recv(1 << 16)
                    else:
                        time.sleep(dice.random())
            except OSError:
                pass  # the server has had enough


def resident(process):
    with open(f"/proc/{process}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Hostile(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train(cls, "model", "--train.steps", "20", "--model.context", "64")
        cls.model = os.path.join(cls.path("runs"), "model")

    def test_200_clients(self):
        server = Server(self.model)
        expected = server.ask("POST", "/v1/completions", GOOD)
        text = json.loads(expected[1])["choices"][0]["text"]
        for seed in range(20):  # what is allocated once
            attack(server.port, seed, time.monotonic() + 0.2)
        before, slowest, stop = resident(server.process.pid), 0, threading.Event()

        def ping():
            nonlocal slowest
            while not stop.is_set():
                began = time.monotonic()
                self.assertEqual(server.ask("GET", "/ping")[0], 200)
                slowest = max(slowest, time.monotonic() - began)
                time.sleep(0.05)
        with concurrent.futures.ThreadPoolExecutor(CLIENTS + 1) as pool:
            pinging = pool.submit(ping)
            ends = time.monotonic() + 20
            for client in [pool.submit(attack, server.port, 1000 + seed, ends) for seed in range(CLIENTS)]:
                client.result()
            stop.set()
            pinging.result()
        for gauge in ["tandem_slots_in_use", "tandem_queued_requests"]:
            server.wait_for(gauge, 0)
        answer = server.ask("POST", "/v1/completions", GOOD)
        self.assertEqual(json.loads(answer[1])["choices"][0]["text"], text)
        grown = resident(server.process.pid) - before
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end and self.connections(server) > 0:
            time.sleep(0.1)
        self.assertEqual(self.connections(server), 0)
        print(f"slowest /ping {slowest * 1e3:.0f} ms, memory grew by {grown / 2**20:.1f} MiB", file=sys.stderr)
        self.assertEqual(server.end(), (0, ""))
        self.assertLess(grown, 32 << 20)
        self.assertLess(slowest, 0.25)

    @staticmethod
    def connections(server):
        """Those of its sockets that are not listening."""
        folder = f"/proc/{server.process.pid}/fd"
        return sum(os.readlink(os.path.join(folder, each)).startswith("socket:") for each in os.listdir(folder)) - 1

    def test_sigterm_under_load(self):
        for turn in range(STOPS):
            server = Server(self.model, "--batch", "4")
            dice = random.Random(turn)

            def ask(number):
                try:
                    return server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 60, "seed": number, "stream": number % 2 == 1})
                except OSError:
                    return None  # not accepted
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                answers = [pool.submit(ask, number) for number in range(48)]
                time.sleep(dice.random() / 10)
                self.assertEqual(server.end(), (0, ""))
                for number, answer in enumerate(answers):
                    if answer.result():
                        status, text = answer.result()
                        self.assertIn(status, [200, 429, 503])
                        if status == 200:
                            whole = events(text)[-1] == "[DONE]" if number % 2 else json.loads(text)["usage"]["completion_tokens"] == 60
                            self.assertTrue(whole, text[-200:])


if __name__ == "__main__":
    tandem_program.main()
