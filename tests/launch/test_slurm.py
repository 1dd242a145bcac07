#!/usr/bin/env python3
"""launch/slurm/train.sbatch in a real Slurm cluster of four pretend hosts with two pretended GPUs each.

    test_slurm.py PATH_TO_TANDEM [unittest arguments]

TANDEM_SLURM=all adds what waits for Slurm's own clock.
"""
import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import pretend_hosts
import slurm_cluster
from supervised import wait_until
import tandem_program
from tandem_program import STOPPED, Workspace, losses, write_program

LAUNCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "launch")
# The same sums on any number of ranks, and a learning rate that does not depend on the number of steps.
SETTINGS = [*tandem_program.TINY, "--train.global_batch", 16, "--train.micro_batch", 2, "--dist.reduce", "exact",
            "--optim.schedule", "constant", "--run.device", "cpu"]
LONG = 10**6  # steps
PATIENCE_S = 180
# A program that ends every training at once with a code. It takes a while to say what it can do.
ENDS = """#!/bin/sh
case "$*" in *--help* | *--check*) sleep ${{HELP_S:-0}}; exec '{}' "$@" ;; esac
while [ -n "$UNTIL" ] && [ "$SLURM_JOB_ID" != "$SLURM_ARRAY_JOB_ID" ] && [ ! -e "$UNTIL" ]; do sleep 0.1; done
echo "trained on GPUs $CUDA_VISIBLE_DEVICES with $*"; exit $CODE
"""
ENDED = ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"]


class Slurm(Workspace):
    pmix = True

    @classmethod
    def setUpClass(cls):
        pretend_hosts.require(*slurm_cluster.PROGRAMS)
        super().setUpClass()
        cls.addClassCleanup(super().tearDownClass)
        cls.cluster = slurm_cluster.Cluster(4, [cls.folder, os.path.dirname(tandem_program.TANDEM)], cls.pmix)
        cls.addClassCleanup(cls.cluster.close)
        cls.make_clone("a clone")
        cls.make_clone("its ends", write_program(cls.path("ends.sh"), ENDS.format(tandem_program.TANDEM)))

    @classmethod
    def tearDownClass(cls):
        pass  # setUpClass has said what is to be done, in its order

    @classmethod
    def make_clone(cls, name, program=None):
        shutil.copytree(LAUNCH, os.path.join(cls.path(name), "launch"))
        os.mkdir(os.path.join(cls.path(name), "build"))
        os.symlink(program or tandem_program.TANDEM, os.path.join(cls.path(name), "build/tandem"))

    def submit(self, name, *settings, options=("--nodes", "2", "--ntasks-per-node", "1"), clone="a clone", **environment):
        """Queues a run. Its number is that of the job."""
        job = self.cluster.submit(*options, os.path.join(self.path(clone), "launch/slurm/train.sbatch"), "--data.path", self.text,
                                  "--run.dir", self.path("runs"), "--run.name", name, *map(str, [*SETTINGS, *settings]),
                                  cwd=self.folder, env={**tandem_program.MPI_ENV, **environment})
        self.addCleanup(self.cluster.run, ["scancel", "--quiet", job])
        return job

    def wait_until(self, job, condition):
        """condition(what Slurm says about the job); fails also when the job has ended without it. Returns what Slurm says."""
        seen = []

        def is_decided():
            said = self.cluster.job(job)
            seen[:] = [said, condition(said)]
            return seen[1] or said["JobState"] in ENDED
        with contextlib.suppress(AssertionError):
            wait_until(is_decided, PATIENCE_S, every=0.2)
        self.assertTrue(seen[1], f"{seen}\n{self.log(job)}")
        return seen[0]

    def wait_for_step(self, job, name, step=1):
        self.wait_until(job, lambda said: self.last_step(name) >= step)

    def finish(self, job, code, restarts=0):
        """What it wrote."""
        ended = self.wait_until(job, lambda said: said["JobState"] in ENDED)
        self.assertEqual((ended["ExitCode"], ended["Restarts"]), (f"{code}:0", str(restarts)), self.log(job))
        return self.log(job)

    def log(self, job):
        path = self.path(f"tandem-{job}.log")
        if not os.path.exists(path):
            return ""
        with open(path, errors="replace") as file:
            return file.read()

    def own_lines(self, job):
        return re.findall("^train.sbatch: (.*)$", self.log(job), re.MULTILINE)

    def last_step(self, name):
        try:
            return max(losses(self.run_folder(name)), default=0)
        except (OSError, ValueError):  # not yet there, or a line that is being written
            return 0

    def start_now(self, job, restarts):
        """Waits until the job is back in the queue, and spares it the two minutes that Slurm lets it wait there. Some
        seconds remain: a host starts no attempt in the moment in which it has ended the last one."""
        said = self.wait_until(job, lambda said: said["Restarts"] == str(restarts) and said["JobState"] in ["PENDING", "RUNNING"])
        if said["JobState"] == "PENDING":  # after a dead host Slurm may start it again at once
            wait_until(lambda: "completing" not in self.cluster.run(["sinfo", "-h", "-o", "%T"]), every=0.2)
            self.cluster.run(["scontrol", "update", f"jobid={job}", "StartTime=now+4", "TimeLimit=30"])

    def end_and_compare(self, name, job, restarts):
        """Stops a run that has resumed, and trains the same steps without a stop, on one rank."""
        resumed_at = self.last_step(name)
        self.wait_until(job, lambda said: "\nresuming" in self.log(job))
        self.wait_for_step(job, name, resumed_at + 1)
        self.signal(job, "USR2")
        said = self.finish(job, STOPPED, restarts)
        self.assertEqual(said.count("\nresuming"), restarts)
        steps = self.last_step(name)
        self.train(f"{name}-whole", *map(str, SETTINGS), "--train.steps", str(steps))
        self.assertEqual(sorted(losses(self.run_folder(name))), list(range(1, steps + 1)))
        self.assertEqual(losses(self.run_folder(name)), losses(self.run_folder(f"{name}-whole")))

    def signal(self, job, name):
        self.cluster.run(["scancel", "--batch", "--signal", name, job])


class Outside(unittest.TestCase):
    def test_without_a_job(self):
        for words, code, said in [(["--help"], 0, r"Trains in a Slurm job, .*\n  sbatch --nodes 4 launch/slurm/train.sbatch .*\n.*\n"),
                                  ([], 2, "train.sbatch: this is no Slurm job: submit this script with sbatch; --help shows how\n")]:
            done = subprocess.run(["bash", os.path.join(LAUNCH, "slurm/train.sbatch"), *words], capture_output=True, text=True,
                                  env={"PATH": os.environ["PATH"]})
            self.assertEqual(done.returncode, code)
            self.assertRegex(done.stdout + done.stderr, f"^{said}$")

    def test_slurm_that_does_not_answer_is_asked_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path = {"PATH": f"{folder}:{os.environ['PATH']}"}
            write_program(os.path.join(folder, "sleep"), "#!/bin/bash\n")
            for failures, said in [(2, "run.sh is not there"), (99, "Slurm does not tell about job 7")]:
                write_program(os.path.join(folder, "scontrol"), f'''#!/bin/bash
                    [ "$2" != job ] || {{ echo >>{folder}/asked; [ $(wc -l <{folder}/asked) -gt {failures} ] || exit 1; }}
                    echo "JobId=7 Command=/none/train.sbatch "''')
                done = subprocess.run(["bash", os.path.join(LAUNCH, "slurm/train.sbatch")], capture_output=True, text=True,
                                      env={**path, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a"})
                self.assertEqual(done.returncode, 2 if failures == 2 else 75)
                self.assertIn(said, done.stdout + done.stderr)


class WithPmix(Slurm):
    def test_all_hosts(self):
        job = self.submit("all", "--train.steps", 4, options=["--nodes", "4"], OMPI_MCA_plm_base_verbose="5")
        # Open MPI 4.1.4 under PMIx sometimes (once in some fifteen jobs) dies of a segmentation fault while its ranks connect.
        crashes = 0
        self.wait_until(job, lambda said: said["JobState"] in ENDED or int(said["Restarts"]) > 0)
        if self.pmix and "Signal: Segmentation fault" in self.log(job) and "\nmodel " not in self.log(job):
            crashes = 1
            self.start_now(job, crashes)
        said = self.finish(job, 0, crashes)
        self.assertRegex(said, "\nranks +8 ranks, 2 on each node;")
        if not self.pmix:  # mpirun says how it starts its daemons
            self.assertRegex(said, "srun .*--gres gpu:2 .*orted")
        crashed = [f"job {job}, attempt 1 of 21, on host0 host1 host2 host3", "ended with 143; goes back into the queue"]
        self.assertEqual(self.own_lines(job), crashed * crashes +
                         [f"job {job}, attempt {1 + crashes} of 21, on host0 host1 host2 host3", "ends with 0"])

    def test_what_was_asked_of_the_job_holds_for_no_step(self):
        job = self.submit("asked", "--train.steps", 2,
                          options=["--nodes", "2", "--gpus", "4", "--ntasks-per-gpu", "1", "--export", "PATH,HOME"])
        self.assertRegex(self.finish(job, 0), "\nranks +4 ranks, 2 on each node;")

    def test_some_of_the_hosts(self):
        """Those that `run.sh --hosts` names in a job, as a study of fewer ranks does."""
        script = write_program(self.path("some.sbatch"), "#!/bin/bash\n#SBATCH --exclusive\n#SBATCH --output tandem-%j.log\n"
                               f'exec "{self.path("a clone")}/launch/run.sh" --hosts host1:2 -- train "$@"\n')
        job = self.cluster.submit("--nodes", "3", "--ntasks-per-node", "1", script, "--data.path", self.text, "--run.dir", self.path("runs"),
                                  "--run.name", "some", *map(str, SETTINGS), "--train.steps", "2", cwd=self.folder, env=tandem_program.MPI_ENV)
        self.addCleanup(self.cluster.run, ["scancel", "--quiet", job])
        said = self.finish(job, 0)
        self.assertRegex(said, "run: 2 ranks on host1 .*\n")
        self.assertRegex(said, "\nranks +2 ranks; ")

    def test_a_stop(self):
        """Saves and requeues after one signal, saves and ends after another."""
        job = self.submit("stopped", "--train.steps", LONG)
        self.wait_for_step(job, "stopped")
        self.signal(job, "USR1")
        self.start_now(job, 1)
        self.end_and_compare("stopped", job, 1)
        self.assertEqual(self.own_lines(job), [
            f"job {job}, attempt 1 of 21, on host0 host1", "ended with 85; goes back into the queue",
            f"job {job}, attempt 2 of 21, on host0 host1", "ends with 85"])


class WithoutPmix(WithPmix):
    pmix = False


class HyperPod(Slurm):
    def test_auto_resume(self):
        seen, options = self.path("auto-resume"), ["--nodes", "1", "--nodelist", "host0"]
        self.finish(self.submit("elsewhere", "--train.steps", 2, options=options, AUTO_RESUME_SEEN=seen), 0)
        self.assertFalse(os.path.exists(seen))
        self.cluster.hosts.replace("host0", "/opt/sagemaker_cluster/resource_config.json", "{}")
        self.finish(self.submit("hyperpod", "--train.steps", 2, options=options, AUTO_RESUME_SEEN=seen), 0)
        with open(seen) as file:
            self.assertEqual(file.read(), "1\n")


class ExitCodes(Slurm):
    """A program that ends at once."""

    def test_the_limit_of_tries(self):
        """A lost host, and a rank that a signal has ended."""
        jobs = {code: self.submit(f"again{code}", options=["--nodes", "1"], clone="its ends", CODE=str(code), TANDEM_MAX_REQUEUES="2")
                for code in [75, 139]}
        for restarts in [1, 2]:
            for job in jobs.values():
                self.start_now(job, restarts)
        for code, job in jobs.items():
            self.finish(job, code, restarts=2)
            trained = re.findall(f"^trained on GPUs 0,1 with train .*--run.name again{code}", self.log(job), re.MULTILINE)
            self.assertEqual(len(trained), 3 * slurm_cluster.GPUS)
            lines = self.own_lines(job)
            self.assertEqual([line.split(",")[1] for line in lines[::2]], [f" attempt {i} of 3" for i in [1, 2, 3]])
            self.assertEqual(lines[1::2], [f"ended with {code}; goes back into the queue"] * 2 +
                             [f"ends with {code}, after 2 times back in the queue"])

    def test_an_array(self):
        """Each task is tried again by itself, also the one that has the array's number."""
        array = self.submit("array", options=["--nodes", "1", "--array", "0-1"], clone="its ends", CODE="75", TANDEM_MAX_REQUEUES="1",
                            UNTIL=self.path("until"))
        tasks = [f"{array}_{i}" for i in (0, 1)]
        for task in tasks:
            self.wait_until(task, lambda said: said["JobState"] == "RUNNING" or said["Restarts"] == "1")
        tasks.sort(key=lambda task: self.cluster.job(task)["JobId"] != array)
        self.assertEqual(self.cluster.job(tasks[0])["JobId"], array)
        self.start_now(tasks[0], 1)
        self.wait_until(tasks[0], lambda said: said["JobState"] in ENDED)
        self.assertEqual(self.cluster.job(tasks[1])["Restarts"], "0")
        with open(self.path("until"), "w"):
            pass
        self.start_now(tasks[1], 1)
        for task in tasks:
            said = self.wait_until(task, lambda said: said["JobState"] in ENDED)
            self.assertEqual((said["ExitCode"], said["Restarts"]), ("75:0", "1"))
            self.assertEqual(len(re.findall("^trained on GPUs", self.log(said["JobId"]), re.MULTILINE)), 2 * slurm_cluster.GPUS)

    def test_a_job_that_is_not_to_be_requeued(self):
        job = self.submit("no-requeue", options=["--nodes", "1", "--no-requeue"], clone="its ends", CODE="75")
        self.finish(job, 75)
        self.assertEqual(self.own_lines(job)[1:], ["ends with 75; with --no-requeue it does not go back into the queue"])

    def test_a_limit_that_is_no_number(self):
        for limit in ["x", "-1", "1000000000000"]:
            job = self.submit("limit", options=["--nodes", "1"], clone="its ends", CODE="75", TANDEM_MAX_REQUEUES=limit)
            self.finish(job, 2)
            self.assertEqual(self.own_lines(job), [f"TANDEM_MAX_REQUEUES={limit}: must be a whole number"])

    def test_what_would_end_alike_is_not_tried_again(self):
        jobs = {code: self.submit(f"ends{code}", options=["--nodes", "1"], clone="its ends", CODE=str(code)) for code in [2, 3, 64]}
        for code, job in jobs.items():
            self.finish(job, code)
            self.assertEqual(self.own_lines(job)[1:], [f"ends with {code}"])

    def test_a_signal_before_anything_has_started(self):
        job = self.submit("early", options=["--nodes", "1"], clone="its ends", CODE="1", HELP_S="5")
        self.wait_until(job, lambda said: self.own_lines(job))
        self.signal(job, "USR2")
        self.finish(job, 85)
        self.assertNotIn("trained", self.log(job))

    def test_a_script_without_its_clone(self):
        lost = shutil.copy(os.path.join(LAUNCH, "slurm/train.sbatch"), self.path("lost.sbatch"))
        job = self.cluster.submit("--nodes", "1", lost, cwd=self.folder, env=os.environ)
        self.assertIn("is not there: submit launch/slurm/train.sbatch of the clone", self.finish(job, 2))


@unittest.skipUnless(os.environ.get("TANDEM_SLURM") == "all", "waits for Slurm's clock: TANDEM_SLURM=all, as tests/nightly.sh")
class Clock(Slurm):
    def test_the_time_limit(self):
        job = self.submit("limit", "--train.steps", LONG, options=["--nodes", "2", "--time", "3"])
        self.start_now(job, 1)
        self.end_and_compare("limit", job, 1)

    def test_a_dead_host(self):
        job = self.submit("dead", "--train.steps", LONG, "--checkpoint.every_steps", 20)
        self.wait_for_step(job, "dead", 21)
        self.addCleanup(self.cluster.hosts.mend, "host1")
        self.cluster.hosts.cut("host1")
        self.start_now(job, 1)
        self.end_and_compare("dead", job, 1)
        self.assertNotIn("host1", self.own_lines(job)[-2])


class ClockWithoutPmix(Clock):
    pmix = False


if __name__ == "__main__":
    tandem_program.main()
