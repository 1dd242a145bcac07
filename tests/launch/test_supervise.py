#!/usr/bin/env python3
"""launch/supervise.sh: what it does after each exit code and signal, first with small scripts as its command, then with
`mpirun` and the `tandem` program on two ranks.

    test_supervise.py PATH_TO_TANDEM [unittest arguments]
"""
import ctypes
import datetime
import mmap
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

from supervised import (AT_ONCE, CAUSES, HANGS, RESTARTED, SUPERVISE, Supervised, attempts, in_memory, is_alive, process_of,
                        record_in, start, trained, wait_until)
import tandem_program
from tandem_program import MPI_ENV, STOPPED, write_program


class Scripts(unittest.TestCase):
    """The command is a script of bash, which runs in a folder of its own: `run` in it is the run."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tandem test ")  # with spaces
        self.addCleanup(shutil.rmtree, self.folder)
        self.run_folder = self.path("run")

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.path(name)) as file:
            return file.read()

    def start(self, script, *options, **how):
        job = start(self.run_folder, ["bash", "-c", script], *options, cwd=self.folder, **how)
        self.addCleanup(self.end, job)
        return job

    def end(self, job):
        """Whatever is still there, also when a test has failed."""
        job.kill()
        for name in ["child", "command", "daemon"]:
            if os.path.exists(self.path(name)) and is_alive(self.read(name).strip()):
                os.kill(int(self.read(name)), signal.SIGKILL)
        job.communicate(timeout=60)

    def finish(self, job, code):
        """What it said."""
        errors = job.communicate(timeout=60)[1]
        self.assertEqual(job.returncode, code, errors)
        return errors

    def attempts(self, key):
        return [line[key] for line in attempts(self.run_folder)]

    def wait_for(self, *names):
        wait_until(lambda: all(os.path.exists(self.path(name)) for name in names))

    def remove(self, *names):
        list(map(os.remove, filter(os.path.exists, map(self.path, names))))

    def assert_ended(self, *names, seconds=10):
        """The processes whose numbers these files hold."""
        for name in names:
            process = int(self.read(name))
            wait_until(lambda: not is_alive(process), seconds)


class ExitCodes(Scripts):
    def test_which_are_started_again(self):
        for code in [*RESTARTED, 0, 1, 2, 3, 64, 70, 71, 74, 76, 85, 126, 133, 136, 138, 143, 204, 254]:
            self.run_folder = self.path(f"run{code}")
            self.finish(self.start(f"exit {code}", *AT_ONCE, "--max-restarts", 1), code)
            self.assertEqual(self.attempts("code"), [code] * (2 if code in RESTARTED else 1))

    def test_the_last_code_is_that_of_the_supervisor(self):
        self.finish(self.start(r'n=$(wc -l <run/attempts.jsonl); codes=(137 75 255 3); exit "${codes[n]}"', *AT_ONCE), 3)
        self.assertEqual(self.attempts("code"), [137, 75, 255, 3])
        self.assertEqual(self.attempts("next"), ["restart in 0 s"] * 3 + ["stop"])

    def test_a_line_for_each_attempt(self):
        before = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
        said = self.finish(self.start("kill -SEGV $$", *AT_ONCE, "--max-restarts", 0), 139)
        self.assertRegex(said, r"\Asupervise: attempt 1 ended with 139 \(ended by SIGSEGV\), last saved step: none; stop\n\Z")
        # A later start goes on with the numbers.
        self.finish(self.start("mkdir -p run/checkpoints/step-00000008; sleep 0.5; exit 2"), 2)
        first, second = attempts(self.run_folder)
        begun = [datetime.datetime.fromisoformat(line.pop("start").replace("Z", "+00:00")) for line in (first, second)]
        self.assertTrue(before <= begun[0] <= begun[1] <= datetime.datetime.now(datetime.timezone.utc), begun)
        self.assertGreaterEqual(first.pop("seconds"), 0)
        self.assertGreaterEqual(second.pop("seconds"), 0.5)
        self.assertEqual(first, {"attempt": 1, "code": 139, "meaning": "ended by SIGSEGV", "step": None, "next": "stop"})
        self.assertEqual(second, {"attempt": 2, "code": 2, "meaning": "bad configuration", "step": 8, "next": "stop"})

    def test_a_line_that_a_crash_has_cut(self):
        for cut in ['{"attempt":1,"st', "\0\0"]:
            write_program(self.path("run/attempts.jsonl"), cut)
            self.finish(self.start("exit 2"), 2)
            self.assertIn(cut + '\n{"attempt":2,"start":', self.read("run/attempts.jsonl"))

    def test_a_new_checkpoint_resets_the_count_and_the_back_off(self):
        # What each attempt leaves: one that is not committed, a checkpoint, the same and one that is not committed, an older one.
        left = ["step-00000099.partial", "step-00000100", "step-00000200.partial", "step-00000090", "step-00000090"]
        script = f"""left=({' '.join(left)}); n=$(wc -l <run/attempts.jsonl); [ "$n" != 3 ] || rm -r run/checkpoints
                     mkdir -p "run/checkpoints/${{left[n]}}"; exit 137"""
        begun, job = time.monotonic(), self.start(script, "--max-restarts", 2)
        self.finish(job, 137)
        self.assertEqual(self.attempts("step"), [None, 100, 100, 90, 90])
        self.assertEqual(self.attempts("next"), ["restart in 1 s", "restart in 1 s", "restart in 2 s", "restart in 4 s", "stop"])
        self.assertGreater(time.monotonic() - begun, 8 - 4 * 1)  # whole seconds by the clock: each up to 1 less

    def test_checkpoints_of_an_earlier_start_are_no_progress(self):
        os.makedirs(self.path("run/checkpoints/step-00000100"))
        self.finish(self.start("exit 137", *AT_ONCE, "--max-restarts", 1), 137)
        self.assertEqual(self.attempts("step"), [100, 100])

    def test_bad_arguments(self):
        subprocess.run("mkdir f d l; mkfifo f/attempts.jsonl; mkdir d/attempts.jsonl; ln -s ../gone l/attempts.jsonl", shell=True, check=True, cwd=self.folder)
        for arguments, said in [([], "--run is missing"), (["--run"], "--run needs a value"), (["--run", "r"], "no command"),
                                (["--run", "r", "--grace", "-1", "--", "true"], "--grace -1: must be a whole number"),
                                (["--run", "r", "--max-restarts"], "--max-restarts : must be"), (["--run", "r", "true"], "unknown option 'true'"),
                                *((["--run", kind, "--", "true"], f"{kind}/attempts.jsonl is no regular file") for kind in "fdl"),
                                (["--run", "/proc/none", "--", "true"], "cannot write to /proc/none/attempts.jsonl")]:
            result = subprocess.run([SUPERVISE, *arguments], capture_output=True, text=True, cwd=self.folder, timeout=60)
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1), result.stderr)
            self.assertIn(said, result.stderr)
        self.assertIn("--max-restarts N", subprocess.run([SUPERVISE, "--help"], capture_output=True, text=True, check=True).stdout)

    def test_a_command_that_is_none(self):
        self.finish(start(self.run_folder, ["/no/such/program"]), 127)
        self.assertEqual(self.attempts("meaning"), ["the command cannot be started"])

    def test_a_reader_that_goes_away_ends_nothing(self):
        job = self.start("exit 137", *AT_ONCE)
        job.stdout.close()
        job.stderr.close()
        self.assertEqual(job.wait(timeout=60), 137)
        self.assertEqual(self.attempts("code"), [137] * 4)


class Signals(Scripts):
    # Ready as a run is, then counts what it gets and ends 0.3 s after the first one.
    CATCHES = """trap 'echo usr1 >>got' USR1; sleep 0.1; mkdir -p run; touch run/config.cfg ready
                 until [ -e got ]; do sleep 0.02; done; sleep 0.3; exit ${code:-85}"""

    def test_a_stop_is_passed_on_once_and_ends_it(self):
        for number in [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]:
            self.remove("ready", "got")
            # A background job ignores SIGINT, and nohup SIGHUP; Bash traps no signal that it began with ignoring.
            job = self.start(self.CATCHES, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
            self.wait_for("ready")
            job.send_signal(number)
            job.send_signal(signal.SIGTERM)
            self.wait_for("got")
            job.send_signal(number)
            said = self.finish(job, STOPPED)
            self.assertEqual(said.count("stop requested"), 1, said)
            self.assertEqual(self.read("got"), "usr1\n")
        self.assertEqual(self.attempts("next"), ["stop"] * 4)

    def test_no_start_after_a_stop(self):
        job = self.start("code=137; " + self.CATCHES, *AT_ONCE)
        self.wait_for("ready")
        job.terminate()
        self.finish(job, 137)
        self.assertEqual(self.attempts("next"), ["stop"])

    def test_a_stop_waits_until_the_run_catches_it(self):
        write_program(self.path("run/config.cfg"), "")  # of an earlier start
        job = self.start("touch begun; sleep 1; " + self.CATCHES)
        self.wait_for("begun")
        job.terminate()
        self.finish(job, STOPPED)

    def test_a_stop_of_what_writes_no_config(self):
        job = self.start("trap 'exit 85' USR1; touch ready; while :; do sleep 0.02; done", "--grace", 4)
        self.wait_for("ready")
        begun = time.monotonic()
        job.terminate()
        self.finish(job, STOPPED)
        self.assertGreater(time.monotonic() - begun, 2 - 1)  # half of the time, in whole seconds of the clock

    def test_a_stop_during_the_back_off(self):
        job = self.start("exit 139", "--backoff", 1000)
        self.assertIn("restart in 1000 s", job.stderr.readline())
        job.terminate()
        self.finish(job, 139)
        self.assertEqual(self.attempts("code"), [139])

    def test_a_stop_waits_for_no_verdict(self):
        hangs = write_program(self.path("tandem"), "#!/bin/bash\n" + HANGS.format(inspects="child", run="run"))
        job = start(self.run_folder, [hangs], *AT_ONCE, cwd=self.folder)
        self.addCleanup(self.end, job)
        wait_until(lambda: os.path.exists(self.path("child")) and self.read("child"))
        begun = time.monotonic()
        job.terminate()
        said = self.finish(job, 137)
        self.assertLess(time.monotonic() - begun, 20)  # not the 30 s that it may take
        self.assertRegex(said, r"^supervise: attempt 1 ended with 137 .*\nsupervise: stop requested.*\n$")
        self.assertEqual(self.attempts("code"), [137])
        self.assert_ended("child")

    # Processes that end by nothing but SIGKILL; one is in a session of its own, as are the daemons of a launcher.
    DEAF = """trap '' TERM INT HUP USR1; mkdir -p run; touch run/config.cfg
              sleep 1000 & echo $! >child; setsid bash -c 'echo $$ >daemon.new; mv daemon.new daemon; exec sleep 1000' &
              echo $$ >command; """

    def test_the_deadline(self):
        job = self.start(self.DEAF + "wait", "--grace", 2)
        self.wait_for("child", "command", "daemon")
        begun = time.monotonic()
        job.terminate()
        said = self.finish(job, 137)
        self.assertGreater(time.monotonic() - begun, 2 - 1)
        self.assert_ended("child", "command", "daemon", seconds=0)
        self.assertNotIn("line", said)  # as bash says of a job that was killed

    def test_no_process_is_left_by_an_attempt(self):
        self.finish(self.start("[ ! -e daemon ] || grep -qs '^State:[[:space:]]*[^ZX[:space:]]' /proc/$(<daemon)/status || exit 4; " + self.DEAF +
                               "until [ -e daemon ]; do :; done; exit 137", *AT_ONCE), 4)
        self.assertEqual(self.attempts("code"), [137, 4])
        self.assert_ended("child", "command", "daemon", seconds=0)
        self.finish(self.start("rm daemon; " + self.DEAF + "until [ -e daemon ]; do :; done"), 0)
        self.assert_ended("child", "command", "daemon", seconds=0)

    def test_no_process_is_left_when_the_supervisor_is_killed(self):
        for kill in [os.kill, os.killpg]:
            self.remove("child", "command", "daemon")
            job = self.start(self.DEAF + "wait", start_new_session=True)
            self.wait_for("child", "command", "daemon")
            kill(job.pid, signal.SIGKILL)
            self.assert_ended("child", "command", "daemon")
            job.communicate(timeout=60)  # to the end of the output, which the last process closes

    def test_a_killed_guard_changes_nothing(self):
        job = self.start("touch ready; sleep 1; exit $((137 - 134 * $(wc -l <run/attempts.jsonl)))", *AT_ONCE)
        self.wait_for("ready")
        with open(f"/proc/{job.pid}/task/{job.pid}/children") as children:
            guards = [child for child in children.read().split() if "--guard" in self.read(f"/proc/{child}/cmdline")]
        os.kill(int(guards[0]), signal.SIGKILL)
        self.finish(job, 3)
        self.assertEqual(self.attempts("code"), [137, 3])

    def test_a_killed_supervisor_that_waits(self):
        job = self.start("exit 137", "--backoff", 1000)
        job.stderr.readline()
        job.kill()
        job.communicate(timeout=60)


class Leftovers(Scripts):
    def setUp(self):
        super().setUp()
        self.files = []
        self.addCleanup(lambda: [os.remove(file) for file in self.files if os.path.exists(file)])

    def shared(self, name):
        self.files.append(f"/dev/shm/{name}.test-{os.getpid()}")
        with open(self.files[-1], "w") as file:
            file.write("segment")
        return self.files[-1]

    def test_shared_memory(self):
        dead = [self.shared(name) for name in ["vader_segment", "sm_segment", "nccl-a"]]
        opened, mapped, _ = living = [self.shared(name) for name in ["vader_segment.opened", "nccl-mapped", "other"]]
        if os.geteuid() == 0:
            living.append(self.shared("nccl-of-another-user"))
            os.chown(living[-1], 65534, 65534)
        with open(mapped) as file:  # Python's own mmap would keep it open
            libc = ctypes.CDLL(None)
            libc.mmap.restype = ctypes.c_void_p
            address = ctypes.c_void_p(libc.mmap(None, ctypes.c_size_t(7), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0)))
        self.addCleanup(libc.munmap, address, ctypes.c_size_t(7))
        self.assertEqual(ctypes.string_at(address, 7), b"segment")
        with open(opened):
            self.finish(self.start(f"[ ! -e {dead[0]} ] || exit 4; touch {dead[1]}; exit 3"), 3)
        self.assertEqual([file for file in dead if os.path.exists(file)], [])
        self.assertEqual([file for file in living if not os.path.exists(file)], [])

    def test_flight_records(self):
        """Those of dead ranks of this run move to its folder; a living rank keeps its own, and another run has no place there.
        One that its own run removes at this moment is nothing to speak of."""
        dead = 2**22 + 1  # above the largest possible
        start = time.time_ns()
        places = [(start, 0, os.getpid()), (start, 1, dead), (start + 1, 2, dead), (start + 1, 3, dead)]
        write_program(self.path("od"), f'#!/bin/bash\n[[ "$*" != *-{start + 1}-3 ]] || rm "${{@: -1}}"\nexec /usr/bin/od "$@"')
        os.makedirs(self.path("run/flight"))
        for of, rank, process in places:
            self.files.append(f"/dev/shm/tandem-flight-{of}-{rank}")
            for path, began, text in [(self.path(f"run/flight/rank-{rank:04d}"), start, b"old"), (self.files[-1], of, b"newer")]:
                with open(path, "wb") as file:
                    file.write(struct.pack("=8sqiiq", b"TANDEMF1", began, rank, 3, process) + text)
        with open(self.files[0]):
            said = self.finish(self.start("exit 3", env=dict(MPI_ENV, PATH=f"{self.folder}:{os.environ['PATH']}")), 3)
        self.assertRegex(said, r"\Asupervise: attempt 1 ended with 3 .*\n\Z")
        self.assertEqual([os.path.exists(file) for file in self.files], [True, False, True, False])
        self.assertEqual([record_in(self.run_folder, rank)[32:] for rank in range(4)], [b"old", b"newer", b"old", b"old"])

    def test_session_folders(self):
        folder = self.path(f"ompi.{os.uname().nodename.split('.')[0]}.{os.geteuid()}")
        for process in [os.getpid(), 2**22 + 1]:  # the second is above the largest possible
            os.makedirs(os.path.join(folder, f"pid.{process}/0/0"))
        self.finish(self.start("exit 3", env=dict(MPI_ENV, TMPDIR=self.folder)), 3)
        self.assertEqual(os.listdir(folder), [f"pid.{os.getpid()}"])


class Program(Supervised):
    def test_a_killed_rank_changes_no_weight(self):
        settings = ["--train.steps", 400, "--checkpoint.every_steps", 10, "--checkpoint.keep", 3]
        self.finish("whole", self.start("whole", *settings), 0)
        job = self.start("killed", *settings)
        for wanted in [r"step-\d+", r"step-00000(0[6-9]|[12]\d)\d"]:
            ranks = wait_until(lambda: self.has("killed", wanted) and self.processes_of("killed"))
            os.kill(ranks[-1], signal.SIGKILL)
            wait_until(lambda: not any(map(is_alive, ranks)))
        self.finish("killed", job, 0)
        self.assertEqual([line["code"] for line in attempts(self.run_folder("killed"))], [137, 137, 0])
        self.assertEqual(self.tensors("killed"), self.tensors("whole"))

    def test_the_last_line_names_the_rank_that_is_the_cause(self):
        for number, code in CAUSES:
            name, folder = number.name, self.run_folder(number.name)
            job = self.start(name, "--train.steps", 10**6, "--dist.timeout_s", 5, options=["--max-restarts", 0], ranks=3)
            wait_until(lambda: trained(folder, 3))
            self.assertEqual(len(in_memory(folder)), 3)
            rank = process_of(folder, 1)
            memory = open(next(path for path in in_memory(folder) if path.endswith("-1")), "rb")
            self.addCleanup(memory.close)
            os.kill(rank, number)
            ended, cause = (errors := self.finish(name, job, code)).splitlines()[-2:]
            self.assertRegex(ended, rf"^supervise: attempt 1 ended with {code} \(.*\), last saved step: \w+; stop$",
                             errors + tandem_program.run("inspect", folder, "--flight").stdout)
            self.assertRegex(cause, rf"^supervise: rank 1 on \S+ \(process {rank}\) (is gone|stood still, then ended), in ")
            self.assertEqual(in_memory(folder), [])
            self.assertEqual(record_in(folder, 1), memory.read())
            said = start(folder, ["bash", "-c", "exit 137", tandem_program.TANDEM], "--max-restarts", 0).communicate(timeout=60)[1]
            self.assertRegex(said, r"^supervise: attempt 2 ended with 137 .*\n$", "it died before it had records")

    def test_a_killed_supervisor_keeps_the_records(self):
        job = self.start("kept", "--train.steps", 10**6)
        wait_until(lambda: trained(self.run_folder("kept"), 3))
        memory = open(next(path for path in in_memory(self.run_folder("kept")) if path.endswith("-1")), "rb")
        self.addCleanup(memory.close)
        job.kill()
        job.communicate(timeout=60)  # to the end of the output, which the last process closes
        wait_until(lambda: not in_memory(self.run_folder("kept")))
        self.assertEqual(record_in(self.run_folder("kept"), 1), memory.read())

    def test_a_stop_saves(self):
        endless = ["--train.steps", 10**6, "--checkpoint.every_steps", 20]
        job = self.start("early", *endless)
        wait_until(lambda: self.processes_of("early"))  # long before they catch signals
        job.terminate()
        self.finish("early", job, STOPPED)
        self.assert_saved("early")  # of what was done until the supervisor saw that all ranks catch them

        job = self.start("twice", *endless)
        wait_until(lambda: self.has("twice", r"step-\d+"))
        job.terminate()
        job.send_signal(signal.SIGINT)
        self.finish("twice", job, STOPPED)
        self.assert_saved("twice")

    def test_a_stop_during_a_save(self):
        for name, beside in [("save-beside", "true"), ("save", "false")]:
            job = self.start(name, "--train.steps", 10**6, "--checkpoint.every_steps", 3, "--checkpoint.async", beside, "--model.width", 256)
            wait_until(lambda: self.has(name, r"step-\d+\.partial"))
            job.terminate()
            self.finish(name, job, STOPPED)
            self.assert_saved(name)

    def test_a_killed_launcher_and_a_killed_supervisor(self):
        job = self.start("orphans", "--train.steps", 10**6, "--checkpoint.every_steps", 20)
        wait_until(lambda: self.has("orphans", r"step-\d+"))
        ranks = self.processes_of("orphans")
        with open(f"/proc/{ranks[0]}/stat") as stat:
            launcher = int(stat.read().rsplit(")", 1)[1].split()[1])
        os.kill(launcher, signal.SIGKILL)
        wait_until(lambda: attempts(self.run_folder("orphans")) and len(self.processes_of("orphans")) == 2)
        self.assertEqual([rank for rank in ranks if is_alive(rank)], [])
        self.assertEqual([line["code"] for line in attempts(self.run_folder("orphans"))], [137])
        job.kill()
        wait_until(lambda: not self.processes_of("orphans"), 20)
        job.communicate(timeout=60)

    def test_bad_settings_end_it(self):
        said = self.finish("bad", self.start("bad", "--train.stesp", 10), tandem_program.CONFIG)
        self.assertIn("train.stesp", said)
        self.check(tandem_program.run("train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", "bad",
                                      "--train.steps", "2", *tandem_program.TINY))  # in the folder that has attempts.jsonl


if __name__ == "__main__":
    tandem_program.main()
