"""What the tests of launch/supervise.sh and run.sh share: starting them, what they write, and runs of `tandem` under them."""
import glob
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program"))
from pretend_hosts import Hosts
import tandem_program
from tandem_program import MPI_ENV, STOPPED, Workspace, metrics, write_program

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
SUPERVISE = os.path.join(ROOT, "launch", "supervise.sh")
AT_ONCE = ["--backoff", "0"]
RESTARTED = [75, 134, 135, 137, 139, 205, 255]  # the codes after which an attempt is started again


def wait_until(condition, seconds=60, every=0.02):
    """What the condition gives in the end."""
    deadline = time.monotonic() + seconds
    while not (met := condition()):
        if time.monotonic() > deadline:
            raise AssertionError("nothing came")
        time.sleep(every)
    return met


def picks():
    """Random numbers. TANDEM_CHAOS_SEED repeats a run that failed."""
    seed = int(os.environ.get("TANDEM_CHAOS_SEED", time.time()))
    print(f"TANDEM_CHAOS_SEED={seed}", flush=True)
    return random.Random(seed)


def is_alive(process):
    try:
        with open(f"/proc/{process}/stat") as stat:
            return ") Z " not in stat.read()
    except OSError:
        return False


def attempts(folder):
    return tandem_program.whole_lines(os.path.join(folder, "attempts.jsonl"))


def records_in_memory(folder):
    """Pattern of the flight records in /dev/shm that belong to the newest start of a run."""
    with open(os.path.join(folder, "flight", "rank-0000"), "rb") as record:
        return f"/dev/shm/tandem-flight-{struct.unpack('=8xq', record.read(16))[0]}-*"


def in_memory(folder):
    return glob.glob(records_in_memory(folder))


def process_of(folder, rank):
    result = tandem_program.run("inspect", folder, "--flight", "--json")
    return json.loads(Workspace.check(result).stdout)["ranks"][rank]["process"]


def trained(folder, step):
    """Whether a run has logged this step."""
    return os.path.exists(os.path.join(folder, "metrics.jsonl")) and any(line.get("step", 0) >= step for line in tandem_program.logged(folder))


def record_in(folder, rank):
    with open(os.path.join(folder, "flight", f"rank-{rank:04d}"), "rb") as record:
        return record.read()


# A signal that a rank gets, and the exit code of its job.
CAUSES = [(signal.SIGKILL, 137), (signal.SIGSTOP, 75)]
# In place of tandem: `inspect` never ends and leaves its process in "inspects"; else it dies, with a record in the folder RUN.
HANGS = """if [ "$1" = inspect ]; then echo $$ >{inspects}; exec sleep 1000; fi
sleep 0.1; mkdir -p {run}/flight; head -c 16 /dev/urandom >{run}/flight/rank-0000; kill -KILL $$"""


def start(folder, command, *options, **how):
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": MPI_ENV, **how}
    return subprocess.Popen([SUPERVISE, "--run", folder, *map(str, options), "--", *map(str, command)], **how)


class Launched(Workspace):
    """Jobs that launch/run.sh starts."""

    @classmethod
    def make_hosts(cls, count):
        """Pretend hosts that share the program and the folder of these tests."""
        cls.hosts = Hosts(count, shared=[os.path.dirname(tandem_program.TANDEM), cls.folder])
        cls.addClassCleanup(cls.hosts.close)

    def early_signal(self, number):
        """The environment with a Python that gets a signal before it has begun."""
        write_program(self.path("early/python3"), f'#!/bin/bash\nkill -{number.value} $$\nexec {sys.executable} "$@"\n')
        return {**os.environ, "PATH": self.path("early") + ":" + os.environ["PATH"]}

    def finish(self, process, code):
        """What run.sh said."""
        output, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, code, output + errors)
        return [line for line in errors.splitlines() if line.startswith("run: ")]


class Supervised(Workspace):
    """Runs of the program under the supervisor."""

    def start(self, name, *settings, options=AT_ONCE, ranks=2, prefix=(), **how):
        command = ["mpirun", "-np", ranks, *prefix, tandem_program.TANDEM, "train", "--data.path", self.text, "--run.dir", self.path("runs"),
                   "--run.name", name, *tandem_program.TINY, "--dist.reduce", "exact", *settings]
        job = start(self.run_folder(name), command, *options, **how)
        self.addCleanup(lambda: (job.kill(), job.communicate()))
        return job

    def finish(self, name, job, code, seconds=120):
        output, errors = job.communicate(timeout=seconds)
        self.assertEqual(job.returncode, code, output + errors)
        self.assertEqual(self.processes_of(name), [])
        return errors

    def saved(self, name, pattern):
        """The folders of checkpoints whose names match."""
        folder = os.path.join(self.run_folder(name), "checkpoints")
        return [entry for entry in os.listdir(folder) if re.fullmatch(pattern, entry)] if os.path.isdir(folder) else []

    def has(self, name, pattern):
        return bool(self.saved(name, pattern))

    def last_step(self, name):
        """The last one that was logged."""
        try:
            with open(os.path.join(self.run_folder(name), "metrics.jsonl"), "rb") as file:
                begin = max(0, file.seek(0, os.SEEK_END) - 8192)
                file.seek(begin)
                lines = file.read().split(b"\n")[begin > 0:-1]  # without one that is cut off
        except OSError:  # not yet there
            return 0
        return max((json.loads(line)["step"] for line in lines), default=0)

    def assert_saved(self, name):
        """The checkpoint of the last step that was logged, and the command goes on."""
        [line] = attempts(self.run_folder(name))
        logged = [each["step"] for each in metrics(self.run_folder(name))]
        self.assertEqual((line["code"], line["step"]), (STOPPED, logged[-1] if logged else 0))
        self.check(tandem_program.run("inspect", self.run_folder(name), "--verify"))
