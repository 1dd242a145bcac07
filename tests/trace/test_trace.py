#!/usr/bin/env python3
"""log.trace: what every rank did in some steps, the files that tools read, and the account of who waited for whom.

    test_trace.py TANDEM [unittest arguments]       $TANDEM_TRACE_DEVICE: cpu, or cuda over NCCL
"""
import collections
import gzip
import json
import os
import shlex
import subprocess
import sys
import unittest

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path[:0] = [os.path.join(TESTS, "program"), os.path.join(TESTS, "launch")]
import tandem_program  # noqa: E402
from plants import build_shim  # noqa: E402
from tandem_program import TINY, Workspace, losses, main, metrics, run, tensors_in  # noqa: E402

DEVICE = os.environ.get("TANDEM_TRACE_DEVICE", "cpu")
ON_DEVICE = ["--run.device", DEVICE, *(["--dist.backend", "nccl"] if DEVICE == "cuda" else [])]
PARTS = ["compute", "communication", "data", "optimizer", "saving"]
WAITING = ("communication", "data")


def events_of(path):
    with gzip.open(path) as file:
        content = json.load(file)
    return content, content["traceEvents"]


def ns(microseconds):
    return round(microseconds * 1000)


class Traced(Workspace):
    def train(self, name, *settings, ranks=1, steps=8, program=None, **more):
        command = ["train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", name, *TINY,
                   *(ON_DEVICE if ranks > 1 else ON_DEVICE[:2]), "--train.steps", str(steps), *settings]
        before = tandem_program.TANDEM
        tandem_program.TANDEM = program or before
        try:
            self.said = self.check(run(*command, ranks=ranks, **more)).stderr
        finally:
            tandem_program.TANDEM = before
        return self.run_folder(name)

    def account(self, folder):
        return json.loads(self.check(run("inspect", folder, "--trace", "--json")).stdout)

    def total(self, folder):
        """By rank: exposed communication, and of it the time that waits for each rank, of all traced steps."""
        exposed, waiting = collections.Counter(), collections.Counter()
        for step in self.account(folder)["steps"]:
            for rank in step["ranks"]:
                exposed[rank["rank"]] += rank["communication_ms"]
                for cause, time in rank["waiting_for_ms"].items():
                    waiting[rank["rank"], int(cause)] += time
        return exposed, waiting

    # Metrics have the exposed communication of the rank that waited most, and all parts of the slowest rank.
    def assert_like_metrics(self, folder):
        lines = {line["step"]: line for line in metrics(folder) if "loss" in line}
        account = self.account(folder)
        for step in account["steps"]:
            line = lines[step["step"]]
            self.assertEqual(max(rank["communication_ms"] for rank in step["ranks"]), line["exposed_comm_ms"])
            slowest = line.get("slowest")
            if slowest:
                rank = step["ranks"][slowest["rank"]]
                self.assertEqual({part: rank[part + "_ms"] for part in PARTS}, {part: slowest[part + "_ms"] for part in PARTS})
            for rank in step["ranks"]:
                self.assertAlmostEqual(rank["waiting_ms"] + rank["transfer_ms"], max(rank["communication_ms"], rank["waiting_ms"]))
        return account

    # The slices of a track nest or stand apart, and those of the compute stream add up to the parts of each step.
    def assert_well_formed(self, path, ranks):
        _, events = events_of(path)
        tracks = collections.defaultdict(list)
        for event in events:
            if event["ph"] == "X":
                tracks[event["pid"], event["tid"]].append((ns(event["ts"]), -ns(event["ts"] + event["dur"]), event["name"]))
        self.assertEqual({pid for pid, _ in tracks}, set(ranks))
        for slices in tracks.values():
            around = []
            for begin, end, name in sorted(slices):
                while around and around[-1] <= begin:
                    around.pop()
                self.assertTrue(not around or -end <= around[-1], (name, begin, -end, around))
                around.append(-end)
        return events

    def assert_parts_are_slices(self, folder, rank):
        events = self.assert_well_formed(os.path.join(folder, "trace", f"rank-{rank:04}.json.gz"), [rank])
        pieces = [event for event in events if "phase" in event.get("args", {})]
        steps = [event for event in events if "step" in event.get("args", {})]
        self.assertTrue(steps)
        for step in steps:
            begin, end = ns(step["ts"]), ns(step["ts"] + step["dur"])
            inside = [p for p in pieces if begin <= ns(p["ts"]) and ns(p["ts"] + p["dur"]) <= end]
            for number, part in enumerate(PARTS):
                sliced = sum(ns(p["dur"]) for p in inside if p["args"]["phase"] == number)
                # An end of a slice is rounded to 1 ns, and on a GPU all are stretched to the host's clock: by less than 1 %,
                # because a step takes milliseconds and each end of the trace is known to 100 us.
                bound = len(inside) + (0.01 * step["args"]["seconds"][part] * 1e9 + 1000 if DEVICE == "cuda" else 0)
                self.assertLessEqual(abs(sliced - step["args"]["seconds"][part] * 1e9), bound, part)

    def assert_collectives_meet(self, folder, ranks):
        """No collective ends before its last member begins."""
        content, events = events_of(os.path.join(folder, "trace.json.gz"))
        bound = ns(content["clocks_agree_within_us"])
        members = collections.defaultdict(list)
        for event in events:
            if "kind" in event.get("args", {}):
                members[event["args"]["group"], event["args"]["number"]].append((ns(event["ts"]), ns(event["ts"] + event["dur"])))
        whole = [spans for spans in members.values() if len(spans) == ranks]
        self.assertGreater(len(whole), 20)
        for spans in whole:  # each of two ranks differs from rank 0 by the bound
            self.assertLessEqual(max(begin for begin, _ in spans), min(end for _, end in spans) + 2 * bound)

class Trace(Traced):
    def test_parts_are_those_of_the_metrics(self):
        for ranks in (1, 2, 3, 4):
            for zero in range(4) if ranks > 1 else [0]:
                folder = self.train(f"parts-{ranks}-{zero}", "--dist.zero", str(zero), "--log.trace", "3-5", "--train.eval_every", "4",
                                    "--checkpoint.every_steps", "4", ranks=ranks)
                account = self.assert_like_metrics(folder)
                self.assertEqual([step["step"] for step in account["steps"]], [3, 4, 5])
                self.assertTrue(all(len(step["ranks"]) == ranks for step in account["steps"]))
                for rank in range(ranks):
                    self.assert_parts_are_slices(folder, rank)
                _, events = events_of(os.path.join(folder, "trace.json.gz"))
                self.assert_well_formed(os.path.join(folder, "trace.json.gz"), range(ranks))
                names = {event["name"] for event in events}
                self.assertLessEqual({"step 4", "block 0 forward", "block 0 backward", "micro-step 1", "optimizer", "memory", "upload", "loader",
                                      "validating" if DEVICE == "cpu" else "saving"}, names)
                arrows = collections.Counter(event["id"] for event in events if event["ph"] in "sf")
                self.assertEqual(set(arrows.values()), {2} if ranks > 1 else set())

    def test_tools_find_what_they_look_for(self):
        folder = self.train("meet", "--log.trace", "2-7", "--dist.zero", "3", ranks=3)
        self.assert_collectives_meet(folder, 3)
        content, events = events_of(os.path.join(folder, "trace", "rank-0001.json.gz"))
        self.assertEqual(content["distributedInfo"], {"rank": 1, "world_size": 3})
        kernels = [event for event in events if event.get("cat") == "kernel"]
        self.assertTrue(all(isinstance(event["args"]["stream"], int) for event in kernels))
        found = {event["name"] for event in kernels if event["name"].startswith("ncclKernel")}
        self.assertEqual(found, {"ncclKernel_all_gather", "ncclKernel_reduce_scatter", "ncclKernel_all_reduce"})
        self.assertEqual(sum(event["name"].startswith("ProfilerStep#") for event in events), 6)

    def test_weights_keep_their_bits(self):
        plain = self.train("plain", ranks=2, steps=6)
        same = ["--run.choices", os.path.join(plain, "choices.json")] if DEVICE == "cuda" else []  # of what was measured
        traced = self.train("traced", "--log.trace", "2-5", *same, ranks=2, steps=6)
        self.assertEqual(losses(plain), losses(traced))
        self.assertEqual(tensors_in(plain), tensors_in(traced))

    def test_other_ends(self):
        folder = self.train("short", "--log.trace", "3-100", ranks=2, steps=5)
        self.assertEqual([step["step"] for step in self.account(folder)["steps"]], [3, 4, 5])
        self.assertEqual(self.said.count("tandem: not traced: the last steps of log.trace, which the run did not reach\n"), 1)
        again = run("train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", "short", *TINY, *ON_DEVICE,
                    "--train.steps", "7", "--log.trace", "3-4", ranks=2)
        self.check(again)
        self.assertRegex(again.stderr, "(?m)^tandem: not traced: no step of log.trace has run$")
        full = self.path("runs/full")
        os.makedirs(full)
        with open(os.path.join(full, "trace"), "w"):
            pass
        shown = run("train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", "full", *TINY, *ON_DEVICE,
                    "--train.steps", "5", "--log.trace", "2-3", ranks=2)
        self.check(shown)
        self.assertRegex(shown.stderr, "(?m)^tandem: not traced: .*full/trace.*; training goes on$")

    def test_wrong_requests(self):
        for wrong in ("20-10", "0-5", "x", "1-3,7", "1-2000"):
            self.assert_one_line(run("train", "--data.path", self.text, *TINY, "--log.trace", wrong), "log.trace = .*such as 20-25")
        folder = self.train("wrong", "--log.trace", "2-3", steps=4)
        self.assert_one_line(run("inspect", folder, "--trace", "--flight"), "--flight has no meaning for ")
        self.assert_one_line(run("inspect", self.text, "--trace"), "--trace has no meaning for .*, which is no folder")
        file = os.path.join(folder, "trace", "rank-0000.json.gz")
        with open(file, "rb") as damaged:
            content = damaged.read()
        for text in (content[:100], gzip.compress(b"[1]"), gzip.compress(b'{"traceEvents": [{"ph": "X"}]}'), gzip.compress(
                gzip.decompress(content).replace(b'"dur":', b'"dur":1e300,"d":'))):
            with open(file, "wb") as damaged:
                damaged.write(text)
            self.assert_one_line(run("inspect", folder, "--trace"), "rank-0000.json.gz: ")
        os.remove(file)
        self.assert_one_line(run("inspect", folder, "--trace"), "rank-0000.json.gz: there is no such file")
        os.rmdir(os.path.join(folder, "trace"))
        self.assert_one_line(run("inspect", folder, "--trace"), "this run has no trace")


@unittest.skipIf(DEVICE == "cuda", "what is planted makes a CPU slow")
class Causes(Traced):
    def test_a_slow_rank_is_named(self):
        plants = {"LD_PRELOAD": build_shim(self.folder), "PLANT_KERNEL_US": "8000", "PLANT_FACTOR": "1.3", "PLANT_RANK": "2"}
        exposed, waiting = self.total(self.train("slow", "--log.trace", "3-6", ranks=4, environment=plants))
        for rank in (0, 1, 3):
            self.assertEqual(max(range(4), key=lambda cause: waiting[rank, cause]), 2, (exposed, waiting))
        self.assertEqual(min(exposed, key=exposed.get), 2, exposed)

    # Rank 1's monotonic clock is 3 days ahead of rank 0's, rank 2's is 6.
    def test_clocks_days_apart_are_aligned(self):
        own_clock = self.path("own_clock")
        with open(own_clock, "w") as script:
            script.write('#!/bin/sh\nexec unshare --time --fork --monotonic $((OMPI_COMM_WORLD_RANK * 259200)) '
                         f'{shlex.quote(os.path.abspath(tandem_program.TANDEM))} "$@"\n')
        os.chmod(own_clock, 0o755)
        if subprocess.run(["unshare", "--time", "--fork", "true"], capture_output=True).returncode != 0:
            self.skipTest("a time namespace needs root")
        folder = self.train("apart", "--log.trace", "2-7", ranks=3, program=own_clock)
        bases = [events_of(os.path.join(folder, "trace", f"rank-000{rank}.json.gz"))[0]["base_ns"] for rank in range(3)]
        self.assertGreater(bases[2] - bases[0], 5 * 86400 * 10**9)
        self.assert_collectives_meet(folder, 3)


if __name__ == "__main__":
    main()
