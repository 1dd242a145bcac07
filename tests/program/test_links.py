#!/usr/bin/env python3
"""`tandem bench links` measures what ranks exchange, and `tandem estimate --machine` uses it.

    test_links.py PATH_TO_TANDEM [unittest arguments]

With TANDEM_LINKS_DEVICE=cuda in the environment the arrays are on a GPU, or on the emulated one.
"""
import json
import os

import tandem_program
from tandem_program import CONFIG, DATA, OK, Workspace, run

DEVICE = os.environ.get("TANDEM_LINKS_DEVICE", "cpu")
# The links that `tandem estimate` states for this machine's CPUs.
STATED = {"inside": {"latency_us": 20, "gb_s": 2}, "between": {"latency_us": 50, "gb_s": 1}}
PASSES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "all_to_all": 1}


class Links(Workspace):
    def bench(self, *words, ranks, code=OK):
        return self.check(run("bench", "links", "--run.device", DEVICE, "--largest-mib", "1", *words, ranks=ranks), code)

    def measure(self, ranks, *words):
        """What was printed, and the file."""
        path = self.path("machine.json")
        said = self.bench("--output", path, *words, ranks=ranks).stdout
        with open(path) as file:
            return said, json.load(file)

    def machine(self, name, **network):
        with open(self.path(name), "w") as file:
            json.dump({"format": "tandem links 1", "network": network}, file)
        return self.path(name)

    def estimate(self, *words):
        job = ["--data.path", self.text, "--ranks", "4", "--node-size", "2", "--dist.bucket_mb", "1", "--tflops", "1",
               "--memory-gb-s", "10", "--memory-gib", "1"]
        rows = json.loads(self.check(run("estimate", "--json", *job, *words), OK).stdout)["rows"]
        return [row["step_ms"] for row in rows]

    def test_two_nodes(self):
        said, machine = self.measure(4, "--dist.node_size", "2")
        self.assertEqual([(group["scope"], group["ranks"], group["groups"]) for group in machine["groups"]],
                         [("inside", 2, 2), ("between", 2, 2), ("all", 4, 1)])
        for group in machine["groups"]:
            self.assertEqual(group["collectives"].keys(), PASSES.keys())
            for name, collective in group["collectives"].items():
                self.assertEqual([sample["bytes"] for sample in collective["samples"]], [4 ** i << 10 for i in range(1, 6)])
                for sample in collective["samples"]:
                    algorithm = sample["bytes"] / sample["seconds"] / 1e9
                    self.assertAlmostEqual(sample["algorithm_gb_s"] / algorithm, 1, 12)
                    self.assertAlmostEqual(sample["bus_gb_s"] / algorithm, PASSES[name] * (1 - 1 / group["ranks"]), 12)
                    self.assertLess(sample["seconds"], 60)
        self.assertEqual(machine["network"].keys(), {"inside", "between"})
        self.assertRegex(machine["measured"], "; 4 ranks, 2 on each node")
        self.assertEqual(said.count("between, 2 ranks in each of 2 groups at once: all_gather\n"), 1)
        self.assertEqual(said.count("\n       1048576 "), 12)
        self.estimate("--machine", self.path("machine.json"))

    def test_one_node(self):
        said, machine = self.measure(3)
        self.assertEqual([(group["scope"], group["ranks"]) for group in machine["groups"]], [("inside", 3)])
        sizes = [sample["bytes"] for sample in machine["groups"][0]["collectives"]["all_reduce"]["samples"]]
        self.assertEqual(sizes, [(4 ** i << 10) // 12 * 12 for i in range(1, 6)])  # whole elements for each of the ranks
        self.assertNotIn("link of a node to others", said)
        job = ["estimate", "--vocab", "9", "--ranks", "6", "--node-size", "3", "--machine", self.path("machine.json")]
        self.assert_one_line(self.check(run(*job), CONFIG),
                             "machine.json: has no links between nodes, which 6 ranks with 3 on each node use")

    def test_a_node_for_each_rank(self):
        machine = self.measure(2, "--dist.node_size", "1")[1]
        self.assertEqual([(group["scope"], group["ranks"]) for group in machine["groups"]], [("between", 2)])

    def test_estimates_use_the_file(self):
        stated = self.estimate()
        self.assertEqual(self.estimate("--machine", self.machine("same.json", **STATED)), stated)
        slower = self.machine("slower.json", inside={"latency_us": 20, "gb_s": 1}, between={"latency_us": 50, "gb_s": 0.5})
        self.assertEqual(self.estimate("--machine", slower), self.estimate("--inside-gb-s", "1", "--between-gb-s", "0.5"))
        self.assertNotEqual(self.estimate("--machine", slower), stated)
        short = {"below_bytes": 1e12, "latency_us": 20, "gb_s": 1}
        one_slower = self.machine("short.json", inside={"latency_us": 20, "gb_s": 1e6, "short": short}, between=STATED["between"])
        self.assertEqual(self.estimate("--machine", one_slower), self.estimate("--inside-gb-s", "1"))
        self.assertEqual(self.estimate("--machine", one_slower, "--inside-gb-s", "2"), self.estimate("--inside-gb-s", "2"))
        # Messages of bf16 are exchanged by all_to_all.
        direct = self.machine("direct.json", inside=STATED["inside"], between={**STATED["between"], "all_to_all_times": 2})
        self.assertEqual(self.estimate("--machine", direct), stated)
        bf16 = ["--dist.wire_dtype", "bf16", "--dist.overlap", "false"]
        self.assertGreater(self.estimate("--machine", direct, *bf16)[0], self.estimate(*bf16)[0])

    def test_bad_requests(self):
        self.assert_one_line(self.bench(ranks=1, code=CONFIG), "1 rank has no links; start it under mpirun -np N")
        self.assert_one_line(self.bench("--largest-mib", "0", ranks=2, code=CONFIG), "largest-mib = 0")
        self.assert_one_line(self.check(run("bench", "link"), CONFIG), 'tandem bench: say links, not "link"')
        taken = self.machine("taken.json")
        self.assert_one_line(self.bench("--output", taken + "/machine.json", ranks=2, code=DATA), "taken.json")
        self.assert_one_line(self.bench("--output", self.folder, ranks=2, code=DATA), "--output .*: is a folder; name a file in it")
        self.assert_one_line(self.bench("--output", self.path("new/machine.json"), ranks=2, code=DATA),
                             "--output .*new/machine.json: there is no folder .*new; make it first")
        self.assertFalse(os.path.exists(self.path("new")))
        self.assert_one_line(self.check(run("estimate", "--vocab", "9", "--machine", self.text), DATA),
                             "no file of `tandem bench links --output`")
        no_rate = self.machine("no_rate.json", inside={"latency_us": 1, "gb_s": None})
        self.assert_one_line(self.check(run("estimate", "--vocab", "9", "--machine", no_rate), DATA),
                             "no_rate.json.*: network.inside.gb_s must be a number from 1e-06 to 1e[+]06, not null")


if __name__ == "__main__":
    tandem_program.main()
