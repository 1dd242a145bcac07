#!/usr/bin/env python3
"""A run of three ranks under launch/supervise.sh, of which a random one is killed again and again, every second time while a
checkpoint is written. What each restart may lose is checked to the step.

    test_kills.py PATH_TO_TANDEM [unittest arguments]

TANDEM_KILLS: how many (20). TANDEM_CHAOS_SEED repeats a run that failed.
"""
import collections
import os
import re
import signal
import statistics
import time

from supervised import Supervised, picks, wait_until
import tandem_program
from tandem_program import metrics, saves

KILLS = int(os.environ.get("TANDEM_KILLS", 20))
EVERY = 15  # steps between saves
LAST = 40 * KILLS  # the step of the last kill, which comes some time after it on a busy machine
STEPS = LAST + 20 * KILLS + 10 * EVERY


class Kills(Supervised):
    SETTINGS = ["--train.steps", STEPS, "--train.micro_batch", 4, "--checkpoint.every_steps", EVERY, "--checkpoint.keep", 2,
                "--log.progress", "plain", "--log.tensorboard", "false", "--dist.bucket_mb", 1]
    # mpirun kills the other ranks at once, without waiting for two seconds, and looks for no network.
    ENVIRONMENT = dict(tandem_program.MPI_ENV, OMPI_MCA_odls_base_sigkill_timeout="0", OMPI_MCA_pml="ob1", OMPI_MCA_btl="self,vader")

    def said(self, pattern=r"(?s).*"):
        with open(self.path("said"), errors="replace") as file:
            return re.findall(pattern, file.read())

    def steps(self, suffix=""):
        return [int(entry[5:13]) for entry in self.saved("killed", r"step-\d{8}" + suffix)]

    def begun(self):
        """The steps of saves that began and were not committed. Older ones are checkpoints that are being removed."""
        return [step for step in self.steps(".partial") if step > max(self.steps(), default=0)]

    def writing(self):
        """What tells them apart from those that an earlier kill has left."""
        folder = os.path.join(self.run_folder("killed"), "checkpoints")
        try:
            return {os.stat(os.path.join(folder, f"step-{step:08}.partial")).st_ino for step in self.begun()}
        except FileNotFoundError:  # committed meanwhile
            return set()

    def kill(self, job, in_a_save):
        """A rank, and then waits until the others are gone. Nothing is started again before the supervisor goes on."""
        ranks = self.processes_of("killed")
        self.assertNotEqual(ranks, [], "the ranks have ended by themselves: " + self.said()[0][-5000:])
        if in_a_save:
            former = self.writing()
            wait_until(lambda: self.writing() - former or job.poll() is not None, every=0.001)
        time.sleep(self.pick.random() * (self.save_s if in_a_save else 0.2))
        job.send_signal(signal.SIGSTOP)
        os.kill(self.pick.choice(ranks), signal.SIGKILL)
        wait_until(lambda: not self.processes_of("killed"))

    def check_restart(self, job, restarts):
        """The newest checkpoint is resumed from. Between two saves, EVERY steps are lost at most: those since the last one
        that was committed. While one is written, these are EVERY steps to the one before, and what was done since it began. A
        save that an earlier kill has ended may have left its folder; no step after it has been done then."""
        done = self.last_step("killed")
        committed, begun = self.steps(), self.begun()
        job.send_signal(signal.SIGCONT)
        wait_until(lambda: len(self.said(r"\nresuming")) > restarts or job.poll() is not None)
        resumed = self.said(r"\nresuming .* at step (\d+) of")
        self.assertEqual(len(resumed), restarts + 1, self.said())
        resumed = int(resumed[-1])
        self.assertEqual(resumed, max(committed))
        lost, since = done - resumed, max(0, done - max(begun, default=done))
        self.assertTrue(0 <= lost <= EVERY + since, f"{lost} steps lost after step {done}, {since} of them during a write")
        self.seen["kills during a write"] += bool(begun) and done >= max(begun)
        self.seen["steps lost"] += lost

    def test_random_kills(self):
        self.pick, self.seen = picks(), collections.Counter()
        self.finish("whole", self.start("whole", *self.SETTINGS, ranks=1), 0, seconds=1200)
        # What a save takes when a rank has the machine for itself; three ranks take longer.
        self.save_s = statistics.median(line["checkpoint"]["write_ms"] for line in saves(self.run_folder("whole"))) / 1000
        began = time.monotonic()
        with open(self.path("said"), "w") as said:
            job = self.start("killed", *self.SETTINGS, options=["--backoff", 0, "--max-restarts", KILLS], ranks=3, stdout=said,
                             stderr=said, env=self.ENVIRONMENT)
            for number, step in enumerate(sorted(self.pick.sample(range(EVERY + EVERY // 2, LAST), KILLS))):
                wait_until(lambda: self.last_step("killed") >= step and self.steps() or job.poll() is not None, 300)
                self.assertIsNone(job.poll(), self.said())
                self.kill(job, number % 2)
                self.check_restart(job, number)
            self.assertEqual(job.wait(120), 0, self.said())
        print(f"{time.monotonic() - began:.0f} s for {KILLS} kills, {1000 * self.save_s:.0f} ms a save; {dict(self.seen)}", flush=True)
        self.assertGreaterEqual(self.seen["kills during a write"], KILLS // 4)
        # Otherwise every save would go on until the next begins, and the loss could be two intervals.
        beside = [line["checkpoint"]["steps"] for line in saves(self.run_folder("killed")) if line["step"] + EVERY < STEPS]
        self.assertLess(min(beside), EVERY)
        logged = [line["step"] for line in metrics(self.run_folder("killed")) if "loss" in line]
        self.assertEqual(logged, list(range(1, STEPS + 1)))
        self.assertGreater(len(self.tensors("whole")), 0)
        self.assertEqual(self.tensors("whole"), self.tensors("killed"))


if __name__ == "__main__":
    tandem_program.main()
