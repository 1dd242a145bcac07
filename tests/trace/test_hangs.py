#!/usr/bin/env python3
"""A job that hangs, or loses a rank, says which rank is the cause and what it does.

    test_hangs.py TANDEM [unittest arguments]       $TANDEM_HANGS_DEVICE: cpu, or cuda over NCCL
"""
import contextlib
import glob
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path[:0] = [os.path.join(TESTS, "program"), os.path.join(TESTS, "launch")]
import tandem_program  # noqa: E402
from plants import build_shim  # noqa: E402
from tandem_program import DATA, MPI_ENV, OK, TINY, Workspace, logged, main, run  # noqa: E402

TEMPORARY = 75
KILLS = int(os.environ.get("TANDEM_FLIGHT_KILLS", 5))
# As in comm/transport/mpi_wire.cpp: a tag is the number of a collective, modulo NUMBERS, times the number of kinds, plus its kind.
KINDS = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "sum", "broadcast of text", "gathering of text", "barrier", "split",
         "clock"]
NUMBERS = 32766 // len(KINDS)
DEVICE = os.environ.get("TANDEM_HANGS_DEVICE", "cpu")
SETTINGS = [*TINY, "--train.steps", "100000", "--run.device", DEVICE, "--dist.timeout_s", "5",
            *(["--dist.backend", "nccl"] if DEVICE == "cuda" else [])]


class Job:
    """3 ranks that train."""

    def __init__(self, test, name, *settings, **environment):
        self.folder = test.run_folder(name)
        command = [tandem_program.TANDEM, "train", "--data.path", test.text, "--run.dir", test.path("runs"), "--run.name", name,
                   *SETTINGS, *settings]
        self.process = subprocess.Popen(
            ["timeout", "-k", "5", "120", "mpirun", "-np", "3", *command], env=dict(MPI_ENV, **environment), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)

    def wait_for_step(self, step):
        while not os.path.exists(os.path.join(self.folder, "metrics.jsonl")) or \
                not any(line.get("step", 0) >= step for line in logged(self.folder)):
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)

    def flight(self):
        result = run("inspect", self.folder, "--flight", "--json")
        assert result.returncode == OK, result.stderr
        return json.loads(result.stdout)

    def number_of(self, rank):
        return self.flight()["ranks"][rank]["process"]

    def end(self):
        """The exit code, what was said, and the seconds until then."""
        begin = time.monotonic()
        said = self.process.communicate()[1]
        return self.process.returncode, said, time.monotonic() - begin


class Hangs(Workspace):
    def stop_a_rank(self, name, *settings, within):
        """The process of rank 1, and what the job said when it ended because of this."""
        job = Job(self, name, *settings)
        job.wait_for_step(3)
        process = job.number_of(1)
        os.kill(process, signal.SIGSTOP)
        try:
            code, said, seconds = job.end()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.assertEqual(code, TEMPORARY)
        self.assertLess(seconds, within)
        return process, said

    def test_a_stopped_rank_is_named(self):
        process, said = self.stop_a_rank("stopped", within=15)
        moves = r"graph of \d+ bytes .*, from \w+ of .* to \w+ of .*: nothing moved|" if DEVICE == "cuda" else ""  # or it waits for a message
        self.assertRegex(said, rf"tandem: rank \d on .*: ({moves}rank \d (sent|took) nothing) for 5 s.*; rank 1 on \S+ \(process {process}\) is stopped, in")

    def test_a_loader_that_hangs_is_named(self):
        job = Job(self, "loader", "--dist.timeout_s", "1", LD_PRELOAD=build_shim(self.folder), PLANT_RANK="2",
                  PLANT_READ_US="60000000")
        code, said, seconds = job.end()
        self.assertEqual(code, TEMPORARY)
        self.assertLess(seconds, 60)
        self.assertEqual(len(re.findall(r"(?m)^tandem: waiting for rank 2 on \S+, which is in data for \d+ s$", said)), 9, said)
        self.assertRegex(said, r"rank 2 on \S+ did not join sum \d+ of this run \(votes, \d+ bytes\) of step 0, in which "
                               r"ranks 0, 1 wait for 1\d s: it is in data for 1\d s")

    def test_a_slow_save_is_waited_for(self):
        job = Job(self, "slow", "--dist.timeout_s", "1", "--train.steps", "4", "--checkpoint.every_steps", "2",
                  "--checkpoint.async", "false", LD_PRELOAD=build_shim(self.folder), PLANT_RANK="1", PLANT_SYNC_US="1500000")
        code, said, _ = job.end()
        self.assertEqual(code, OK, said)
        self.assertGreaterEqual(len(re.findall(r"(?m)^tandem: waiting for rank 1 on \S+, which is in saving for \d s$", said)), 3, said)

    def test_a_killed_rank_is_known_afterwards(self):
        job = Job(self, "killed")
        job.wait_for_step(10)
        process = job.number_of(2)
        os.kill(process, signal.SIGKILL)
        code, _, _ = job.end()
        self.assertNotEqual(code, OK)
        flight = job.flight()
        self.assertRegex(flight["verdict"], rf"^rank 2 on \S+ \(process {process}\) is gone, in ")
        last = flight["ranks"][2]["collectives"]
        self.assertEqual(len(last), 20)
        self.assertTrue(all(each["ended_ns"] >= each["enqueued_ns"] for each in last[:10]))
        shown = self.check(run("inspect", job.folder, "--flight")).stdout
        self.assertRegex(shown, rf"(?m)^rank 2 on \S+ \(process {process}\) is gone, step \d+, in .*\n"
                                r"  \w+ \d+ of this run \(.*(?:bytes|MB)\) of step \d+ took .* ms$")
        self.assertEqual(shown.splitlines()[-1].split(", in ")[0], flight["verdict"].split(", in ")[0])

    @unittest.skipIf(DEVICE == "cuda", "it records messages of MPI")
    def test_killed_ranks_leave_their_last_collective(self):
        recorder, noted = self.path("last_call.so"), self.path("last_call")
        source = os.path.join(TESTS, "trace", "last_call.c")
        self.check(subprocess.run(["mpicc", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-o", recorder, source],
                                  capture_output=True, text=True))
        pick = random.Random(40)
        for kill in range(KILLS):
            job = Job(self, f"kill-{kill}", LD_PRELOAD=recorder, LAST_CALL=noted)
            job.wait_for_step(pick.randrange(1, 60))
            rank = pick.randrange(3)
            os.kill(job.number_of(rank), signal.SIGKILL)
            job.end()
            with open(f"{noted}-{rank}", "rb") as file:
                number, kind = divmod(struct.unpack("<i", file.read())[0], len(KINDS))
            # The record is written first: a rank that dies between the two has begun one more.
            begun = sorted((each["begun_ns"], each["number"] % NUMBERS, each["kind"])
                           for each in job.flight()["ranks"][rank]["collectives"] if each["begun_ns"])
            self.assertIn((number, KINDS[kind]), [last[1:] for last in begun[-2:]], (kill, begun))

    @unittest.skipUnless("TANDEM_HANGS_LONG" in os.environ, "it takes more than a minute")
    def test_a_hang_is_named_within_75_s_by_default(self):
        process, said = self.stop_a_rank("default", "--dist.timeout_s", "auto", within=75)
        self.assertRegex(said, rf"rank 1 on \S+ \(process {process}\) is stopped, in")

    def test_a_run_that_ended_waits_for_nobody(self):
        self.check(self.run_train("ended", ranks=3))
        shown = self.check(run("inspect", self.run_folder("ended"), "--flight")).stdout
        self.assertEqual(len(re.findall(r"(?m)^rank \d on \S+ \(process \d+\) ended with code 0, step 4, ", shown)), 3)
        self.assertTrue(shown.endswith("\nno rank waits for another\n"))
        with open(os.path.join(self.run_folder("ended"), "flight", "rank-0000"), "rb") as record:
            start = struct.unpack_from("<q", record.read(), 8)[0]
        self.assertEqual(glob.glob(f"/dev/shm/tandem-flight-{start}-*"), [])

    def run_train(self, name, ranks):
        return run("train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", name, *SETTINGS,
                   "--train.steps", "4", ranks=ranks)

    def test_wrong_requests(self):
        self.assert_one_line(run("inspect", self.text, "--flight"), "--flight has no meaning for .*, which is no folder")
        self.check(self.run_train("damaged", ranks=1))
        folder = os.path.join(self.run_folder("damaged"), "flight")
        with open(os.path.join(folder, "rank-0000"), "r+") as record:
            record.truncate(1000)
        self.assert_one_line(run("inspect", self.run_folder("damaged"), "--flight"), "rank-0000: it is no whole flight record")
        os.remove(os.path.join(folder, "rank-0000"))
        for _ in range(2):  # an empty folder, and none
            self.assert_one_line(self.check(run("inspect", self.run_folder("damaged"), "--flight"), DATA), "this run has no flight records")
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
