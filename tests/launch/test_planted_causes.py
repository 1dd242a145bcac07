#!/usr/bin/env python3
"""launch/scaling.py on 4 ranks whose steps are slow for a planted cause, which the verdict must name. Kernels take a given
time without a processor (plant.c), as on a device of their own, so that ranks which share this machine's cores hardly slow
each other.

    test_planted_causes.py PATH_TO_TANDEM [unittest arguments]
"""
import json
import os
import re
import subprocess

import pretend_hosts
from plants import build_shim, planted
from supervised import ROOT, Launched
import tandem_program
from tandem_program import MPI_ENV, SHAPES

KERNEL_US = 1500  # a step has about 40 parallel kernels


class Planting(Launched):
    """Studies of programs with plants."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.shim = build_shim(cls.folder)

    def command(self, name, *words, **plants):
        program = planted(self.path(name + "-tandem"), self.shim, tandem_program.TANDEM, KERNEL_US=KERNEL_US, **plants)
        return [os.path.join(ROOT, "launch", "scaling.py"), "--name", name, "--dir", self.path("studies"), "--tandem", program,
                "--launches", "1", "--warmup", "2", "--keep", "16", "--data.path", self.text, *SHAPES["gpt"],
                "--train.global_batch", "12", "--run.threads", "1", "--run.watch_spot", "off", *map(str, words)]

    def case(self, name, ranks=4):
        with open(os.path.join(self.path("studies"), name, "results.json")) as file:
            results = json.load(file)
        [case] = [case for case in results["cases"] if case["ranks"] == ranks]
        return case

    def verdict(self, name, *words, **plants):
        """Of a study with one case."""
        command = self.command(name, "--ranks", 4, *words, **plants)
        self.check(subprocess.run(command, env=MPI_ENV, capture_output=True, text=True, timeout=300))
        return self.case(name)["verdict"]


class Planted(Planting):
    def test_nothing_is_planted(self):
        self.assertNotRegex(self.verdict("nothing")["finding"], "waits for (rank|data|saves|the link)")

    def test_one_rank_computes_longer(self):
        verdict = self.verdict("rank", RANK=2, FACTOR=1.3)
        self.assertEqual(verdict["finding"], "waits for rank 2, which computes longer")
        self.assertIn(f"rank 2 on {os.uname().nodename} was slowest", verdict["evidence"])
        slowest = [max(range(4), key=own_ms.__getitem__) for own_ms in self.case("rank")["heat"]["own_ms"]]
        self.assertGreaterEqual(slowest.count(2), 0.8 * 16, slowest)

    def test_a_stalling_loader(self):
        """A rank reads three windows a step, one after the other."""
        verdict = self.verdict("data", READ_US=30000)
        self.assertEqual((verdict["finding"], verdict["next"]), ("waits for data", "a larger data.prefetch, or faster storage"))

    def test_the_loader_of_one_rank_stalls(self):
        verdict = self.verdict("loader", READ_US=30000, RANK=1)
        self.assertEqual(verdict["finding"], "waits for rank 1, which waits for data")
        self.assertEqual(verdict["next"], f"look at the storage of {os.uname().nodename}")

    def test_a_slow_save(self):
        """The saves are so slow that what other work on this machine adds to one rank's is little."""
        verdict = self.verdict("saves", "--checkpoint.every_steps", 2, SYNC_US=200000)
        self.assertEqual((verdict["finding"], verdict["next"]), ("waits for saves", "rarer checkpoints or faster storage for run.dir"))

    def test_the_saves_of_one_rank_are_slow(self):
        verdict = self.verdict("save", "--checkpoint.every_steps", 2, SYNC_US=60000, RANK=3)
        self.assertEqual(verdict["finding"], "waits for saves of rank 3")
        self.assertEqual(verdict["next"], f"look at the storage of {os.uname().nodename} or rarer checkpoints")


class Link(Planting):
    def test_a_slow_link(self):
        """Two ranks on each of two hosts, which send each other 2.5 MB a second."""
        pretend_hosts.require("sshd", "ssh", "mpirun")
        self.make_hosts(2)
        self.hosts.start_sshd()
        self.hosts.shape("host1", "20mbit")
        command = self.command("link", "--ranks", 2, 4, "--hosts", "host0,host1", "--node-size", 2, "--model.width", 64)
        self.check(self.hosts.run("host0", command, timeout=300, check=False))
        finding = self.case("link")["verdict"]["finding"]
        low, high = map(float, re.fullmatch(r"waits for the link between nodes: (\S+) to (\S+) GB/s", finding).groups())
        self.assertLess(low, 1.1 * 0.0025, "what was sent in whole steps")
        self.assertLess(low, high, "what was sent while nothing hid it")


if __name__ == "__main__":
    tandem_program.main()
