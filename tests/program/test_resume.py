#!/usr/bin/env python3
"""A run of `tandem train` that is started again: what may change, what may not, when there is nothing to do, what it leaves
out, and checkpoints whose manifests cannot be.

    test_resume.py PATH_TO_TANDEM [unittest arguments]
"""
import ctypes
import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import tandem_program
from tandem_program import CONFIG, DATA, STOPPED, run
from test_life_of_a_run import Life


STALE = """#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
ssize_t pread(int file, void *bytes, size_t count, off_t at) {
  char link[64], path[4096] = "";
  sprintf(link, "/proc/self/fd/%d", file);
  if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "step-00000010/rank-")) return errno = ESTALE, -1;
  return syscall(SYS_pread64, file, bytes, count, at);
}
ssize_t pread64(int, void *, size_t, off_t) __attribute__((alias("pread")));
"""


class Resuming(Life):
    def contents(self, name, but=("lock",)):
        """Every file in the folder of a run, with its bytes. The lock says who held it last."""
        found = {}
        for folder, _, files in os.walk(self.run_folder(name)):
            for file in set(files) - set(but):
                with open(os.path.join(folder, file), "rb") as opened:
                    found[os.path.join(folder, file)] = opened.read()
        return found

    def test_changes_are_listed(self):
        def changes(*settings):
            shown = self.small("changed", *settings).stdout
            return re.findall(r"^changed {5}(\S.*)$", shown, re.MULTILINE)
        self.assertEqual(changes("--train.steps", "5"), [])
        self.assertEqual(changes("--train.steps", "10"), ["train.steps 5 -> 10"])
        self.assertEqual(changes("--optim.lr", "0.0005", "--train.micro_batch", "4", "--run.stop_file", "stop", "--log.progress", "plain"),
                         ["run.stop_file \"\" -> stop", "train.steps 10 -> 20", "train.micro_batch 0 -> 4", "optim.lr 0.001 -> 5e-04",
                          "log.progress none -> plain"])

    def test_what_auto_meant_stays(self):
        for name, first, then, stays in [("new", "auto", "auto", "4"), ("older", "1", "auto", "1"), ("given", "auto", "2", "2")]:
            self.small(name, "--train.steps", "5", "--dist.bucket_mb", first)
            shown = self.small(name, "--dist.bucket_mb", then).stdout
            self.assertIn(f"bucket_mb = {stays}\n", Path(self.run_folder(name), "config.cfg").read_text())
            self.assertEqual("dist.bucket_mb" in shown, name == "given")

    def test_a_run_with_wsd_need_not_know_its_end(self):
        wsd = ["--optim.schedule", "wsd", "--optim.warmup_steps", "4", "--optim.min_lr", "0"]
        self.small("planned", *wsd, "--train.steps", "1000")
        # All of these 600 steps are before the last fifth of 750.
        self.small("extended", *wsd, "--train.steps", "750", "--checkpoint.every_steps", "600", "--checkpoint.at_end", "false")
        falling = self.lines("extended", "lr")[-1]
        self.assertEqual((falling["step"], self.entries("extended")[0]), (750, {"step-00000600"}))
        self.small("extended", *wsd, "--train.steps", "1000")
        self.assert_same_bits("planned", "extended")
        self.assertGreater(self.lines("extended", "lr")[749]["lr"], falling["lr"])

    def test_a_zero_is_the_size_that_it_stands_for(self):
        self.train("sizes", "--train.steps", "2")
        size = re.search(r"(\d+) tokens in the vocabulary", self.check(run("inspect", self.text)).stdout).group(1)
        shown = self.train("sizes", "--train.steps", "3", "--model.vocab", size, "--model.ffn_width", "128")
        self.assertIn("changed     train.steps 2 -> 3\n", shown.stdout)
        self.assertNotIn("model.vocab", self.train("sizes", "--train.steps", "4").stdout)
        more = int(size) + 1
        refused = self.train("sizes", "--model.vocab", more, code=CONFIG)
        self.assertEqual(re.findall("^  (was .*)$", refused.stderr, re.MULTILINE), [f"was model.vocab = 0, now {more}"])

    def test_another_optimizer_or_batch_is_refused(self):
        self.small("fixed", "--train.steps", "5")
        for settings, said in [(["--optim.kind", "sgd"], "was optim.kind = adamw, now sgd"),
                               (["--optim.kind", "sgd", "--optim.momentum", "0"], "was optim.kind = adamw, now sgd"),
                               (["--train.global_batch", "24"], "was train.global_batch = 12, now 24")]:
            # Under the same name, and under another one from the checkpoint.
            for name, more in [("fixed", []), ("other", ["--checkpoint.resume", self.run_folder("fixed")])]:
                refused = self.small(name, *settings, *more, code=CONFIG)
                self.assert_one_line(refused, "with other settings")
                self.assertEqual(re.findall("^  (was .*)$", refused.stderr, re.MULTILINE), [said])
        for then, now in [("0", "0.9"), ("0.9", "0")]:
            sgd = ["--optim.kind", "sgd", "--optim.momentum"]
            self.small(f"sgd-{then}", *sgd, then, "--train.steps", "5")
            refused = self.small(f"sgd-{then}", *sgd, now, code=CONFIG)
            self.assertEqual(re.findall("^  (was .*)$", refused.stderr, re.MULTILINE), [f"was optim.momentum = {then}, now {now}"])
        # A new run may take the weights over.
        self.small("begun", "--optim.kind", "sgd", "--train.global_batch", "24", "--checkpoint.init_from", self.run_folder("fixed"))

    def test_a_run_has_one_job(self):
        first = self.start("busy", "--train.steps", 10**6, "--checkpoint.every_steps", 100, "--log.progress", "none")
        try:
            self.wait_until(lambda: self.entries("busy")[0])
            for ranks in [None, 2]:
                second = self.small("busy", code=CONFIG, ranks=ranks)
                self.assert_one_line(second, rf"run \S+/busy is in use by process {first.pid} on {os.uname().nodename} since "
                                     r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC; wait until it ends, or choose another run.name$")
            self.assertIsNone(first.poll())
        finally:
            first.kill()  # which frees the lock
            first.communicate()
        newest = max(int(entry[5:]) for entry in self.entries("busy")[0])
        self.small("busy", "--train.steps", newest + 5)
        self.assertEqual(self.manifest("busy", newest + 5)["step"], newest + 5)

    def test_the_lock_of_a_lost_host_is_waited_for(self):
        """Its storage sees late that the host is lost."""
        self.small("left", "--train.steps", "5")
        with open(os.path.join(self.run_folder("left"), "lock"), "r+") as lock:
            fcntl.fcntl(lock, 37, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))  # 37: F_OFD_SETLK
            lock.write("process 7 on elsewhere since 2026-01-01 00:00:00 UTC")
            lock.truncate()
            lock.flush()
            next_start = self.start("left")
            self.assertRegex(next_start.stderr.readline(), r"/left is in use by process 7 on elsewhere since .*; waits, as its host may be lost$")
        self.assertEqual((next_start.communicate(timeout=60)[1], next_start.returncode), ("", 0))

    def test_a_finished_run_has_nothing_to_do(self):
        often = ["--checkpoint.every_steps", "5", "--checkpoint.keep", "9", "--log.tensorboard", "true"]
        self.small("again", *often)
        before = self.contents("again")
        for ranks in [None, 2]:
            again = self.small("again", *often, ranks=ranks)
            self.assertRegex(again.stdout, r"\Anothing to do: \S+/again has done all 20 steps \(checkpoint \S+step-00000020\); "
                             r"raise train.steps\n\Z")
            self.assertEqual(self.contents("again"), before)
        # The last step is now before the checkpoint, or this is an older checkpoint, of the last step.
        for settings in [["--train.steps", "10"],
                         ["--train.steps", "10", "--checkpoint.resume", self.checkpoint("again", 10)]]:
            self.assertRegex(self.small("again", *often, *settings).stdout, r"\Anothing to do: \S+/again has done all 10 steps \(")
            self.assertEqual(self.contents("again").items() - before.items(), set())
        self.assertEqual(self.contents("again").keys(), before.keys())
        self.small("again", *often, "--train.steps", "25")
        self.assertEqual([line["step"] for line in self.lines("again")], list(range(1, 26)))

    def test_a_kill_in_the_last_validation_costs_a_validation(self):
        """The run is saved before it. The next start only validates."""
        self.small("whole", "--train.steps", "5")
        ends = [line for line in tandem_program.logged(self.run_folder("whole")) if line["step"] == 5]
        self.assertEqual([next(key for key in ["loss", "checkpoint", "val_loss"] if key in line) for line in ends],
                         ["loss", "checkpoint", "val_loss"])
        for ranks, has_line in [(None, False), (2, True)]:
            killed = f"killed-{ranks}"
            self.small(killed, "--train.steps", "5", "--checkpoint.every_steps", "5", "--checkpoint.at_end", "false")
            saved = self.manifest(killed, 5)
            self.assertNotIn("validation_loss", saved)
            if has_line:
                with open(os.path.join(self.run_folder(killed), "metrics.jsonl"), "a") as file:
                    file.write(json.dumps(ends[-1]) + "\n")
            open(self.path("stop"), "w").close()  # is seen in the validation
            stopped = self.small(killed, "--train.steps", "5", "--run.stop_file", self.path("stop"), ranks=ranks, code=STOPPED)
            os.remove(self.path("stop"))
            self.assertIn("stopped on request after step 5; the same command goes on from here\n", stopped.stdout)
            self.assertEqual((self.manifest(killed, 5), self.lines(killed, "val_loss")), (saved, []))
            self.small(killed, "--train.steps", "5", ranks=ranks)
            self.assertEqual([(line["step"], line["samples"]) for line in self.lines(killed, "val_loss")], [(5, 60)])
            validated = self.manifest(killed, 5)
            self.assertEqual(validated["validation_loss"], self.lines(killed, "val_loss")[0]["val_loss"])
            self.assertEqual(validated["schedule"], {**self.manifest("whole", 5)["schedule"],
                                                     "best_val_loss": validated["validation_loss"]})
            self.assert_is_copy(killed, "step-00000005", "best")
            self.check(run("inspect", self.checkpoint(killed, 5), "--verify"))
            self.assertIn("nothing to do", self.small(killed, "--train.steps", "5").stdout)

    def test_a_kill_in_the_last_validation_leaves_no_gap_in_a_longer_run(self):
        validated = ["--train.eval_every", "5", "--train.steps"]
        self.small("straight", *validated, "10")
        self.small("longer", "--train.steps", "5", "--checkpoint.every_steps", "5", "--checkpoint.at_end", "false")
        open(self.path("stop"), "w").close()
        self.small("longer", *validated, "10", "--run.stop_file", self.path("stop"), code=STOPPED)
        self.assertEqual(self.lines("longer", "val_loss"), [])
        self.small("longer", *validated, "10", "--checkpoint.at_end", "false")
        self.small("longer", *validated, "10")
        self.assertEqual([(line["step"], line["val_loss"]) for line in self.lines("longer", "val_loss")],
                         [(line["step"], line["val_loss"]) for line in self.lines("straight", "val_loss")])
        self.assertEqual(self.manifest("longer", 5)["validation_loss"], self.lines("longer", "val_loss")[0]["val_loss"])

    def test_storage_that_does_not_answer_loses_no_checkpoint(self):
        """It is no damage: the start ends with 75, and another one goes on from the newest."""
        shim = self.path("stale.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", shim], input=STALE, text=True, check=True)
        self.small("stale", "--train.steps", "10", "--checkpoint.every_steps", "5")
        before = self.contents("stale")
        for ranks in [None, 2]:
            refused = self.small("stale", code=75, ranks=ranks, environment={"LD_PRELOAD": shim})
            self.assertRegex(refused.stderr, "step-00000010/rank-0000.h5: cannot read byte .*: Stale file handle")
            self.assertEqual(self.contents("stale"), before)
        self.assertIn("at step 10 of 20", self.small("stale", "--log.progress", "plain").stdout)

    def test_tensorboard_drops_what_a_start_without_a_save_wrote(self):
        unsaved = ["--train.steps", "5", "--checkpoint.at_end", "false", "--log.tensorboard", "true"]
        drops_from_step_1 = b"\x10\x01\x3a\x02\x08\x01"  # an event of step 1 with a SessionLog of status START
        for starts_before in range(2):
            self.small("unsaved", *unsaved)
            self.assertEqual(tandem_program.events(self.run_folder("unsaved")).count(drops_from_step_1), starts_before)

    def test_a_stop_says_what_goes_on(self):
        open(self.path("stop"), "w").close()
        for resume, said in [("none", "checkpoint.resume = auto"), ("auto", "the same command")]:
            stopped = self.small("stopped", "--checkpoint.resume", resume, "--run.stop_file", self.path("stop"), "--log.progress", "plain", code=STOPPED)
            self.assertRegex(stopped.stdout, rf"(?m)^stopped on request after step 0; {said} goes on from here$")

    def test_the_same_start_from_a_checkpoint_goes_on(self):
        """As a supervisor starts it again: once the run has saved, that is where it goes on. Other settings begin there again."""
        self.small("source", "--train.steps", "5")
        begins = ["--checkpoint.resume", self.run_folder("source"), "--checkpoint.every_steps", "10", "--log.progress", "plain"]
        self.small("moved", *begins)
        straight = self.tensors("moved")
        shutil.rmtree(self.checkpoint("moved", 20))
        os.rename(self.run_folder("source"), self.path("away"))
        again = self.small("moved", *begins, "--run.usd_per_node_hour", "3")  # as a launcher sets it for other hosts
        self.assertRegex(again.stdout, r"(?m)^resuming    \S+/moved/checkpoints/step-00000010 at step 10 of 20$")
        self.assertEqual(self.tensors("moved"), straight)
        self.assertEqual([line["step"] for line in self.lines("moved")], list(range(6, 21)))
        self.assertIn("nothing to do", self.small("moved", *begins).stdout)
        os.rename(self.path("away"), self.run_folder("source"))
        other = self.small("moved", *begins, "--optim.lr", "0.002")
        self.assertRegex(other.stdout, r"(?m)^resuming    \S+/source/checkpoints/step-00000005 at step 5 of 20$")
        self.assertTrue(os.path.exists(self.checkpoint("moved", "discarded-step-00000020")))

    def test_a_refused_start_changes_no_file(self):
        self.small("refused", "--train.steps", "5")
        before = self.contents("refused")
        for resume, code in [("none", CONFIG), (self.path("nowhere"), DATA)]:
            self.small("refused", "--optim.lr", "5", "--dist.bucket_mb", "1", "--checkpoint.resume", resume, code=code)
            self.assertEqual(self.contents("refused"), before)


class Xxh3(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


class Manifests(Life):
    """Manifests that say what cannot be, with a right hash."""

    def rewrite(self, name, which, change):
        path = os.path.join(self.checkpoint(name, which), "manifest.json")
        with open(path) as file:
            manifest = json.load(file)
        del manifest["xxh3_128"]
        change(manifest)
        library = ctypes.CDLL("libxxhash.so.0")
        library.XXH3_128bits.restype = Xxh3
        compact = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False).encode()
        digest = library.XXH3_128bits(compact, ctypes.c_size_t(len(compact)))
        manifest["xxh3_128"] = f"{digest.high:016x}{digest.low:016x}"
        with open(path, "w") as file:
            json.dump(manifest, file)

    def test_what_cannot_be_is_refused(self):
        self.small("crafted", "--train.steps", "4", "--dist.reduce", "exact")
        path = os.path.join(self.checkpoint("crafted", 4), "manifest.json")
        with open(path) as file:
            before = file.read()
        self.rewrite("crafted", 4, lambda manifest: None)  # a change of none is none
        self.assertEqual(json.loads(before), self.manifest("crafted", 4))
        exponent = next(name for name in self.manifest("crafted", 4)["schedule"] if name.startswith("exponent/"))
        for keys, value in [(["step"], -5), (["step"], 3), (["sampler", "epoch"], 9), (["sampler", "position"], 7), (["world_size"], 2),
                            (["schedule", "skipped_steps"], 1e300), (["schedule", exponent], 0.5), (["schedule", exponent], 1e300)]:
            def change(manifest):
                for key in keys[:-1]:
                    manifest = manifest[key]
                manifest[keys[-1]] = value
            self.rewrite("crafted", 4, change)
            result = self.small("crafted", "--train.steps", "6", "--dist.reduce", "exact", "--checkpoint.resume", os.path.dirname(path),
                                code=DATA, timeout=20)
            self.assert_one_line(result, "manifest")
            with open(path, "w") as file:
                file.write(before)
        self.rewrite("crafted", 4, lambda manifest: manifest["files"][0].update(name="rank\ntandem: forged"))
        result = self.check(run("inspect", os.path.dirname(path)), DATA)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def test_state_of_another_optimizer_is_refused(self):
        self.small("stated", "--train.steps", "4", "--checkpoint.every_steps", "2", "--checkpoint.keep", "2")
        self.rewrite("stated", 4, lambda manifest: manifest.update(config=manifest["config"].replace("kind = adamw", "kind = lion")))
        for ranks in [None, 2]:
            result = self.small("lion", "--optim.kind", "lion", "--checkpoint.resume", self.checkpoint("stated", 4), ranks=ranks, code=DATA)
            self.assert_one_line(result, r"stated/checkpoints/step-00000004: has a tensor optim/v/\S+, which this optimizer has not")

    def test_a_setting_that_is_no_more_is_named(self):
        self.small("plans", "--train.steps", "5")
        config = Path(self.run_folder("plans"), "config.cfg")
        def older(text):
            return text.replace("\nchoices = ", "\ngemm_plans = plans.txt\nchoices = ")
        config.write_text(older(config.read_text()))
        self.rewrite("plans", 5, lambda manifest: manifest.update(config=older(manifest["config"])))
        self.assertRegex(self.small("plans").stdout, r"(?m)^changed +run\.gemm_plans is ignored: products are measured$")

    def test_settings_that_cannot_be_are_the_checkpoints_fault(self):
        self.train("settings", "--train.steps", "2")
        for old, new in [("width = 32", "width = 4611686018427387904"), ("heads = 2", "heads = 0"), ("heads = 2", "hands = 2")]:
            shutil.copytree(self.checkpoint("settings", 2), self.checkpoint("settings", "bad"))
            self.rewrite("settings", "bad", lambda manifest: manifest.update(config=manifest["config"].replace(old, new)))
            for command in [["eval", "--checkpoint"], ["inspect"], ["generate", "--checkpoint"]]:
                result = self.check(run(*command, self.checkpoint("settings", "bad")), DATA)
                self.assert_one_line(result, "bad/manifest.json")
            shutil.rmtree(self.checkpoint("settings", "bad"))


class SkipBatches(Life):
    # A mistake in Adam's t changes its updates more when beta2 is large. With fp16 there is a loss scale.
    COMMON = ["--train.steps", "12", "--optim.lr", "0.01", "--optim.beta2", "0.9999", "--optim.warmup_steps", "0", "--checkpoint.keep", "50",
              "--checkpoint.every_steps", "1"]

    def skipped(self, name):
        return [line["step"] for line in self.lines(name, "skipped_batch")]

    def test_nothing_changes_in_a_step_that_is_left_out(self):
        self.train("still", "--model.kind", "resnet", "--train.precision", "fp16", *self.COMMON, "--train.steps", "6",
                   "--train.skip_batches", "1,4-5", "--checkpoint.async", "false", data=self.digits)
        at = {step: tandem_program.tensors_in(self.checkpoint("still", step)) for step in range(1, 7)}
        self.assertEqual({name.split("/")[0] for name in at[3]}, {"param", "optim", "stat"})
        for step in [4, 5]:
            self.assertEqual(at[step], at[3], step)
            for figure in ["loss_scale", "clean_steps", "skipped_steps"]:
                self.assertEqual(*[self.manifest("still", at_step)["schedule"][figure] for at_step in [step, 3]])
        for one, other in [(1, 2), (2, 3), (5, 6)]:
            self.assertNotEqual(at[one], at[other])
        self.assertEqual(self.skipped("still"), [1, 4, 5])
        self.assertEqual([line["step"] for line in self.lines("still")], [2, 3, 6])

    def test_other_steps_have_their_own_batches_and_rates(self):
        """With a learning rate of 2^-99 no weight changes, so that a loss depends only on the batch."""
        settings = [*self.COMMON, "--optim.lr", 2**-99, "--optim.min_lr", "0", "--optim.weight_decay", "0"]
        self.small("all", *settings)
        shown = self.small("some", *settings, "--train.skip_batches", "3-5,9").stdout
        def figures(name):
            return {line["step"]: (line["loss"], line["lr"]) for line in self.lines(name)}
        every, some = figures("all"), figures("some")
        self.assertEqual(len(set(every.values())), 12)
        self.assertEqual(some, {step: every[step] for step in [1, 2, 6, 7, 8, 10, 11, 12]})
        self.assertEqual(re.findall(r"^step (\d+)/12  no update, as train.skip_batches = 3-5,9$", shown, re.MULTILINE), ["3", "9"])

    def test_a_resumed_run_equals_the_uninterrupted_one(self):
        settings = [*self.COMMON, "--train.precision", "fp16", "--train.skip_batches", "1,4-6", "--train.eval_every", "5"]
        self.small("straight", *settings)
        for step in [1, 4, 5, 8]:  # after the first step that is left out, among others, and after them
            name = f"from{step}"
            self.small(name, *settings, "--checkpoint.resume", self.checkpoint("straight", step))
            self.assertEqual(self.tensors(name), self.tensors("straight"), step)
            self.assertEqual(self.manifest(name, 12)["schedule"], self.manifest("straight", 12)["schedule"])
        # The setting may change: what was left out before stays so.
        self.small("later", *settings, "--train.skip_batches", "5,6", "--checkpoint.resume", self.checkpoint("straight", 4))
        self.assertEqual(self.tensors("later"), self.tensors("straight"))
        self.assertEqual(self.skipped("later"), [5, 6])

    def test_every_number_of_ranks_gives_the_same_bits(self):
        settings = [*self.COMMON, "--dist.reduce", "exact", "--train.micro_batch", "2", "--train.skip_batches", "1-2,6"]
        self.small("one", *settings)
        for ranks, zero in [(2, 2), (3, 1)]:
            self.small(f"ranks{ranks}", *settings, "--dist.zero", zero, ranks=ranks)
            self.assert_same_bits("one", f"ranks{ranks}")
            resumed = f"resumed{ranks}"
            self.small(resumed, *settings, "--checkpoint.resume", self.checkpoint("one", ranks), ranks=ranks)
            self.assertEqual(self.tensors(resumed), self.tensors("one"))

    def test_all_batches_may_be_left_out(self):
        self.small("none", *self.COMMON, "--train.skip_batches", "1-1000000000000")
        self.assertEqual(tandem_program.tensors_in(self.checkpoint("none", 1)), self.tensors("none"))
        self.assertEqual(self.skipped("none"), list(range(1, 13)))
        self.assertEqual([line["step"] for line in self.lines("none", "val_loss")], [12])


if __name__ == "__main__":
    tandem_program.main()
