#!/usr/bin/env python3
"""launch/supervise.sh in what takes long: a run that is killed, damaged and denied its disk again and again, and requests to
stop while a step takes five seconds. TANDEM_CHAOS_SEED repeats a run that failed.

    chaos.py PATH_TO_TANDEM [unittest arguments]
    TANDEM_CHAOS_DEVICE=cuda chaos.py build-simt/tandem Chaos     two ranks on the emulated GPU, and a few kills
"""
import collections
import os
import re
import resource
import signal
import time

from supervised import Supervised, attempts, picks, wait_until
import tandem_program
from tandem_program import STOPPED, metrics, tensors_in

ON_GPU = os.environ.get("TANDEM_CHAOS_DEVICE") == "cuda"
KILLS, STEPS, RANKS, EVERY, LOG = (4, 60, 2, 4, 1) if ON_GPU else (20, 1200, 4, 15, 10)
DEVICE = ["--run.device", "cuda", "--dist.backend", "nccl"] if ON_GPU else []


class Chaos(Supervised):
    SETTINGS = ["--train.steps", STEPS, "--train.log_every", LOG, "--checkpoint.every_steps", EVERY, "--checkpoint.keep", 5,
                "--model.width", 64, "--log.tensorboard", "false", *DEVICE]  # checkpoints of several files, each above FULL

    FULL = 100_000  # bytes, which the other files of the run do not reach

    def kill(self):
        wait_until(lambda: self.processes_of("chaos"))
        time.sleep(self.pick.random() * 0.3)
        ranks = self.processes_of("chaos")
        with open(f"/proc/{ranks[0]}/stat") as stat:
            launcher = int(stat.read().rsplit(")", 1)[1].split()[1])  # its parent
        target = self.pick.choice([launcher, *ranks])
        number = self.pick.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
        before = len(attempts(self.run_folder("chaos")))
        os.kill(target, number)
        wait_until(lambda: len(attempts(self.run_folder("chaos"))) > before)
        self.done[f"{number.name} to {'mpirun' if target == launcher else 'a rank'}"] += 1

    def damage(self):
        """Between two attempts, a file of the newest checkpoint, as long as an older one is whole."""
        folder = os.path.join(self.run_folder("chaos"), "checkpoints")
        whole = sorted(entry for entry in os.listdir(folder) if re.fullmatch(r"step-\d+", entry) and
                       os.stat(os.path.join(folder, entry, "manifest.json")).st_ino not in self.damaged)
        if len(whole) < 2:
            return
        newest = os.path.join(folder, whole[-1])
        self.damaged.add(os.stat(os.path.join(newest, "manifest.json")).st_ino)
        path = os.path.join(newest, self.pick.choice(os.listdir(newest)))
        what = self.pick.choice(["a byte changed", "a file cut", "a file removed"])
        if what == "a file removed":
            os.remove(path)
        else:
            with open(path, "r+b") as file:
                at = self.pick.randrange(os.path.getsize(path))
                if what == "a file cut":
                    file.truncate(at)
                else:
                    file.seek(at)
                    byte = file.read(1)[0]
                    file.seek(at)
                    file.write(bytes([byte ^ 1 << self.pick.randrange(8)]))
        self.done[what] += 1

    def fill_disk(self, said):
        """Until a checkpoint could not be written; the third in a row would end the run."""
        before = said().count("not saved")
        wait_until(lambda: len(self.processes_of("chaos")) == RANKS)
        ranks = self.processes_of("chaos")
        self.limit(ranks, self.FULL)
        wait_until(lambda: said().count("not saved") > before or self.processes_of("chaos") != ranks)
        self.limit(ranks, resource.RLIM_INFINITY)
        self.done["a full disk"] += said().count("not saved") > before

    @staticmethod
    def limit(processes, size):
        for process in processes:
            try:
                resource.prlimit(process, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            except ProcessLookupError:
                pass

    def test_chaos(self):
        self.pick, self.done, self.damaged = picks(), collections.Counter(), set()
        began = time.monotonic()
        self.finish("calm", self.start("calm", *self.SETTINGS, "--dist.reduce", "exact", ranks=RANKS), 0)
        calm = time.monotonic() - began

        began = time.monotonic()
        with open(self.path("said"), "w+") as said_to:
            job = self.start("chaos", *self.SETTINGS, options=["--max-restarts", KILLS], ranks=RANKS, stdout=said_to, stderr=said_to,
                             prefix=["env", "--ignore-signal=XFSZ"],  # files that grow too large fail as on a full disk
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))

            def said():
                with open(self.path("said"), errors="replace") as file:
                    return file.read()

            for number, step in enumerate(sorted(self.pick.sample(range(STEPS * 9 // 10), KILLS))):
                wait_until(lambda: self.last_step("chaos") >= step or job.poll() is not None, 300)
                self.assertIsNone(job.poll(), said()[-5000:])
                if number % 4 == 3:
                    self.fill_disk(said)
                self.kill()
                if number % 2:
                    self.damage()
            job.wait(timeout=600)
        codes = collections.Counter(line["code"] for line in attempts(self.run_folder("chaos")))
        print(f"{calm:.0f} s undisturbed, {time.monotonic() - began:.0f} s with {dict(self.done)}; codes {dict(codes)}", flush=True)
        self.assertEqual(job.returncode, 0, said())
        self.assertEqual(sum(codes.values()), KILLS + 1)
        self.assertTrue(self.done["a full disk"] and len(self.damaged), self.done)
        self.assertEqual(self.processes_of("chaos"), [])
        one, other = [tensors_in(self.run_folder(name)) for name in ["calm", "chaos"]]
        self.assertGreater(len(one), 0)
        self.assertEqual(one, other)


class LongSteps(Supervised):
    MODEL = ["--model.width", 256, "--model.layers", 4, "--model.heads", 4, "--model.context", 256, "--train.micro_batch", 2]

    def test_stops(self):
        self.finish("probe", self.start("probe", *self.MODEL, "--train.steps", 3), 0)
        seconds = metrics(self.run_folder("probe"))[1]["step_ms"] / 1000
        batch = ["--train.global_batch", 12 * max(1, round(5 / seconds)), "--train.steps", 100]
        whens = {"before": lambda name: self.processes_of(name),
                 "first-step": lambda name: os.path.exists(os.path.join(self.run_folder(name), "metrics.jsonl")),
                 "twice": lambda name: self.has(name, r"step-\d+"),
                 "save": lambda name: self.has(name, r"step-\d+\.partial")}
        for name, when in whens.items():
            waits = ["--checkpoint.async", "false"] if name == "save" else []
            job = self.start(name, *self.MODEL, *batch, "--checkpoint.every_steps", 1, *waits)
            wait_until(lambda: when(name), 120)
            began = time.monotonic()
            job.terminate()
            if name == "twice":
                job.terminate()
            self.finish(name, job, STOPPED)
            took = time.monotonic() - began
            self.assert_saved(name)
            steps = [line["step_ms"] / 1000 for line in metrics(self.run_folder(name))] or [0]
            print(f"{name}: saved {took:.1f} s after SIGTERM; the longest of {len(steps)} steps took {max(steps):.1f} s", flush=True)
            self.assertLess(took, max(15, 3 * max(steps)))


if __name__ == "__main__":
    tandem_program.main()
