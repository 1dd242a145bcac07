#!/usr/bin/env python3
"""Figures in traces that only a machine with nothing else to do gives: shares of time, how far clocks differ, and what another
program finds in the same files.

    check_traces.py TANDEM [unittest arguments]     Installs HolisticTraceAnalysis in a folder of its own.
"""
import json
import os
import subprocess
import sys
import unittest

from test_trace import TESTS, Traced, events_of, ns

sys.path.insert(0, os.path.join(TESTS, "launch"))
import pretend_hosts  # noqa: E402
import tandem_program  # noqa: E402
from plants import build_shim, planted  # noqa: E402
from tandem_program import MPI_ENV, TINY, main  # noqa: E402

ANALYSE = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1], include_last_profiler_step=True)
print("overlap", analysis.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"].to_json())
"""


class Figures(Traced):
    def test_others_wait_for_a_slow_rank(self):
        plants = {"LD_PRELOAD": build_shim(self.folder), "PLANT_KERNEL_US": "8000", "PLANT_FACTOR": "1.3", "PLANT_RANK": "2"}
        exposed, waiting = self.total(self.train("slow", "--log.trace", "3-6", ranks=4, environment=plants))
        for rank in (0, 1, 3):
            print(f"rank {rank}: {100 * waiting[rank, 2] / exposed[rank]:.1f} % of exposed communication waits for rank 2")
            self.assertGreater(waiting[rank, 2], 0.9 * exposed[rank])

    def test_a_slow_link_is_transfer(self):
        """Kernels take their time without a processor, so that no rank waits for another one's turn."""
        pretend_hosts.require("ssh", "sshd", "mpirun")
        with pretend_hosts.Hosts(2, shared=[self.folder]) as hosts:
            hosts.start_sshd()
            hosts.shape("host1", "20mbit")
            program = planted(self.path("slow_link"), build_shim(self.folder), tandem_program.TANDEM, KERNEL_US=500)
            hosts.run("host0", ["mpirun", "--host", "host0,host1", "-np", "2", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include",
                                "eth0", "-x", "PATH", program, "train", "--data.path", self.text, "--run.dir", self.path("runs"),
                                "--run.name", "link", *TINY, "--model.width", "64", "--train.steps", "8", "--log.trace", "3-6"],
                      timeout=120, env={**os.environ, **MPI_ENV})
        exposed, waiting = self.total(self.run_folder("link"))
        for rank in (0, 1):
            share = 1 - sum(waiting[rank, other] for other in (0, 1)) / exposed[rank]
            print(f"rank {rank}: {100 * share:.1f} % of exposed communication is transfer")
            self.assertGreater(share, 0.9)

    def test_clocks_agree_within_100_us(self):
        content, _ = events_of(os.path.join(self.train("clocks", "--log.trace", "2-4", ranks=3), "trace.json.gz"))
        self.assertLess(ns(content["clocks_agree_within_us"]), 100_000)

    def test_holistic_trace_analysis_finds_the_same_overlap(self):
        folder = self.train("overlap", "--model.layers", "6", "--model.width", "256", "--dist.bucket_mb", "1", "--log.trace", "4-11",
                            ranks=3, steps=12)
        python = self.path("python/bin/python")
        for command in ([sys.executable, "-m", "venv", self.path("python")],
                        [python, "-m", "pip", "install", "-q", "HolisticTraceAnalysis"]):
            subprocess.run(command, check=True)
        result = subprocess.run([python, "-c", ANALYSE, os.path.join(folder, "trace")], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        found = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("overlap ")).split(" ", 1)[1])
        steps = self.account(folder)["steps"]
        for rank in range(3):
            all_steps = [step["ranks"][rank] for step in steps]
            hidden = 100 * sum(each["hidden_ms"] for each in all_steps) / sum(each["collectives_ms"] for each in all_steps)
            print(f"rank {rank}: {hidden:.2f} % of communication is hidden; Holistic Trace Analysis says {found[str(rank)]:.2f} %")
            self.assertLess(abs(hidden - found[str(rank)]), 1)
            self.assertGreater(hidden, 5, "hardly anything was hidden, so this compares nothing")


if __name__ == "__main__":
    main()
