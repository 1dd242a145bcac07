#!/usr/bin/env python3
"""Where the time of a step goes: the parts in metrics.jsonl add up, and a rank that makes the others wait is named.

    test_time.py PATH_TO_TANDEM [unittest arguments]

With TANDEM_TIME_DEVICE=cuda in the environment the training runs on a GPU, or on the emulated one.
"""
import os
import signal
import subprocess
import threading
import time

import tandem_program
from tandem_program import MPI_ENV, OK, Workspace, metrics

DEVICE = os.environ.get("TANDEM_TIME_DEVICE", "cpu")
PARTS = ["compute_ms", "communication_ms", "data_ms", "optimizer_ms", "copy_ms"]
MODEL = ["--model.layers", "2", "--model.heads", "2", "--model.width", "32", "--model.context", "16", "--run.device", DEVICE,
         "--dist.backend", "mpi", "--train.log_every", "1"]


class Time(Workspace):
    def steps(self, name):
        """The lines about steps that were not skipped, and each step's slowest rank."""
        lines = [line for line in metrics(self.run_folder(name)) if "slowest" in line]
        return [(line, line["slowest"]) for line in lines]

    def test_the_parts_of_every_step_add_up(self):
        for ranks, zero, more in [(1, 0, []), (2, 1, ["--train.micro_batch", "2"]), (3, 2, ["--dist.reduce", "exact"]),
                                  (4, 3, ["--train.recompute", "block"])]:
            with self.subTest(ranks=ranks, zero=zero):
                name, began = f"parts{ranks}", time.monotonic()
                self.train(name, *MODEL, "--dist.zero", str(zero), "--train.steps", "12", "--train.eval_every", "5",
                           "--checkpoint.every_steps", "4", "--train.skip_batches", "7", *more, ranks=ranks)
                steps = self.steps(name)
                self.assertEqual([line["step"] for line, _ in steps], [step for step in range(1, 13) if step != 7])
                # On a CPU by two clocks: of the parts, and of whole steps. Each reads the host's a few times a step, which takes
                # less than a tenth of a millisecond. A process that must wait for a core between two such readings moves time
                # from one step to the next.
                together = [sum(slowest[part] for part in PARTS) for _, slowest in steps]
                whole = [slowest["step_ms"] for _, slowest in steps]
                moved = [(ms, step_ms) for ms, step_ms in zip(together, whole) if abs(ms - step_ms) > 0.03 * step_ms + 0.1]
                self.assertLessEqual(len(moved), 2, moved)
                for line, slowest in steps:
                    self.assertTrue(all(slowest[part] >= 0 for part in PARTS), line)
                    self.assertLess(slowest["rank"], ranks)
                    self.assertGreaterEqual(slowest["ratio"], 1)
                    self.assertGreaterEqual(line["exposed_comm_ms"], slowest["communication_ms"])
                    self.assertEqual(len(line["own_ms"]), ranks)
                    own = sum(slowest[part] for part in PARTS if part != "communication_ms")
                    self.assertAlmostEqual(line["own_ms"][slowest["rank"]], own, delta=0.001)  # rounded to a microsecond
                    self.assertEqual(max(line["own_ms"]), line["own_ms"][slowest["rank"]])
                self.assertLess(sum(line["step_ms"] + slowest["saving_ms"] for line, slowest in steps), 1000 * (time.monotonic() - began))
                self.assertGreater(sum(slowest["optimizer_ms"] for _, slowest in steps), 0)
                saved = [slowest["saving_ms"] for line, slowest in steps if line["step"] in (5, 9)]
                self.assertTrue(all(ms > 0 for ms in saved), saved)
                self.assertEqual([slowest["saving_ms"] for line, slowest in steps if line["step"] in (1, 2, 3, 4)], [0] * 4)

    def test_a_slow_rank_is_named(self):
        """Rank 2 of 4 stands still again and again, mostly while it computes: on a CPU four micro-batches for each message."""
        large = ["--model.width", "256", "--train.global_batch", "48", "--train.micro_batch", "3"] if DEVICE == "cpu" else []
        command = ["timeout", "-k", "5", "120", "mpirun", "-np", "4", tandem_program.TANDEM, "train", "--data.path", self.text,
                   "--run.dir", self.path("runs"), "--run.name", "slow", *tandem_program.QUICK, *MODEL,
                   *large, "--train.steps", "20"]
        job = subprocess.Popen(command, env=MPI_ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        ended = threading.Event()
        slowing = threading.Thread(target=self.slow_down, args=("2", ended))
        slowing.start()
        output, errors = job.communicate(timeout=130)
        ended.set()
        slowing.join()
        self.assertEqual(job.returncode, OK, errors)
        warnings = [line for line in output.splitlines() if line.startswith("warning")]
        self.assertEqual(len([line for line in warnings if line.startswith("warning     rank 2 on " + os.uname().nodename)]), 1, output)
        self.assertRegex(warnings[0], r"slowest in 8 of the last 10 logged steps, now \d+ % above the median; it spends "
                                      r"\d+ % computing, \d+ % waiting for data, \d+ % in the optimizer")

    def slow_down(self, rank, ended):
        """Stops this rank of the job for nine tenths of the time."""
        process = None
        while process is None and not ended.is_set():
            time.sleep(0.05)
            process = next(filter(lambda candidate: self.is_rank(candidate, rank), filter(str.isdigit, os.listdir("/proc"))), None)
        try:
            while not ended.is_set():
                os.kill(int(process), signal.SIGSTOP)
                time.sleep(0.09)
                os.kill(int(process), signal.SIGCONT)
                time.sleep(0.01)
        except (ProcessLookupError, TypeError):  # the job has ended
            pass

    def is_rank(self, process, rank):
        try:
            with open(f"/proc/{process}/environ", errors="replace") as environment, open(f"/proc/{process}/cmdline", errors="replace") as command:
                return f"OMPI_COMM_WORLD_RANK={rank}\0" in environment.read() and self.folder in command.read()
        except OSError:
            return False


if __name__ == "__main__":
    tandem_program.main()
