#!/usr/bin/env python3
"""The life of a run of `tandem train`: what it logs at each step, which checkpoints it keeps, and that a resumed run equals one
that was never interrupted.

    test_life_of_a_run.py PATH_TO_TANDEM [unittest arguments]
"""
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import time

import tandem_program
from tandem_program import DATA, NUMERICAL, STOPPED, Workspace, metrics, run, saves

# A step takes half a millisecond.
SMALL = ["--model.kind", "mlp", "--model.layers", "1", "--model.width", "8", "--log.tensorboard", "false"]
WEIGHTS = 64 * 8 + 8 * 4  # 8 x 8 pixels, 4 classes; without biases


class Life(Workspace):
    # A learning rate at which the validation loss goes up and down.
    RESTLESS = ["--optim.lr", "0.1", "--optim.schedule", "constant", "--optim.warmup_steps", "0", "--train.eval_every", "2",
                "--checkpoint.keep", "50"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.make_digits()

    @staticmethod
    def limited(size):
        """For preexec_fn: files that would grow beyond `size` bytes fail as on a full disk."""
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        return limit

    def small(self, name, *settings, **how):
        return self.train(name, *SMALL, *settings, data=self.digits, **how)

    def lines(self, name, key="loss"):
        return [line for line in metrics(self.run_folder(name)) if key in line]

    def checkpoint(self, name, which):
        return os.path.join(self.run_folder(name), "checkpoints", which if isinstance(which, str) else f"step-{which:08}")

    def manifest(self, name, which):
        with open(os.path.join(self.checkpoint(name, which), "manifest.json")) as file:
            return json.load(file)

    def assert_is_copy(self, name, one, other):
        """The two checkpoints share their files, as hard links. One that was written again would have files of its own."""
        for file in ["rank-0000.h5", "manifest.json"]:
            self.assertTrue(os.path.samefile(*[os.path.join(self.checkpoint(name, which), file) for which in [one, other]]), file)

    def start(self, name, *settings, **how):
        arguments = ["train", "--data.path", self.digits, "--run.dir", self.path("runs"), "--run.name", name, *tandem_program.QUICK,
                     *SMALL, *settings]
        return subprocess.Popen([tandem_program.TANDEM, *map(str, arguments)], env=tandem_program.MPI_ENV, text=True,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **how)

    def entries(self, name):
        """The names of the committed checkpoints, and of those that are not committed."""
        folder = self.checkpoint(name, "")
        found = os.listdir(folder) if os.path.isdir(folder) else []
        return ({entry for entry in found if re.fullmatch(r"step-\d{8}", entry)},
                {entry for entry in found if entry.endswith(".partial")})

    def wait_until(self, condition):
        deadline = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)


class Figures(Life):
    def test_the_learning_rate_is_that_of_the_step(self):
        peak, least, warmup, steps = 0.02, 0.004, 4, 12
        heights = {"constant": lambda done: 1, "linear": lambda done: 1 - done,
                   "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2}
        for schedule, height in heights.items():
            self.small(schedule, "--optim.schedule", schedule, "--optim.lr", peak, "--optim.min_lr", least,
                       "--optim.warmup_steps", warmup, "--train.steps", steps)
            logged = [line["lr"] for line in self.lines(schedule)]
            self.assertEqual(len(logged), steps)
            for update, lr in enumerate(logged):  # update 0 is step 1
                if update < warmup:
                    expected = peak * (update + 1) / (warmup + 1)
                else:
                    expected = least + height((update - warmup) / (steps - warmup)) * (peak - least)
                # The same formula in f64: about six roundings.
                self.assertAlmostEqual(lr, expected, delta=6 * 2**-53 * peak, msg=f"{schedule}, step {update + 1}")

    def test_the_gradient_norm_is_that_before_clipping(self):
        for name, clip in [("free", 0), ("clipped", 0.01)]:
            self.small(name, "--optim.kind", "sgd", "--optim.clip_norm", clip, "--train.steps", "2")
        free, clipped = self.lines("free"), self.lines("clipped")
        self.assertGreater(free[0]["grad_norm"], 0.01)
        self.assertEqual(free[0]["grad_norm"], clipped[0]["grad_norm"])
        self.assertNotEqual(free[1]["loss"], clipped[1]["loss"], "the gradient itself was clipped")

    def test_mfu_follows_from_time_flops_ranks_and_peak(self):
        result = self.small("mfu", "--log.progress", "plain", "--run.device", "cpu", "--train.steps", "10", "--train.log_every", "5",
                            ranks=2)
        number, unit = re.search(r"1 thread a rank, (\S+) ([kMGT])FLOP/s at best", result.stdout).groups()
        peak = float(number) * {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[unit]
        lines = self.lines("mfu")
        self.assertEqual([line["step"] for line in lines], [1, 5, 10])
        for line in lines:
            flops_per_s = 6 * WEIGHTS * 12 / (line["step_ms"] / 1000)  # 12 samples; backward has twice the FLOPs of forward
            # The peak is printed with three digits, so it is off by at most half a unit of the third: 0.5 %.
            self.assertAlmostEqual(line["mfu"] / (flops_per_s / (2 * peak)), 1, delta=0.00501)

    def test_perplexity_is_e_to_the_loss(self):
        result = self.train("perplexity", "--train.steps", "4", "--train.eval_every", "2", "--log.progress", "plain")
        lines = self.lines("perplexity", "val_loss")
        self.assertEqual([(line["step"], line["perplexity"]) for line in lines], [(step, math.exp(line["val_loss"])) for step, line in zip([2, 4], lines)])
        for line in lines:
            self.assertIn(f"val_loss {line['val_loss']:.4f}  perplexity {math.exp(line['val_loss']):.2f}  over", result.stdout)


class Starts(Life):
    def starts(self, name):
        with open(os.path.join(self.run_folder(name), "report.json")) as file:
            return json.load(file)["starts"]

    def test_lines_say_where_training_is(self):
        began = time.time()
        self.small("place", "--train.steps", "8", "--train.eval_every", "4", "--train.skip_batches", "3,6")
        self.small("place", "--train.steps", "10", "--train.eval_every", "4")  # goes on; one more start
        lines = tandem_program.logged(self.run_folder("place"))
        for line in lines:
            self.assertTrue(began - 1 <= line["time"] <= time.time() + 1, line)
            if "checkpoint" not in line:
                self.assertEqual(line["epoch"], 12 * line["step"] / 48)  # 48 images to train, 12 a step
                skipped = sum(step <= line["step"] for step in (3, 6))
                self.assertEqual(line["samples"], 12 * (line["step"] - skipped))
        for key in ["time", "elapsed_s"]:
            self.assertEqual([line[key] for line in lines], sorted(line[key] for line in lines))
        last = max(line["elapsed_s"] for line in lines)
        self.assertLess(last, lines[-1]["time"] - began)  # without start-up, and the time between the starts
        first, second = self.starts("place")
        self.assertLess(last, first["duration_s"] + second["duration_s"] + 0.001)
        self.assertEqual([(start["first_step"], start["step"], start["state"]) for start in (first, second)],
                         [(0, 8, "finished"), (8, 10, "finished")])
        self.assertEqual(second["loss"], [line["loss"] for line in lines if "loss" in line][-1])
        self.assertEqual(second["best_loss"], min(line["loss"] for line in lines if "loss" in line))
        self.assertEqual(second["best_val_loss"], min(line["val_loss"] for line in lines if "val_loss" in line))
        self.assertAlmostEqual(second["images_per_s"] * second["duration_s"], 24, delta=1e-9)
        self.assertEqual((first["version"], first["ranks"], len(first["hosts"])), ("0.1.0", 1, 1))
        self.assertIn("1 thread", first["device"])

    def test_a_start_that_was_killed_is_in_the_report(self):
        process = self.start("killed", "--train.steps", "100000000", "--checkpoint.every_steps", "500")
        self.wait_until(lambda: self.entries("killed")[0])
        self.assertEqual(self.starts("killed")[0]["state"], "running")
        process.kill()
        process.communicate()
        newest = max(int(name[5:]) for name in self.entries("killed")[0])
        self.small("killed", "--train.steps", newest + 1, ranks=2)
        first, second = self.starts("killed")
        self.assertEqual((first["state"], second["state"]), ("died", "finished"))
        self.assertTrue(newest - 500 <= first["step"], first)  # as of its last checkpoint, which it may not have written down
        self.assertEqual((second["first_step"], second["step"], second["ranks"]), (newest, newest + 1, 2))


class Checkpoints(Life):
    def test_best_has_the_least_validation_loss(self):
        found = []
        for steps in [10, 12, 16]:  # three starts of one run
            self.small("best", *self.RESTLESS, "--checkpoint.every_steps", "2", "--train.steps", steps)
            curve = {line["step"]: line["val_loss"] for line in self.lines("best", "val_loss")}
            self.assertEqual(list(curve), list(range(2, steps + 1, 2)))
            least = min(curve, key=curve.get)
            best = self.manifest("best", "best")
            self.assertEqual((best["step"], best["validation_loss"]), (least, curve[least]))
            self.assert_is_copy("best", "best", least)
            found.append(least)
        # The second start must not improve on the first, the third must; the best step is never the first or last validation.
        self.assertTrue(2 < found[0] < 10 and found[1] == found[0] and 12 < found[2] < 16, found)
        # Batches of 1, of 5 with 2 in the last one, and of all 12 images. Six decimals are printed.
        for batch in [1, 5, 12]:
            shown = self.check(run("eval", "--checkpoint", self.checkpoint("best", "best"), "--batch", batch, "--threads", "1")).stdout
            self.assertAlmostEqual(float(re.search(r"val_loss +(\S+)", shown)[1]), curve[found[2]], delta=1.01e-6)

    def test_a_crash_before_the_newest_checkpoint_became_the_best_is_made_good(self):
        settings = [*self.RESTLESS, "--train.steps", "2"]
        self.small("crashed", *settings)
        shutil.rmtree(self.checkpoint("crashed", "best"))
        self.small("crashed", *settings)
        self.assert_is_copy("crashed", "best", 2)

    def test_a_step_is_saved_once(self):
        """A second save of the best step would leave `best` with the files of the first."""
        for name, due in [("by-steps", ["--checkpoint.every_steps", "2"]), ("by-clock", ["--checkpoint.every_minutes", "1e-9"])]:
            self.small(name, *self.RESTLESS, *due, "--train.steps", "10")
            best = self.manifest(name, "best")["step"]
            self.assertLess(best, 10)  # the last step is saved in any case
            self.assert_is_copy(name, "best", best)

    def test_all_ranks_save_by_the_clock_of_one(self):
        self.small("clock", "--checkpoint.every_minutes", "1e-9", "--dist.timeout_s", "10", "--train.steps", "6", ranks=2)
        # Whether a save is due is agreed before each step.
        self.assertEqual([line["step"] for line in saves(self.run_folder("clock"))], list(range(1, 7)))

    def test_a_step_that_is_due_for_all_reasons_is_saved_once(self):
        """Each step is due by steps and by the clock, it is often the best, and one of them is the last or follows a signal."""
        settings = [*self.RESTLESS, "--train.eval_every", "1", "--checkpoint.every_steps", "1", "--checkpoint.every_minutes", "1e-9"]
        for name, beside in [("waits-once", "false"), ("goes-on-once", "true")]:
            self.small(name, *settings, "--checkpoint.async", beside, "--train.steps", "6")
            self.assertEqual([line["step"] for line in saves(self.run_folder(name))], list(range(1, 7)))
            job = self.start(name, *settings, "--checkpoint.async", beside, "--train.steps", 10**6)
            self.wait_until(lambda: len(saves(self.run_folder(name))) >= 9)
            job.send_signal(signal.SIGUSR1)
            said = job.communicate(timeout=60)[1]
            self.assertEqual(job.returncode, STOPPED, said)
            last = self.lines(name)[-1]["step"]
            self.assertEqual([line["step"] for line in saves(self.run_folder(name))], list(range(1, last + 1)))

    def test_a_full_disk_leaves_the_only_checkpoint(self):
        # First the weights do not fit. Then they do, but the manifest does not, because it holds a long text with every
        # character escaped. config.cfg holds the text unescaped and fits.
        long_text = ["--checkpoint.init_from", '"' * 30000]
        for full, width, going_on in [("rank-0000.h5", "256", []), ("manifest.json", "8", long_text)]:
            settings = ["--model.width", width, "--checkpoint.every_steps", "10", "--checkpoint.keep", "1"]
            self.small(full, *settings, "--train.steps", "10")
            result = self.small(full, *settings, *going_on, code=DATA, preexec_fn=self.limited(45000), restore_signals=False)
            self.assert_one_line(result, f"step-00000020.partial/{full}(.partial)?: .*(no space left|disk full)")
            self.check(run("eval", "--checkpoint", self.checkpoint(full, 10)))
            self.small(full, *settings)  # when there is room again
            kept = [entry for entry in os.listdir(self.checkpoint(full, "")) if entry.startswith("step-")]
            self.assertEqual(kept, ["step-00000020"])

    def test_a_checkpoint_is_of_one_moment(self):
        """Whether or not training waits while the checkpoint is written."""
        settings = ["--model.width", "512", "--train.steps", "30", "--checkpoint.every_steps", "10", "--checkpoint.keep", "9"]
        for name, beside in [("waits", "false"), ("goes-on", "true")]:
            self.small(name, *settings, "--checkpoint.async", beside)
        for step in [10, 20, 30]:
            one, other = [tandem_program.tensors_in(self.checkpoint(name, step)) for name in ["waits", "goes-on"]]
            self.assertEqual(one, other, step)
            self.assertEqual(len(one), 12)  # two layers: weight and bias, and two moments of each
        self.assertEqual([line["checkpoint"]["steps"] > 0 for line in saves(self.run_folder("goes-on"))], [True, True, False])

    def test_the_time_of_a_step_is_its_own(self):
        """A checkpoint is committed while the step before is not logged yet, and takes longer than that step."""
        self.small("times", "--train.steps", "400", "--checkpoint.every_steps", "50", "--checkpoint.keep", "9")
        self.assertGreater(min(line["step_ms"] for line in self.lines("times")), 0)

    def test_a_run_that_diverges_keeps_the_checkpoint_that_was_being_written(self):
        result = self.small("diverges", "--optim.kind", "sgd", "--optim.lr", "1e20", "--optim.schedule", "constant",
                            "--optim.warmup_steps", "0", "--optim.clip_norm", "0", "--checkpoint.every_steps", "1",
                            "--checkpoint.keep", "99", code=NUMERICAL)
        step, saved = re.search(r"step (\d+): the gradient is not finite: .*; last checkpoint: (\S+);", result.stderr).groups()
        self.assertEqual(saved, self.checkpoint("diverges", int(step) - 1))
        self.check(run("inspect", saved, "--verify"))

    def test_a_run_goes_on_after_a_lost_step(self):
        """The line says where. The next start, with a lower learning rate, equals a run in which nothing was lost."""
        settings = ["--optim.schedule", "constant", "--optim.warmup_steps", "0", "--optim.clip_norm", "0", "--train.micro_batch", "2",
                    "--checkpoint.every_steps", "4"]
        self.small("straight", *settings, "--optim.lr", "0.01", "--train.steps", "8", ranks=2)
        for lr, steps in [("0.01", 4), ("1e30", 8)]:
            result = self.small("lost", *settings, "--optim.lr", lr, "--train.steps", steps, ranks=2,
                                code=NUMERICAL if steps == 8 else 0)
        self.assert_one_line(result, r"step 6: the gradient is not finite: rank 0 \(and 1 other\), micro-batch 0, first in the output of "
                                     r"block \S+, then in the gradient of head.bias; again when the step was run once more, so data or "
                                     f"numerics; last checkpoint: {self.checkpoint('lost', 4)}; lower optim.lr")
        flight = self.check(run("inspect", self.run_folder("lost"), "--flight")).stdout
        self.assertEqual(len(re.findall(rf"(?m)^rank \d on .* ended with code {NUMERICAL}, ", flight)), 2)
        self.assertTrue(flight.endswith("\nno rank waits for another\n"), flight)
        self.small("lost", *settings, "--optim.lr", "0.01", "--train.steps", "8", ranks=2)
        self.assertEqual(self.tensors("straight"), self.tensors("lost"))

    def test_training_goes_on_without_its_log(self):
        settings = ["--model.width", "8", "--train.steps", "200", "--train.log_every", "1"]
        result = self.small("unlogged", *settings, preexec_fn=self.limited(45000), restore_signals=False)
        self.assert_one_line(result, "not logged: .*metrics.jsonl: .*(no space left|disk full).*; training goes on")
        logged = [line["step"] for line in metrics(self.run_folder("unlogged")) if "loss" in line]
        self.assertEqual(logged[:60], list(range(1, 61)))  # whole lines; a short one may still fit after a long one that did not
        self.assertEqual(logged, sorted(set(logged)))
        self.assertLess(len(logged), 200)
        lost = int(re.search(r"^not logged +(\d+) records: ", result.stdout, re.MULTILINE)[1])
        self.assertGreaterEqual(lost, 200 - len(logged))
        self.check(run("inspect", self.checkpoint("unlogged", 200), "--verify"))

    def test_training_goes_on_without_a_checkpoint_until_the_third(self):
        settings = ["--model.width", "256", "--train.steps", "100", "--checkpoint.every_steps", "10"]
        # With validation each of these steps is the best so far, too. When training waits for the save, its failure is known
        # before the second reason comes up: there must be no second attempt.
        for name, more in [("never", []), ("never-best", ["--train.eval_every", "10", "--checkpoint.async", "false"])]:
            result = self.small(name, *settings, *more, code=DATA, preexec_fn=self.limited(45000), restore_signals=False)
            recorded, *said = [line for line in result.stderr.splitlines() if line.startswith("tandem:")]
            self.assertRegex(recorded, "^tandem: not recorded: .*/flight/rank-0000: cannot write: .*; training goes on")
            self.assertEqual(len(said), 3, result.stderr)
            for step, line in zip([10, 20], said):
                self.assertRegex(line, f"^tandem: not saved: .*step-000000{step}.*no space left.*; training goes on, "
                                 "last checkpoint: none")
            self.assertRegex(said[2], "step-00000030.partial/rank-0000.h5: no space left")
            self.assertEqual(os.listdir(self.checkpoint(name, "")), [])

    def test_training_goes_on_when_the_disk_is_full_for_a_while(self):
        run_ = self.start("while", "--model.width", 256, "--train.steps", 10**6, "--train.log_every", 10**6,
                          "--checkpoint.every_steps", 1000,
                          preexec_fn=self.limited(45000), restore_signals=False)
        self.assertRegex(run_.stderr.readline(), "not recorded: .*/flight/rank-0000: .*; training goes on")
        self.assertRegex(run_.stderr.readline(), "not saved: .*step-00001000.*no space left.*; training goes on")
        resource.prlimit(run_.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self.wait_until(lambda: self.entries("while")[0])
        run_.send_signal(signal.SIGTERM)
        said = run_.communicate(timeout=60)[1]
        self.assertEqual(run_.returncode, STOPPED, said)
        self.check(run("inspect", self.run_folder("while"), "--verify"))
        self.assertGreater(saves(self.run_folder("while"))[0]["step"], 1000)

    def test_a_killed_save_leaves_the_checkpoint_before(self):
        """Each start is killed as soon as its second save begins, and the next start goes on from what is left."""
        for _ in range(3):
            former = self.entries("killed")
            run_ = self.start("killed", "--model.width", 512, "--train.steps", 10**6, "--checkpoint.every_steps", 20)
            self.wait_until(lambda: all(now - then for now, then in zip(self.entries("killed"), former)))
            run_.kill()
            run_.communicate()
            newest = max(self.entries("killed")[0])
            self.assertIn(newest, self.check(run("inspect", self.run_folder("killed"), "--verify")).stdout)


class Stopping(Life):
    def test_a_file_stops_all_ranks_until_it_is_removed(self):
        stop, name = self.path("stop"), "by-file"
        settings = ["--run.stop_file", stop, "--train.global_batch", "12", "--checkpoint.keep", "9"]
        command = ["timeout", "-k", "5", "120", "mpirun", "-np", "2", tandem_program.TANDEM, "train", "--data.path", self.digits,
                   "--run.dir", self.path("runs"), "--run.name", name, *tandem_program.QUICK, *SMALL, *settings,
                   "--train.steps", str(10**8)]
        job = subprocess.Popen(command, env=tandem_program.MPI_ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.terminate)
        log = os.path.join(self.run_folder(name), "metrics.jsonl")
        deadline = time.monotonic() + 60
        while not (os.path.exists(log) and os.path.getsize(log) > 0):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        open(stop, "w").close()
        output, errors = job.communicate(timeout=60)
        self.assertEqual(job.returncode, STOPPED, output + errors)
        step = self.lines(name)[-1]["step"]
        said = rf"run.stop_file = \S+stop is there: saving after step {step}, then stopping; remove the file"
        self.assertEqual(len(re.findall(said, errors)), 1, errors)
        self.assertEqual(self.manifest(name, step)["step"], step)
        # While the file is there, the run stops before it makes another step.
        again = self.small(name, *settings, "--train.steps", step + 2, ranks=2, code=STOPPED)
        self.assertEqual(len(re.findall(said, again.stderr)), 1, again.stderr)
        self.assertEqual(self.lines(name)[-1]["step"], step)
        os.remove(stop)
        self.small(name, *settings, "--train.steps", step + 2, ranks=2)
        self.assertEqual(self.lines(name)[-1]["step"], step + 2)


class Fp16(Life):
    def test_a_run_with_overflows_goes_on_as_if_it_had_not_stopped(self):
        # One sample a step: with a loss scale of 65,536 the gradient of its logits is almost 65,504, the largest fp16
        # number, so a gradient before the head soon overflows. With this large beta2 Adam's t matters for many steps.
        settings = ["--train.precision", "fp16", "--train.global_batch", "1", "--optim.lr", "0.01", "--optim.warmup_steps", "0",
                    "--optim.beta2", "0.9999", "--train.steps", "2030", "--checkpoint.every_steps", "1000", "--checkpoint.keep", "5"]
        self.small("straight", *settings)
        shutil.copytree(self.run_folder("straight"), self.run_folder("resumed"))
        for step in [2000, 2030]:
            shutil.rmtree(self.checkpoint("resumed", step))
        result = self.small("resumed", *settings, "--log.progress", "plain")
        self.assertRegex(result.stdout, r"resuming +\S+step-00001000 at step 1000 of 2030")

        lines = self.lines("straight")
        overflows = [line["step"] for line in lines if line["grad_norm"] is None]
        self.assertTrue(overflows and overflows[-1] < 1000, overflows)
        self.assertEqual(lines[0]["loss_scale"], 65536)
        grown = overflows[-1] + 2000  # 2000 clean steps double the scale; most of them are before the save
        for line in lines:
            skipped = sum(step <= line["step"] for step in overflows)
            self.assertEqual(line["skipped"], skipped)
            self.assertEqual(line["loss_scale"], 65536 / 2**skipped * (2 if line["step"] >= grown else 1), line["step"])

        self.assert_same_bits("straight", "resumed")
        self.assertEqual([(line["loss_scale"], line["skipped"], line["lr"]) for line in lines],
                         [(line["loss_scale"], line["skipped"], line["lr"]) for line in self.lines("resumed")])
        self.assertEqual(self.manifest("straight", 2030)["schedule"], self.manifest("resumed", 2030)["schedule"])
        self.assertEqual(self.manifest("straight", 1000)["schedule"]["clean_steps"], 1000 - overflows[-1])


if __name__ == "__main__":
    tandem_program.main()
