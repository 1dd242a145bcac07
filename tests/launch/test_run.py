#!/usr/bin/env python3
"""launch/run.sh without other hosts: its settings, and how a job on this machine starts, stops and ends.

    test_run.py PATH_TO_TANDEM [unittest arguments]
"""
import contextlib
import glob
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from unittest import mock

FOLDER = os.path.dirname(os.path.abspath(__file__))
LAUNCH = os.path.join(FOLDER, "..", "..", "launch")
sys.path[:0] = [os.path.join(LAUNCH, "run"), os.path.join(FOLDER, "..", "program")]
import main
import nodes
import tandem_program
from errors import CONFIG, DATA, Failure
from recorded import GOOD
from settings import read_file, read_settings
from supervised import CAUSES, HANGS, Launched, in_memory, is_alive, process_of, record_in, trained, wait_until
from tandem_program import STOPPED, losses, write_program

RUN = os.path.join(LAUNCH, "run.sh")
NO_SETTINGS = "says no settings; build it with launch/build.sh"


class Settings(Launched):
    """What run.sh knows of a run's settings, against what the run itself writes and says."""

    def run_of(self, *arguments):
        return tandem_program.run("train", *arguments)

    def test_they_are_those_of_the_run(self):
        tiny = dict(zip(tandem_program.TINY[::2], tandem_program.TINY[1::2]))
        for name, text in [("one.cfg", "[train]\nsteps = 3\n[optim]\nlr = 0.5  # too much\n"), ("two.cfg", "[train]\nsteps = 2\n")]:
            with open(self.path(name), "w") as file:
                file.write(text)
        shared = [*(f"{key}={value}" for key, value in tiny.items()), f"--data.path={self.text}", "--run.dir", self.path("runs"), "--run.device=cpu"]
        for name, arguments, wanted in [
                ("without-key", [self.path("one.cfg")], {"train.steps": "3", "optim.lr": "0.5"}),
                ("two-files", ["--config", self.path("one.cfg"), f"--config={self.path('two.cfg')}"], {"train.steps": "2", "optim.lr": "0.5"}),
                ("line-wins", ["--train.steps", "4", "--optim.lr=0.25", self.path("one.cfg")], {"train.steps": "4", "optim.lr": "0.25"}),
                ("bare-switch", [self.path("two.cfg"), "--data.verify"], {"data.verify": "true"})]:
            with self.subTest(name):
                arguments = [*arguments, "--run.name", name, *shared]
                read = read_settings(tandem_program.TANDEM, arguments)
                self.assertLessEqual(wanted.items(), read.items())
                self.assertEqual(read["run.name"], name)
                self.check(self.run_of(*arguments))
                self.assertEqual({**read, "dist.bucket_mb": "4"}, read_file(os.path.join(self.run_folder(name), "config.cfg")))  # auto

    def test_wrong_ones_are_refused_as_by_the_run(self):
        for arguments in [["--train.global_batch", "x"], ["--train.global_batch=4.5", "--train.stepz", "1"], ["no-such-file.cfg"], []]:
            with self.subTest(arguments), self.assertRaises(Failure) as caught:
                read_settings(tandem_program.TANDEM, arguments)
            refused = self.run_of(*arguments)
            self.assertEqual((caught.exception.code, f"tandem: {caught.exception}\n"), (refused.returncode, refused.stderr))
            self.assertEqual(refused.returncode, CONFIG)

    def test_a_check_knows_only_the_ranks_of_a_node(self):
        words = ["--data.path=x", "--dist.node_size=3"]
        self.assertEqual(read_settings(tandem_program.TANDEM, [*words, "--train.global_batch=24"])["dist.node_size"], "3")
        with self.assertRaises(Failure):
            read_settings(tandem_program.TANDEM, [*words, "--train.global_batch=25"])

    def test_what_is_no_program(self):
        path = self.path("no-program")
        for text, said in [("", "does not start: Exec format error"), ("#!/bin/sh\necho no libmpi >&2; exit 127\n", "does not start: no libmpi"),
                           ("#!/bin/sh\nkill -ILL $$\n", "does not start: "), ("#!/bin/echo\n", NO_SETTINGS), ("#!/bin/sh\necho {\n", NO_SETTINGS)]:
            write_program(path, text)
            with self.assertRaises(Failure) as caught:
                read_settings(path, [])
            self.assertEqual((caught.exception.code, str(caught.exception)), (CONFIG, f"{path} {said}"))

    def test_a_script_around_the_program_may_speak_first(self):
        path = write_program(self.path("wrapped"), f'#!/bin/sh\necho module gcc loaded; exec "{tandem_program.TANDEM}" "$@"\n')
        settings = ["--data.path=x", "--train.global_batch=24"]
        self.assertEqual(read_settings(path, settings), read_settings(tandem_program.TANDEM, settings))

    def print_command(self, *settings, options=("--hosts", "localhost:8")):
        """The command of `run.sh --print` for p4d.24xlarge."""
        def answer(platform, hosts, *_):
            for host in hosts:
                host.facts = dict(GOOD)
            return hosts
        shown = io.StringIO()
        with mock.patch.object(nodes, "ask_all", answer), contextlib.redirect_stdout(shown):
            self.assertEqual(main.main(["--tandem", tandem_program.TANDEM, *options, "--print", "--", "train", "--data.path", "x",
                                        "--train.global_batch", "16", *settings]), 0)
        return shlex.split(shown.getvalue().splitlines()[-1])

    def test_bandwidth_and_price_are_those_of_the_machine_unless_the_user_has_one(self):
        known = main.machine_types()[GOOD["machine"][0]]
        price = ["--run.usd_per_node_hour", str(known["usd_per_hour"]["on_demand"]["usd"])]
        self.assertEqual(self.print_command()[-4:], ["--dist.min_gb_s", str(known["bus_gb_s"]["1"]), *price])
        file = write_program(self.path("own.cfg"), "[dist]\nmin_gb_s = 0\n")
        for own in [["--dist.min_gb_s", "3"], ["--dist.min_gb_s=3"], ["--dist.min_gb_s", "0"], [file], ["--dist.backend", "mpi"]]:
            self.assertEqual(self.print_command(*own)[-len(own) - 2:], [*own, *price])
        two = ["--hosts", "a:8,b:8", "--net"]
        self.assertEqual(self.print_command(options=[*two, "efa"])[-4:], ["--dist.min_gb_s", str(known["bus_gb_s"]["2"]), *price])
        self.assertEqual(self.print_command(options=[*two, "sockets"])[-4:], ["--train.global_batch", "16", *price])
        self.assertEqual(self.print_command("--run.usd_per_node_hour=0")[-2:], ["--dist.min_gb_s", str(known["bus_gb_s"]["1"])])
        for setting in ("--dist.min_gb_s", "--run.usd_per_node_hour"):
            self.assertNotIn(setting, self.print_command("--run.device", "cpu"))
        islands = ["--dist.islands", "2", "--dist.zero", "1"]
        self.assertLess(set(islands), set(self.print_command(*islands)))

    def test_help_is_that_of_the_program(self):
        done = subprocess.run([RUN, "--tandem", tandem_program.TANDEM, "--", "train", "--help"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, self.check(self.run_of("--help")).stdout, ""))


class OneMachine(Launched):
    """Jobs of this machine alone."""

    def arguments(self, name, *settings):
        return ["train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", name, *tandem_program.TINY,
                "--dist.reduce", "exact", *map(str, settings)]

    def start(self, name, *settings, options=("--hosts", "localhost:2"), tandem=None, **how):
        command = [RUN, "--tandem", tandem or tandem_program.TANDEM, *options, "--", *self.arguments(name, *settings)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    def script(self, name, text):
        """A program in place of tandem; the real one still reads the settings."""
        reads = f'case "$*" in *--help* | *--check*) exec "{tandem_program.TANDEM}" "$@" ;; esac'
        return write_program(self.path(name), f"#!/bin/bash\n{reads}\n{text}\n")

    def lines(self, name):
        if not os.path.exists(self.path(name)):
            return []
        with open(self.path(name)) as file:
            return file.read().split()

    def test_a_run_is_that_of_mpirun(self):
        said = self.finish(self.start("launched", "--train.steps", 6), 0)
        self.assertRegex(said[0], r"^run: 2 ranks on \S+ \(local\)$")
        self.assertRegex(said[-1], r"^run: ended with 0 \(finished\) after \d+ s$")
        self.train("plain", "--dist.reduce", "exact", "--train.steps", "6", ranks=2)
        self.assertEqual(losses(self.run_folder("launched")), losses(self.run_folder("plain")))

    def test_print_shows_a_command_that_works(self):
        process = self.start("printed", "--train.steps", 2, options=["--hosts", "localhost:2", "--print"])
        output, errors = process.communicate(timeout=60)
        self.assertEqual((process.returncode, errors), (0, ""))
        self.assertFalse(os.path.exists(self.run_folder("printed")))
        lines = output.splitlines()
        self.assertRegex(lines[0], r"^# \S+ slots=2$")
        words = shlex.split(lines[1])
        words[words.index("--hostfile") + 1] = self.path("hosts")
        with open(self.path("hosts"), "w") as file:
            file.write(lines[0][2:] + "\n")
        subprocess.run(words, check=True, capture_output=True, timeout=60)
        self.assertEqual(max(losses(self.run_folder("printed"))), 2)

    def test_print_does_not_need_the_hosts(self):
        process = self.start("printed", options=["--hosts", "no-such-host:2,other:3", "--print"])
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(output.splitlines()[:2], ["# no-such-host slots=2", "# other slots=3"])
        self.assertIn(" mpirun -np 5 ", output)
        for host, line in zip(["no-such-host", "other"], errors.splitlines()):
            self.assertRegex(line, rf"^run: {host}: silent for 0 s \(.*\): start it, or take it off the list; shown as if it had no GPU$")

    def test_each_signal_saves_and_ends(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            with self.subTest(number.name):
                name = number.name
                process = self.start(name, "--train.steps", 10**6)
                wait_until(lambda: os.path.exists(os.path.join(self.run_folder(name), "metrics.jsonl")))
                process.send_signal(number)
                said = self.finish(process, STOPPED)
                self.assertRegex(said[-1], r"^run: ended with 85 \(stopped on request, checkpoint saved\) .*the same command goes on")
                self.assertEqual(self.processes_of(name), [])
        last = max(losses(self.run_folder("SIGTERM")), default=0)
        self.finish(self.start("SIGTERM", "--train.steps", last + 2), 0)
        self.assertEqual(max(losses(self.run_folder("SIGTERM"))), last + 2)

    def test_a_stop_saves_when_nobody_can_read_what_is_said(self):
        for name, closing in [("full", "2>/dev/full"), ("closed", "2>&-"), ("gone", "")]:
            with self.subTest(name):
                command = [RUN, "--tandem", tandem_program.TANDEM, "--hosts", "localhost:2", "--", *self.arguments(name, "--train.steps", 10**6)]
                process = subprocess.Popen(["bash", "-c", f'exec "$@" {closing}', "bash", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                process.stderr.close()
                self.addCleanup(lambda process=process: (process.kill(), process.wait()))
                wait_until(lambda: trained(self.run_folder(name), 3) or process.poll() is not None)
                self.assertIsNone(process.poll())
                process.terminate()
                self.assertEqual(process.wait(timeout=60), STOPPED)
                last = max(losses(self.run_folder(name)))
                self.assertIn(f"step-{last:08d}", os.listdir(os.path.join(self.run_folder(name), "checkpoints")))

    def test_output_that_cannot_be_written(self):
        for words in [["--print", "--", *self.arguments("unwritten")], ["--help"], ["--", "train", "--help"]]:
            with open("/dev/full", "w") as full:
                done = subprocess.run([RUN, "--tandem", tandem_program.TANDEM, *words], stdout=full, stderr=subprocess.PIPE, text=True,
                                      env={**os.environ, "PYTHONUNBUFFERED": ""})  # argparse itself hides an error that comes at once
            self.assertEqual(done.returncode, DATA, done.stderr)
            self.assertRegex(done.stderr, r"\Arun: .*No space left on device: .*\n\Z")

    def test_a_stop_at_any_moment(self):
        for wait_ms in (0, 300, 900):
            name = f"early{wait_ms}"
            process = self.start(name, "--train.steps", 10**6)
            process.stderr.readline()  # it is about to start the ranks
            time.sleep(wait_ms / 1000)
            process.send_signal(signal.SIGTERM)
            self.finish(process, STOPPED)
            self.assertEqual(self.processes_of(name), [])

    def test_a_stop_in_the_first_moment(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            said = self.finish(self.start("at-once", env=self.early_signal(number)), STOPPED)
            self.assertEqual(said, [f"run: {number.name}: ended with 85 before the ranks were started"])

    def test_a_stop_while_hosts_are_silent(self):
        """It ends at once, and so does ssh."""
        env = self.launcher("")
        write_program(self.path("stub/ssh"), f"#!/bin/bash\necho $$ >> {self.path('ssh-pids')}\nexec sleep 1000\n")
        for number, code, said in [(signal.SIGTERM, STOPPED, ["run: SIGTERM: ended with 85 before the ranks were started"]),
                                   (signal.SIGKILL, -signal.SIGKILL, [])]:
            process = self.start("silent", options=["--hosts", "no-such-host:1,other:1", "--wait", "60"], env=env)
            wait_until(lambda: len(self.lines("ssh-pids")) == 2)
            process.send_signal(number)
            self.assertEqual(self.finish(process, code), said)
            wait_until(lambda: not any(map(is_alive, self.lines("ssh-pids"))), seconds=5)
            os.remove(self.path("ssh-pids"))
        os.remove(self.path("stub/ssh"))

    def test_what_asks_a_host_leaves_nothing(self):
        """A part of launch/node.sh may block, here mpirun --version: it ends with run.sh."""
        env = self.launcher("")
        with open(self.path("stub/mpirun"), "w") as file:
            file.write(f"#!/bin/bash\necho $$ >> {self.path('asked-pids')}\nexec sleep 1000\n")
        process = self.start("blocked", options=["--hosts", "localhost:2"], env=env)
        wait_until(lambda: len(self.lines("asked-pids")) == 2)
        process.send_signal(signal.SIGTERM)
        self.finish(process, STOPPED)
        wait_until(lambda: not any(map(is_alive, self.lines("asked-pids"))), seconds=5)

    def test_what_does_not_end_is_killed(self):
        tandem = self.script("deaf", f"trap '' TERM USR1\necho $$ >> {self.path('deaf-pids')}\nwhile :; do sleep 0.1; done")
        process = self.start("deaf", options=["--hosts", "localhost:2", "--grace", "1"], tandem=tandem)
        wait_until(lambda: len(self.lines("deaf-pids")) == 2)
        process.send_signal(signal.SIGTERM)
        said = self.finish(process, 137)
        self.assertIn("run: not ended 1 s after the request: killed", said)
        for pid in self.lines("deaf-pids"):
            self.assertFalse(is_alive(pid))

    def test_codes_of_ranks(self):
        for ended, code in [("exit 64", 64), ("exit 2", 2), ("kill -KILL $$", 137), ("kill -SEGV $$", 139), ("exit 205", 75)]:
            with self.subTest(ended):
                said = self.finish(self.start("codes", tandem=self.script("ends", ended)), code)
                self.assertTrue(said[-1].startswith(f"run: ended with {code} ("), said)

    def test_the_last_line_names_the_rank_that_is_the_cause(self):
        for number, code in CAUSES:
            with self.subTest(number.name):
                name, folder = number.name, self.run_folder(number.name)
                process = self.start(name, "--train.steps", 10**6, "--dist.timeout_s", 5, options=["--hosts", "localhost:3"])
                wait_until(lambda: trained(folder, 3))
                self.assertEqual(len(in_memory(folder)), 3)
                rank = process_of(folder, 1)
                memory = open(next(path for path in in_memory(folder) if path.endswith("-1")), "rb")
                self.addCleanup(memory.close)
                os.kill(rank, number)
                errors = process.communicate(timeout=120)[1]
                self.assertEqual(process.returncode, code, errors)
                ended, cause = errors.splitlines()[-2:]
                self.assertRegex(ended, rf"^run: ended with {code} \(.*; the same command goes on from the newest checkpoint$")
                self.assertRegex(cause, rf"^run: rank 1 on \S+ \(process {rank}\) (is gone|stood still, then ended), in ")
                self.assertEqual(in_memory(folder), [])
                self.assertEqual(record_in(folder, 1), memory.read())
                # The records are not those of a start that died before it had any.
                early = self.script("ends-early", f'[ "$1" != inspect ] || exec "{tandem_program.TANDEM}" "$@"\nkill -KILL $$')
                said = self.finish(self.start(name, tandem=early), 137)
                self.assertRegex(said[-1], "^run: ended with 137 ")

    def test_a_stop_waits_for_no_verdict(self):
        tandem = self.script("hangs", HANGS.format(inspects=self.path("inspects"), run=self.run_folder("hangs")))
        process = self.start("hangs", options=["--hosts", "localhost:1"], tandem=tandem)
        wait_until(lambda: self.lines("inspects"))
        began = time.monotonic()
        process.terminate()
        said = self.finish(process, 137)
        self.assertLess(time.monotonic() - began, 20)  # not the 30 s that it may take
        self.assertRegex(said[-1], "^run: ended with 137 ")
        wait_until(lambda: not is_alive(self.lines("inspects")[0]))

    def launcher(self, text):
        """The environment with another mpirun, whose words from rank.sh on are in "$@"; tries.N is there after its Nth try."""
        real = shutil.which("mpirun")
        write_program(self.path("stub/mpirun"),
                      f'#!/bin/bash\n[ "$1" != --version ] || exec {real} "$@"\nwords=("$@")\ntry=1\n'
                      f'while [ -e {self.path("tries")}.$try ]; do try=$((try + 1)); done\n: >{self.path("tries")}.$try\n'
                      f'until [ "${{1##*/}}" = rank.sh ]; do shift; done\n{text.format(mpirun=real)}\n')
        for path in glob.glob(self.path("tries.*")):
            os.remove(path)
        return {**os.environ, "PATH": self.path("stub") + ":" + os.environ["PATH"]}

    def test_a_launcher_that_started_too_little_has_not_finished(self):
        """mpirun was seen to end with 0 without a rank. It is tried again, twice."""
        for text, counts, code in [
                ("exit 0", [0, 0, 0], 75), ('OMPI_COMM_WORLD_RANK=1 "$@"', [1, 1, 1], 75),
                ('[ $try -lt 3 ] || exec {mpirun} "${{words[@]}}"', [0, 0], 0)]:
            with self.subTest(text):
                said = self.finish(self.start("few", tandem=self.script("quick", "exit 0"), env=self.launcher(text)), code)
                self.assertEqual([line for line in said if "the launcher" in line], [
                    f"run: the launcher ended with 0, but has started {count} of 2 ranks{'; tries again' * (i < 2)}: see its lines above"
                    for i, count in enumerate(counts)])
                self.assertEqual(len(glob.glob(self.path("tries.*"))), 3)
        self.assertEqual(glob.glob(self.path("runs/.started*")), [])

    def test_a_stop_is_not_tried_again(self):
        process = self.start("waits", tandem=self.script("quick", "exit 0"),
                             env=self.launcher(f"while [ ! -e {self.path('asked')} ]; do sleep 0.1; done"))
        wait_until(lambda: os.path.exists(self.path("tries.1")))
        process.send_signal(signal.SIGTERM)
        for _ in range(2):
            process.stderr.readline()  # how many ranks there are, and that it has heard
        with open(self.path("asked"), "w"):
            pass
        self.assertEqual(self.finish(process, 75)[0], "run: the launcher ended with 0, but has started 0 of 2 ranks: see its lines above")

    def test_a_launcher_that_failed_leaves_nothing(self):
        rank = self.script("left", f"echo $$ > {self.path('left-pid')}; exec sleep 1000")
        env = self.launcher(f"""setsid "$@" & while [ ! -s {self.path('left-pid')} ]; do sleep 0.1; done; exit 1""")
        self.finish(self.start("left", tandem=rank, env=env), 1)
        wait_until(lambda: not is_alive(self.lines("left-pid")[0]))

    def test_srun_that_starts_nothing_has_not_finished(self):
        """Slurm's srun was seen to end with 0 after "task 0 launch failed"."""
        here = os.uname().nodename
        for name, text in [("scontrol", f"echo {here}"),
                           ("srun", 'case $* in --mpi=list) echo pmix ;; *" $TRAINS "*) until [ "${1##*/}" = rank.sh ]; do shift; done; '
                                    'SLURM_PROCID=0 exec "$@" ;; esac')]:
            write_program(self.path(f"slurm/{name}"), f"#!/bin/bash\n{text}\n")
        slurm = {"PATH": self.path("slurm") + ":" + os.environ["PATH"], "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": here,
                 "SLURMD_NODENAME": here, "SLURM_NTASKS_PER_NODE": "1"}
        for trains, code in [("nothing", 75), ("train", 0)]:
            said = self.finish(self.start("srun", tandem=self.script("quick", "exit 0"), options=[],
                                          env={**os.environ, **slurm, "TRAINS": trains}), code)
            self.assertEqual("run: the launcher ended with 0, but has started 0 of 1 ranks: see its lines above" in said, code == 75)

    def test_killing_it_kills_the_job(self):
        process = self.start("orphan", "--train.steps", 10**6)
        self.addCleanup(lambda: [os.kill(rank, signal.SIGKILL) for rank in self.processes_of("orphan")])
        wait_until(lambda: os.path.exists(os.path.join(self.run_folder("orphan"), "metrics.jsonl")))
        process.kill()
        process.wait()
        wait_until(lambda: self.processes_of("orphan") == [], seconds=15)

    def test_refusals(self):
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        for options, settings, code, text in [
                (["--hosts", "localhost:2"], ["--data.path", "/no/such/file"], DATA, "cannot read /no/such/file"),
                (["--hosts", "localhost:2"], ["--data.path", fifo], DATA, f"cannot read {fifo}"),
                (["--platform", "moon"], [], CONFIG, "--platform moon: there are auto, kubernetes, local, sagemaker, slurm, ssh"),
                (["--platform", "ssh"], [], CONFIG, "--platform ssh needs --hostfile FILE or --hosts"),
                (["--hostfile", "/no/such/file"], [], CONFIG, "--hostfile /no/such/file: no such file"),
                (["--hosts", "a:1", "--hostfile", "x"], [], CONFIG, "give one of them"),
                (["--hosts", ""], [], CONFIG, "argument --hosts: is empty: give it a value, or leave it out"),
                (["--hostfile="], [], CONFIG, "argument --hostfile: is empty: give it a value, or leave it out"),
                (["--hosts", "localhost:2"], ["--train.global_batch", "x"], CONFIG, "command line: train.global_batch = x must be a whole number in"),
                (["--wait", "soon"], [], CONFIG, "'soon' is no whole number"),
                (["--colour", "red"], [], CONFIG, "unrecognized arguments: --colour red"),
                (["--hosts", "localhost:2", "--min-hosts", "5"], [], CONFIG, "--min-hosts 5: only 1 on the list"),
                (["--hosts", "gpu_1:1,fine:1"], [], CONFIG, "host 'gpu_1:1': must be NAME"),
                (["--hosts", "no-such-host:1,other:2", "--wait", "0"], [], 75, "no-such-host: silent for 0 s")]:
            with self.subTest(text):
                said = self.finish(self.start("refused", *settings, options=options), code)
                self.assertIn(text, " ".join(said))
                self.assertFalse(os.path.exists(self.run_folder("refused")))

    def test_a_harmful_variable(self):
        harmful = dict(os.environ, NCCL_PROTO="simple")
        said = self.finish(self.start("harmful", env=harmful), CONFIG)
        self.assertIn("NCCL_PROTO is set, and it overrules NCCL's own choice: unset it, or start with --allow NCCL_PROTO", said[0])
        self.finish(self.start("harmful", "--train.steps", 1, options=["--allow", "NCCL_PROTO"], env=harmful), 0)


if __name__ == "__main__":
    tandem_program.main()
