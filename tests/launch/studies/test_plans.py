#!/usr/bin/env python3
"""What launch/scaling.py plans, and what it refuses, with a stand-in for the program.

    test_plans.py [unittest arguments]
"""
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from scaling_studies import FOLDER, LAUNCH, SCALING, STAND_IN, Studies

sys.path.insert(0, LAUNCH)
sys.path.insert(0, os.path.join(FOLDER, "..", "..", "program"))
import scaling.main
from errors import DATA, Failure
from scaling import launches, prices
from tandem_program import write_program

GOLDEN = os.path.join(FOLDER, "plan.txt")


class Plans(Studies):
    def test_golden_plan(self):
        """studies/plan.txt is what the plan looks like; TANDEM_WRITE_GOLDEN=1 writes it anew."""
        with open(self.path("small.cfg"), "w") as out:
            out.write("[train]\nglobal_batch = 80  # samples\n")
        said = self.measure("--config", "small.cfg", "--data.path", "my data.h5", "--ranks", 2, 8, 32, "--node-size", 8,
                            "--mode", "weak", "strong", "--sweep", "dist.zero=0,2", "--usd-per-node-hour", "21.957642", "--plan")
        said = said.replace(shlex.quote(STAND_IN), "TANDEM")
        if os.environ.get("TANDEM_WRITE_GOLDEN"):
            with open(GOLDEN, "w") as out:
                out.write(said)
        with open(GOLDEN) as file:
            self.assertEqual(said, file.read())
        self.assertEqual(os.listdir(self.folder).count("runs"), 0, "nothing is started or written")

    def test_what_is_refused(self):
        table = [
            (["--ranks", 8, 12, "--node-size", 8], "--ranks 12 is over one node of 8 and no multiple of it; use 8 or 16"),
            (["--ranks", 0], "argument --ranks: '0' is no whole number from 1 to 1000000000; --help shows all options"),
            (["--ranks", "x"], "argument --ranks: 'x' is no whole number from 1 to 1000000000; --help shows all options"),
            (["--model.widht", 3], "command line: unknown setting model.widht; --help lists all"),
            (["--sweep", "dist.zerro=0,2"], "command line: unknown setting dist.zerro; --help lists all"),
            (["--nodesize", 3], "unknown argument '--nodesize'; --help shows all options"),
            (["--data.path"], "--data.path has no value; one that begins with -- is given as --data.path=VALUE"),
            (["--sweep", "dist.zero"], "argument --sweep: 'dist.zero' must be like dist.zero=0,2, and has at most 10000 letters; "
                                       "--help shows all options"),
            (["--sweep", "dist.zero=0", "dist.zero=2"], "--sweep: a setting stands twice; list all of its values once"),
            (["--sweep", "dist.zero=0,0"], "--sweep dist.zero: a value stands twice"),
            (["--sweep", "dist.zero=0", "--dist.zero", 2], "dist.zero stands in --sweep and alone; remove one"),
            (["--train.steps", 9], "--train.steps cannot be set: use --warmup and --keep"),
            (["--run.name", "x"], "--run.name cannot be set: each launch is a run with a name of its own"),
            (["--name", "a/b"], "--name 'a/b' must be letters, digits, '.', '_' and '-', and begin with a letter or digit"),
            (["--config", "none.cfg"], "--config none.cfg: no such file"),
            (["--tandem", "none"], "no program none; build it with launch/build.sh, or name it with --tandem"),
            (["--launch", "mpirun -np {ranks}"], "--launch 'mpirun -np {ranks}' must have {command} as a word of its own, "
                                                 "such as 'mpirun -np {ranks} {command}'"),
            (["--launch", "mpirun -np 2 {command}"], "--launch 'mpirun -np 2 {command}' must say {ranks}, or every case would have the same "
                                                     "number, such as 'mpirun -np {ranks} {command}'"),
            (["--hosts", "a,b"], "--launch replaces launch/run.sh, so --platform, --hostfile and --hosts mean nothing with it; "
                                 "write them into the template"),
            (["--launch", "", "--hosts", "a,b"], "how many ranks has a node? Say --node-size N or --instance TYPE"),
            (["--launch", "", "--hosts", "a", "--node-size", 1], "2 ranks need 2 nodes of 1, and there is 1 host"),
            (["--launch", "", "--hosts", "a", "--hostfile", "b"], "--hosts and --hostfile cannot be given together"),
            (["--launch", "", "--hosts", ""], "argument --hosts: is empty: give it a value, or leave it out; --help shows all options"),
            (["--max-dollars", 5], "--max-dollars needs a price: give --instance or --usd-per-node-hour"),
            (["--max-dollars", "much"], "argument --max-dollars: 'much' must be a number of dollars; --help shows all options"),
            (["--usd-per-node-hour", 3600, "--max-dollars", 5],
             "297.60 dollars are expected, more than --max-dollars 5.00; --plan shows where they go"),
            (["--ranks", 3, 5, "--train.global_batch", 32, "--mode", "strong"],
             "no case can run: train.global_batch = 32 is not divisible by 3 ranks; "
             "train.global_batch = 32 is not divisible by 5 ranks"),
            (["--ranks", 3, 5, "--train.global_batch", 32],
             "no case can run: train.global_batch = 32 is not divisible by 3 ranks; "
             "the global batch of 32 on 3 ranks, the smallest number, would be 53.3333 on 5"),
            (["--dist.shard", "node"], "no case can run: dist.shard = node needs a dist.zero above 0"),
            (["--dist.islands", 2, "--dist.sync_every", 20], "islands meet every dist.sync_every = 20 steps, and a launch is the mean of whole "
                                                             "periods before its last step: use --keep 21 or more"),
            (["--train.global_batch", 70], "no case can run: dist.zero = 0 does not fit in 64000 B: needs 140000 B"),
        ]
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        for words, message in table:
            with self.subTest(words=words):
                with self.assertRaises(Failure) as refused:
                    scaling.main.main(self.command(*words)[len(SCALING):])
                self.assertEqual((refused.exception.code, str(refused.exception)), (2, message))
        self.assertEqual(os.listdir(self.folder), ["truth.json"], "before any start")

    def test_hosts(self):
        """A case takes the first nodes of the list, and as many ranks on each as it needs."""
        with open(self.path("hosts"), "w") as out:
            out.write("a slots=2  # the first\nb slots=2\nc slots=2\n")
        for where in (["--hosts", "a,b,c"], ["--hosts", "a:2,b:2,c:2", "--platform", "ssh"], ["--hostfile", "hosts"]):
            said = self.measure("--launch", "", *where, "--node-size", 2, "--ranks", 1, 2, 4, "--plan")
            self.assertEqual(re.findall(r"--hosts (\S+) -- train", said), ["a:1", "a:2", "a:2,b:2"])

    def test_in_a_slurm_job_a_case_takes_some_of_its_hosts(self):
        write_program(self.path("scontrol"), "#!/bin/sh\necho a; echo b\n")
        slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "[a-b]", "PATH": f"{self.folder}:{os.environ['PATH']}"}
        with mock.patch.dict(os.environ, slurm):
            said = self.measure("--launch", "", "--node-size", 2, "--ranks", 1, 2, 4, "--plan")
            self.assertEqual(re.findall(r"--hosts (\S+) -- train", said), ["a:1", "a:2", "a:2,b:2"])

    def test_a_platform_that_takes_all_of_its_hosts_measures_no_case(self):
        with mock.patch.dict(os.environ, {"K_MPI_JOB_ROLE": "launcher", "TANDEM_MPI_HOSTFILE": self.path("mpi")}):
            with open(self.path("mpi"), "w") as out:
                out.write("a slots=2\n")
            said = self.measure("--launch", "", "--node-size", 1, "--plan", code=2)
            self.assertRegex(said, "^scaling: a case takes the first nodes only, and the platform here starts a job on all of its hosts: .*\n$")

    def test_ranks_of_one_machine_have_equal_threads(self):
        def threads(*words):
            return re.findall("--run.threads=([0-9]+)", self.measure("--launch", "", "--ranks", 1, 4, "--plan", *words))
        equal = str(max(1, len(os.sched_getaffinity(0)) // 4))
        self.assertEqual(threads(), [equal] * 2)
        self.assertEqual(threads("--run.threads", "3"), ["3"] * 2)
        with open(self.path("threads.cfg"), "w") as out:
            out.write("[run]\nthreads = 5\n")
        for words in [["--config", "threads.cfg"], ["--instance", "p4d.24xlarge"], ["--hosts", "a,b", "--node-size", 2]]:
            self.assertEqual(threads(*words), [], words)

    def test_machine_types(self):
        """Prices are those of launch/instances.json."""
        price = prices.machine_type("p4d.24xlarge")["usd_per_hour"]["on_demand"]
        said = self.measure("--ranks", 8, 16, "--train.global_batch", 64, "--instance", "p4d.24xlarge", "--plan")
        self.assertIn(f"2 nodes for the whole time, at {price['usd']} an hour (p4d.24xlarge, on demand, price of {price['date']}", said)
        refused = [(["p9"], "--instance p9 is not in launch/instances.json, which has "),
                   (["p4de.24xlarge", "--price", "spot"], "launch/instances.json has no spot price of p4de.24xlarge"),
                   (["p6-b200.48xlarge"], "--instance p6-b200.48xlarge: `tandem estimate` knows no B200 with 183359 MiB")]
        for words, message in refused:
            self.assertIn(message, self.measure("--instance", *words, code=2))

    def test_reports_that_cannot_be(self):
        for words, code, message in [([], 2, "report wants one folder, such as launch/scaling.py report runs/scaling/NAME"),
                                     ([self.folder], 3, f"{self.folder} holds no study: there is no plan.json")]:
            done = subprocess.run([*SCALING, "report", *words], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (code, f"scaling: {message}\n"))

    def test_folders_that_cannot_be(self):
        said = self.measure("--dir", self.path("truth.json"), "--launches", 1, code=3)
        self.assertRegex(said, r"^scaling: \[Errno \d+\] Not a directory: .*truth.json/study'\n$")

    def test_metrics_that_cannot_be_read(self):
        """They are no file, or nested without end."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "metrics.jsonl")
            os.mkfifo(path)
            for _ in range(2):
                with self.assertRaises(Failure) as caught:
                    launches.measure(folder, None, 1)
                self.assertEqual(caught.exception.code, DATA)
                os.remove(path)
                with open(path, "w") as file:
                    file.write("[" * 200000)

    def test_two_at_once(self):
        self.say_truth(seconds=0.1)
        jobs = [self.start("--launches", 2) for _ in range(2)]
        for job in jobs:
            output, errors = job.communicate(timeout=120)
            self.assertEqual(job.returncode, 0, output + errors)
        self.assertEqual(len(self.started()), 4, "one measures, the other waits and finds all done")


if __name__ == "__main__":
    unittest.main(verbosity=2)
