#!/usr/bin/env python3
"""How the program starts: in little memory, with threads that the user chose, held for a debugger, and on shared storage; and
how signals end it.

    test_startup.py PATH_TO_TANDEM [unittest arguments]
"""
import array
import ctypes
import fcntl
import os
import re
import resource
import signal
import subprocess
import termios
import time
from pathlib import Path

import tandem_program
from tandem_program import CONFIG, DATA, MPI_ENV, OK, OUT_OF_MEMORY, STOPPED, TINY, Workspace, metrics, run


def limited(mib, *arguments, **environment):
    """A run in `mib` MiB of address space. One that does not end within 20 seconds raises TimeoutExpired."""
    limit = (mib << 20, mib << 20)
    return run(*arguments, environment=environment, timeout=20, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit))


class Startup(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # What the program's libraries need.
        cls.base = next(mib for mib in range(60, 8000, 10) if limited(mib, "--help").returncode == OK)

    @staticmethod
    def started(mib, *arguments):
        """A run with the smallest limit, from `mib` on, with which libraries start: cuBLASLt crashes with some of them."""
        runs = (limited(more, *arguments) for more in range(mib, mib + 50, 10))
        return next(result for result in runs if result.returncode != -signal.SIGSEGV)

    def test_little_address_space(self):
        for more in [60, 120, 190, 320]:
            result = self.started(self.base + more, "train", "--data.path", self.text, "--run.dir", self.path("runs"),
                                  "--run.name", f"little{more}", "--run.device", "cpu", *TINY, "--model.width", "1024", "--model.layers", "8")
            self.assert_one_line(self.check(result, OUT_OF_MEMORY), "out of cpu memory: a step needs .*; there are .* for this rank")

    def test_openmp_gets_what_the_user_did_not_choose(self):
        def environment(**chosen):
            held = dict({name: value for name, value in MPI_ENV.items() if name not in ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"]},
                        TANDEM_WAIT_RANK="0", **chosen)
            job, process = self.start_held(held)
            with open(f"/proc/{process}/environ") as file:
                got = dict(entry.split("=", 1) for entry in file.read().split("\0") if entry)
            os.kill(process, signal.SIGCONT)
            self.finish(job)
            return [got.get(name) for name in ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"]]
        self.assertEqual(environment(), [None, "1000"])
        self.assertEqual(environment(OMP_WAIT_POLICY="passive"), ["passive", None])
        self.assertEqual(environment(GOMP_SPINCOUNT="5"), [None, "5"])

    def test_memory_outside_the_tensor_pool(self):
        # The text of a file is in no tensor, but mapped as a whole.
        big = self.path("big.txt")
        with open(big, "w") as file:
            file.writelines("x" * 1023 + "\n" for _ in range(200 << 10))
        result = self.started(self.base + 150, "prepare", "text", "--input", big, "--output", self.path("big.h5"),
                              "--tokenizer", "bytes")
        self.assert_one_line(self.check(result, OUT_OF_MEMORY), "out of memory; free memory on this machine, or prepare several smaller datasets")
        self.assertFalse(os.path.exists(self.path("big.h5")))

    def start_held(self, environment, ranks=1, *settings):
        """Starts a job with a held rank; returns the job and the rank's process once the rank has said that it waits."""
        command = [tandem_program.TANDEM, "inspect", self.text, *settings]
        if ranks > 1:
            command = ["timeout", "-k", "5", "60", "mpirun", "-np", str(ranks), tandem_program.TANDEM, "train", "--data.path", self.text,
                       "--run.dir", self.path("runs"), "--run.name", "held", "--train.steps", "2", *TINY, *settings]
        job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.terminate)
        line = job.stderr.readline()
        self.said = re.match(r"tandem: rank (\d) waits as process (\d+) on \S+: `gdb -p \2` .* `kill -CONT \2`", line)
        self.assertIsNotNone(self.said, line)
        return job, int(self.said[2])

    def test_its_name(self):
        """As `ps` and `top` show it; the program starts itself again as /proc/self/exe."""
        job, process = self.start_held({name: value for name, value in dict(MPI_ENV, TANDEM_WAIT_RANK="0").items()
                                        if not name.startswith(("OMP_", "GOMP_"))})
        with open(f"/proc/{process}/comm") as file:
            self.assertEqual(file.read(), os.path.basename(tandem_program.TANDEM) + "\n")
        os.kill(process, signal.SIGCONT)
        self.finish(job)

    def finish(self, job):
        output, errors = job.communicate(timeout=60)
        self.assertEqual(job.returncode, OK, output + errors)
        self.assertNotIn("tandem:", errors)

    def test_a_rank_held_for_a_debugger(self):
        # The other rank waits longer than dist.timeout_s, and so does mpirun.
        job, process = self.start_held(dict(MPI_ENV, TANDEM_WAIT_RANK="1"), 2, "--dist.timeout_s", "0.2")
        self.assertEqual(self.said[1], "1")
        time.sleep(1)
        self.assertIsNone(job.poll())
        self.assertFalse(os.path.exists(self.run_folder("held")))
        os.kill(process, signal.SIGCONT)
        self.finish(job)
        self.assertEqual(metrics(self.run_folder("held"))[-1]["step"], 2)

    def test_a_debugger_lets_a_held_rank_go_on(self):
        job, process = self.start_held(dict(MPI_ENV, TANDEM_WAIT_RANK="0"))
        self.assertEqual(process, job.pid)
        time.sleep(0.2)
        self.assertIsNone(job.poll())
        PTRACE_SEIZE = 0x4206  # attaches as a debugger does, without stopping the process
        self.assertEqual(ctypes.CDLL(None).ptrace(PTRACE_SEIZE, process, None, None), 0)
        self.finish(job)

    def test_a_rank_to_hold_that_is_none(self):
        for value, ranks in [("2", 2), ("-1", None), ("one", None), ("0x", None), ("", None)]:
            result = self.check(run("train", ranks=ranks, environment={"TANDEM_WAIT_RANK": value}), CONFIG)
            self.assert_one_line(result, f"TANDEM_WAIT_RANK={value}: must be a rank of this job, 0 to {(ranks or 1) - 1}")


class SharedFolder(Workspace):
    """Ranks with different working folders stand for hosts, and a relative run.dir for storage that hosts do not share."""

    def start(self, *hosts):
        command = ["timeout", "-k", "5", "60", "mpirun"]
        for host in hosts:
            os.makedirs(self.path(host), exist_ok=True)
            command += [*([":"] if host != hosts[0] else []), "-np", "2", "-wdir", self.path(host), tandem_program.TANDEM, "train",
                        "--data.path", self.text, "--run.dir", "runs", "--run.name", "r", "--train.steps", "2", *TINY]
        job = subprocess.Popen(command, env=MPI_ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.terminate)
        return job

    def test_one_that_is_not_shared_is_found_at_the_start(self):
        job = self.start("a", "b")
        output, errors = job.communicate(timeout=60)
        self.assertEqual(job.returncode, DATA, output + errors)
        ours = [line for line in errors.splitlines() if line.startswith("tandem:")]
        host = re.escape(os.uname().nodename)
        self.assertEqual(len(ours), 1, errors)
        self.assertRegex(ours[0], rf"the folder of the run, {self.path('a')}/runs/r on {host}, is not seen on {host} \(rank 2\); "
                         "put run.dir on storage that all hosts share")
        self.assertEqual(os.listdir(self.path("b")), [])
        self.assertEqual(sorted(os.listdir(self.path("a/runs/r"))), ["checkpoints", "lock"])

    def test_storage_that_shows_files_late_is_waited_for(self):
        job = self.start("early", "late")
        deadline = time.monotonic() + 60
        while not os.path.exists(self.path("early/runs/r/shared")):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        time.sleep(1)
        os.symlink(self.path("early/runs"), self.path("late/runs"))
        output, errors = job.communicate(timeout=60)
        self.assertEqual(job.returncode, OK, output + errors)
        self.assertFalse(os.path.exists(self.path("early/runs/r/shared")))

    def test_what_an_earlier_start_left_behind_is_not_believed(self):
        os.makedirs(self.path("behind/runs/r"))
        with open(self.path("behind/runs/r/shared"), "w") as file:
            file.write("1 2 3 4\n")
        job = self.start("ahead", "behind")
        output, errors = job.communicate(timeout=60)
        self.assertEqual(job.returncode, DATA, output + errors)
        self.assertIn("is not seen on", errors)


class Signals(Workspace):
    def test_a_second_interrupt_ends_the_run_at_once(self):
        """A step waits here for as long as it takes: until somebody reads the output, which is more than a pipe holds."""
        reads, writes = os.pipe()
        room = fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
        command = [tandem_program.TANDEM, "train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", "twice",
                   *TINY, "--train.steps", "1000000", "--log.progress", "plain"]
        job = subprocess.Popen(command, env=MPI_ENV, stdout=writes, stderr=subprocess.PIPE, text=True)
        os.close(writes)
        self.addCleanup(lambda: (job.kill(), job.communicate()))
        waiting = array.array("i", [0])
        while waiting[0] < room - 300:  # less than two lines
            self.assertIsNone(job.poll())
            fcntl.ioctl(reads, termios.FIONREAD, waiting)
        job.send_signal(signal.SIGINT)
        while "stop requested" not in job.stderr.readline():
            self.assertIsNone(job.poll())
        job.send_signal(signal.SIGINT)
        with open(reads) as output:
            output.read()
        self.assertEqual(job.wait(timeout=60), -signal.SIGINT)

    def blocked(self, *command):
        """The command, and its standard output: a pipe that is full, so that the first line to print is waited for."""
        reads, writes = os.pipe()
        os.write(writes, b" " * fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096))
        job = subprocess.Popen([tandem_program.TANDEM, *command], env=MPI_ENV, stdout=writes, stderr=subprocess.PIPE, text=True)
        os.close(writes)
        self.addCleanup(lambda: (job.kill(), job.communicate(), os.close(reads)))
        while not self.writes_to_standard_output(job):
            self.assertIsNone(job.poll())
        return job

    def writes_to_standard_output(self, job):
        try:
            with open(f"/proc/{job.pid}/syscall") as call:
                return call.read().startswith("1 0x1 ")  # write(), on x86-64
        except PermissionError:
            self.skipTest("this system does not show what a process waits for")

    def test_a_stop_ends_a_start_at_once(self):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
        for number in [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]:
            job = self.blocked("train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", f"starting{number}",
                               *TINY, "--log.progress", "plain")
            job.send_signal(number)
            said = job.communicate(timeout=20)[1]
            self.assertEqual((job.returncode, said),
                             (STOPPED, "\ntandem: stop requested before the first step; nothing new to save\n"))
        self.train("starting15")  # the same run goes on

    def test_nohup_is_obeyed(self):
        self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_IGN))
        for command in [["train", "--data.path", self.text, "--run.dir", self.path("runs"), *TINY, "--log.progress", "plain"],
                        ["prepare", "text", "--input", __file__, "--output", self.path("nohup.h5"), "--tokenizer", "bytes"]]:
            job = self.blocked(*command)
            status = Path(f"/proc/{job.pid}/status").read_text()
            self.assertTrue(int(re.search(r"SigIgn:\s*(\w+)", status)[1], 16) & 1, status)

    def test_a_stop_ends_other_commands_at_once(self):
        self.train("done", "--train.steps", "1")
        for command in [["inspect", self.run_folder("done")], ["eval", "--checkpoint", self.run_folder("done")],
                        ["prepare", "text", "--input", __file__, "--output", self.path("shown.h5"), "--tokenizer", "bytes"]]:
            job = self.blocked(*command)
            job.terminate()
            self.assertEqual((job.communicate(timeout=20)[1], job.returncode), ("", -signal.SIGTERM))

    def test_a_command_that_is_stopped_leaves_nothing(self):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        text, prompts, output = self.path("long.txt"), self.path("prompts.jsonl"), self.path("output")
        with open(text, "w") as file:
            file.write("some words \n" * 8_000_000)
        with open(prompts, "w") as file:
            file.write('{"prompt": "the", "choices": ["old", "red"], "label": 0}\n' * 50_000)
        model = self.run_folder("written")
        self.train("written", "--train.steps", "1")
        for command in [["prepare", "text", "--input", text, "--tokenizer", "bytes"], ["generate", model, "--input", prompts],
                        ["eval", model, "--choices", prompts]]:
            with self.subTest(command=command[0]):
                job = subprocess.Popen([tandem_program.TANDEM, *command, "--output", output], env=MPI_ENV, stdout=subprocess.DEVNULL)
                self.addCleanup(lambda: (job.kill(), job.wait()))
                while not os.path.exists(output + ".partial"):
                    self.assertIsNone(job.poll())
                job.send_signal(signal.SIGSTOP)
                job.send_signal(signal.SIGHUP)  # before it does anything else
                job.send_signal(signal.SIGCONT)
                self.assertEqual(job.wait(timeout=60), -signal.SIGHUP)
                self.assertEqual((os.path.exists(output), os.path.exists(output + ".partial")), (False, False))


if __name__ == "__main__":
    tandem_program.main()
