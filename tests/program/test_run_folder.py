#!/usr/bin/env python3
"""Hands in the folder of a run: what is renamed, removed, linked elsewhere or put in a file's place, before a start or during it.

And what becomes of a run whose only checkpoint is being replaced (checkpoint.keep = 1) when the disk is full, a permission is lost
or the folder disappears during the save: training goes on, one line says why, and nothing happens to the checkpoint. And which
failed saves end a run, and what becomes the best of it.

    test_run_folder.py PATH_TO_TANDEM [unittest arguments]
"""
import ctypes
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import time
import unittest

import tandem_program
from tandem_program import CONFIG, DATA, OK, STOPPED, run
from test_life_of_a_run import Life

LIBC = ctypes.CDLL(None)
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
# Nothing can be given a name with the text of $REFUSED.
REFUSED_RENAME = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
int rename(const char* from, const char* to) {
  if (!strstr(to, getenv("REFUSED"))) return ((int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename"))(from, to);
  errno = ENOSPC;
  return -1;
}
"""


def write(path, text=""):
    with open(path, "w") as file:
        file.write(text)


class RunFolder(Life):
    def endless(self, name, *settings, **how):
        """A run that has saved at least once, and goes on."""
        run_ = self.start(name, "--train.steps", 10**8, "--checkpoint.every_steps", 200, "--train.log_every", 100, *settings, **how)
        self.addCleanup(lambda: (run_.kill(), run_.communicate()))
        self.wait_until(lambda: self.entries(name)[0])
        return run_

    def assert_ends(self, run_, pattern, code=DATA):
        said = run_.communicate(timeout=60)[1]
        self.assertEqual(run_.returncode, code, said)
        self.assertRegex(said, pattern)
        self.assertEqual(said.count("\n"), 1, said)

    def test_a_folder_that_is_renamed_ends_the_run(self):
        run_ = self.endless("before")
        os.rename(self.run_folder("before"), self.run_folder("after"))
        self.assert_ends(run_, r"^tandem: \S+/runs/before: the folder of the run was renamed or removed")
        self.assertFalse(os.path.exists(self.run_folder("before")))
        self.assertEqual(sorted(os.listdir(self.run_folder("after"))), ["checkpoints", "classes.h5", "config.cfg", "flight", "lock", "metrics.jsonl", "report.json"])
        newest = int(max(self.entries("after")[0])[5:])
        self.small("after", "--train.steps", newest + 1)
        self.assertEqual([line["step"] for line in self.lines("after")][-1], newest + 1)

    def test_a_folder_that_is_removed_ends_the_run(self):
        run_ = self.endless("removed")
        run_.send_signal(signal.SIGSTOP)  # its files would change while they are removed
        self.wait_until(lambda: FailedSaves.state_of(run_.pid) == "T")
        shutil.rmtree(self.run_folder("removed"))
        run_.send_signal(signal.SIGCONT)
        self.assert_ends(run_, r"^tandem: \S+/runs/removed: the folder of the run was renamed or removed")
        self.assertFalse(os.path.exists(self.run_folder("removed")))

    def test_another_run_in_its_place_ends_the_run(self):
        run_ = self.endless("place")
        run_.send_signal(signal.SIGSTOP)
        os.rename(self.run_folder("place"), self.path("moved"))
        self.small("place", "--train.steps", "5")
        before = sorted(os.listdir(self.run_folder("place")))
        run_.send_signal(signal.SIGCONT)
        self.assert_ends(run_, "the folder of the run was renamed or removed")
        self.assertEqual(sorted(os.listdir(self.run_folder("place"))), before)
        self.assertEqual(self.lines("place")[-1]["step"], 5)
        self.assertEqual(self.entries("place"), ({"step-00000005"}, set()))

    def test_a_lock_that_is_removed_ends_the_run(self):
        """Another job can take the new one, and both would write."""
        run_ = self.endless("open")
        os.remove(os.path.join(self.run_folder("open"), "lock"))
        self.assert_ends(run_, r"^tandem: \S+/runs/open/lock: renamed or removed, so that another job may write to the run")

    def test_only_what_saves_left_behind_is_removed(self):
        self.small("tidy", "--train.steps", "2")
        folder = self.checkpoint("tidy", "")
        mine, linked = self.path("mine"), self.path("linked")
        for path in [mine, linked, *[os.path.join(folder, name) for name in
                                     ["my-work.partial", "step-1.partial", "step-0000000x.partial", "step-00000001.partial"]]]:
            os.makedirs(path)
            write(os.path.join(path, "file"))
        os.symlink(mine, os.path.join(folder, "step-00000099.partial"))
        os.symlink(linked, os.path.join(folder, "best.partial"))
        self.small("tidy", "--train.steps", "4")
        self.assertEqual(sorted(os.listdir(folder)), ["best", "my-work.partial", "step-00000002", "step-00000004", "step-0000000x.partial", "step-1.partial"])
        for path in [mine, linked, os.path.join(folder, "my-work.partial")]:
            self.assertEqual(os.listdir(path), ["file"])

    def test_folders_elsewhere_are_refused(self):
        os.makedirs(self.run_folder("elsewhere"))
        os.makedirs(self.path("shared/my.partial"))
        for folder in ["checkpoints", "flight", "trace"]:
            link = os.path.join(self.run_folder("elsewhere"), folder)
            os.symlink(self.path("shared"), link)
            self.assert_one_line(self.small("elsewhere", code=DATA), f"elsewhere/{folder}: a symbolic link: .* make it a folder")
            self.assertEqual(os.listdir(self.path("shared")), ["my.partial"])
            os.remove(link)

    def test_checkpoints_that_become_a_link_end_the_run(self):
        run_ = self.endless("linked")
        run_.send_signal(signal.SIGSTOP)  # its files would change while they are moved
        self.wait_until(lambda: FailedSaves.state_of(run_.pid) == "T")
        folder, elsewhere = self.checkpoint("linked", "")[:-1], self.path("linked-elsewhere")
        os.makedirs(elsewhere)
        os.rename(folder, folder + ".kept")
        os.symlink(elsewhere, folder)
        run_.send_signal(signal.SIGCONT)
        self.assert_ends(run_, r"^tandem: \S+/runs/linked/checkpoints: a symbolic link")

    def test_nothing_is_written_through_a_link(self):
        precious = self.path("precious")
        write(precious, '{"step": 0}\n')  # also as metrics.jsonl: nothing of it needs to move aside
        for file, settings in [("lock", []), ("metrics.jsonl", []), ("report.json.partial", []), ("config.cfg.partial", []),
                               ("classes.h5.partial", []), ("tokenizer.h5.partial", ["--model.kind", "gpt"])]:
            name = file.replace(".", "-")
            start = lambda code=OK: (self.train(name, "--train.steps", "1", code=code) if settings else
                                     self.small(name, "--train.steps", "1", code=code))
            start()
            path = os.path.join(self.run_folder(name), file)
            if os.path.exists(path):
                os.remove(path)
            shutil.rmtree(self.checkpoint(name, ""))  # so that there is a step to do
            os.symlink(precious, path)
            result = start(code=DATA if file != "report.json.partial" else OK)
            self.assert_one_line(result, f"{file.removesuffix('.partial')}.*symbolic link")
            with open(precious) as kept:
                self.assertEqual(kept.read(), '{"step": 0}\n', file)

    def test_config_cfg_is_made_again(self):
        self.small("lost", "--train.steps", "2")
        config = os.path.join(self.run_folder("lost"), "config.cfg")
        with open(config) as file:
            before = file.read()
        os.remove(config)
        result = self.small("lost", "--train.steps", "2", "--model.width", "16", code=CONFIG)
        self.assert_one_line(result, "run lost was started with other settings")
        with open(config) as file:
            self.assertEqual(file.read(), before)
        os.remove(config)
        self.small("lost", "--train.steps", "2")
        with open(config) as file:
            self.assertEqual(file.read(), before)
        self.small("lost", "--train.steps", "3")
        os.remove(config)
        shutil.rmtree(self.checkpoint("lost", ""))  # nothing is left to go on from
        self.small("lost", "--train.steps", "1")
        self.assertEqual([line["step"] for line in self.lines("lost")], [1])

    def test_what_is_no_file_is_refused(self):
        """Pipes are never waited for, and devices never read to an end that they do not have."""
        self.small("special", "--train.steps", "2")
        folder, manifest = self.run_folder("special"), os.path.join(self.checkpoint("special", 2), "manifest.json")
        more = ["--train.steps", "3"]

        def refused(path, command, code=DATA, kind=os.mkfifo):
            os.rename(path, path + ".kept")
            kind(path)
            result = command()
            self.assert_one_line(self.check(result, code), f"{os.path.basename(path)}: .*not a file")
            os.remove(path)
            os.rename(path + ".kept", path)

        def zero(path):
            os.symlink("/dev/zero", path)
        for kind in [os.mkfifo, zero]:
            for file in ["config.cfg", "report.json"]:
                refused(os.path.join(folder, file), lambda: self.small("special", *more, code=DATA), kind=kind)
            refused(os.path.join(folder, "metrics.jsonl"), lambda: run("inspect", folder, timeout=20), kind=kind)
            refused(manifest, lambda: run("eval", "--checkpoint", os.path.dirname(manifest), timeout=20), kind=kind)
        refused(os.path.join(folder, "metrics.jsonl"), lambda: self.small("special", *more, code=DATA))
        refused(os.path.join(folder, "lock"), lambda: self.small("special", *more, code=DATA))
        for setting, code in [("--config", CONFIG)]:
            result = run("train", "--data.path", self.text, "--run.dir", self.path("zero"), setting, "/dev/zero", *tandem_program.TINY, timeout=20)
            self.assert_one_line(self.check(result, code), "/dev/zero: not a file")
        model = self.path("model")
        os.makedirs(model)
        for file in ["config.json", "model.safetensors"]:
            write(os.path.join(model, file))
        refused(os.path.join(model, "config.json"), lambda: run("eval", "--checkpoint", model, "--data", self.text, timeout=20))
        self.small("special", *more)

    def test_outputs_replace_only_files(self):
        self.train("writes", "--train.steps", "1")
        given, texts, pipe = (self.path(name) for name in ["given.jsonl", "texts", "pipe"])
        write(given, '{"prompt": "the", "choices": ["old", "red"], "label": 0}\n')
        os.mkfifo(pipe)
        for command in [["generate", "--tokens", "5", "--input"], ["eval", "--choices"]]:
            command = [*command, given, "--checkpoint", self.run_folder("writes"), "--output"]
            for output, kind in (pipe, "device"), (self.folder, "directory"):
                self.assert_one_line(self.check(run(*command, output), DATA), f"{output}: cannot write: not a file, but a {kind}")
                self.assertFalse(os.path.exists(output + ".partial"))
            self.assertTrue(stat.S_ISFIFO(os.stat(pipe).st_mode))
            write(texts, "kept")
            failed = run(*command, texts, preexec_fn=self.limited(1), restore_signals=False)
            self.assert_one_line(self.check(failed, DATA), "texts.partial: cannot write: ")
            self.assertEqual((os.path.getsize(texts), os.path.exists(texts + ".partial")), (4, False))
            self.check(run(*command, texts))
            self.assertGreater(os.path.getsize(texts), 20)

            with open(given) as file:
                before = file.read()
            os.link(given, self.path("other.partial"))
            for output in given, self.path("other"):
                self.assert_one_line(self.check(run(*command, output), CONFIG), f"--output {output} is an input too; write another file")
            os.remove(self.path("other.partial"))
            with open(given) as file:
                self.assertEqual(file.read(), before)

    @unittest.skipIf(os.geteuid() != 0, "making a device needs root")
    def test_outputs_replace_no_device(self):
        null = os.stat("/dev/null")
        device = self.path("null")
        os.mknod(device, 0o666 | 0o20000, null.st_rdev)
        result = run("bench", "links", "--run.device", "cpu", "--largest-mib", "1", "--output", device, ranks=2)
        self.assert_one_line(self.check(result, DATA), "null: cannot write: not a file, but a device")
        self.assertEqual(os.stat(device).st_rdev, null.st_rdev)


def obey_permissions():
    LIBC.prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)  # they hold for root, too


class FailedSaves(Life):
    def content(self, checkpoint):
        found = {}
        for entry in sorted(os.listdir(checkpoint)):
            with open(os.path.join(checkpoint, entry), "rb") as file:
                found[entry] = file.read()
        return found

    def stop_in_a_save(self, name, run_):
        """The folder that is being written, and the older checkpoint; the process stands still."""
        while True:
            self.wait_until(lambda: all(self.entries(name)))
            run_.send_signal(signal.SIGSTOP)
            self.wait_until(lambda: self.state_of(run_.pid) == "T")
            whole, partial = self.entries(name)
            if len(whole) == 1 and len(partial) == 1 and max(partial) > max(whole):
                files = os.listdir(self.checkpoint(name, max(partial)))
                if "rank-0000.h5" not in files:  # complete, so that almost nothing is left to fail
                    return self.checkpoint(name, max(partial)), self.checkpoint(name, max(whole))
            run_.send_signal(signal.SIGCONT)
            time.sleep(0.003)

    @staticmethod
    def state_of(process):
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0]

    def check_fault(self, name, fault, mend, pattern):
        def prepare():
            obey_permissions()
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        run_ = self.start(name, "--model.width", 4096, "--train.steps", 10**6, "--train.log_every", 10**6, "--checkpoint.keep", 1,
                          "--checkpoint.every_steps", 500, preexec_fn=prepare, restore_signals=False)
        self.addCleanup(lambda: (run_.kill(), run_.communicate()))
        partial, whole = self.stop_in_a_save(name, run_)
        before = self.content(whole)
        self.assertEqual(sorted(before), ["manifest.json", "rank-0000.h5"])
        fault(run_, partial)
        run_.send_signal(signal.SIGCONT)
        said = run_.stderr.readline()
        self.assertRegex(said, f"^tandem: not saved: {re.escape(partial)}.*{pattern}.*; training goes on, last checkpoint: {re.escape(whole)}$")
        run_.send_signal(signal.SIGSTOP)
        self.assertEqual(self.content(whole), before)
        mend(run_, partial)
        run_.send_signal(signal.SIGCONT)
        self.wait_until(lambda: max(self.entries(name)[0], default="") > os.path.basename(partial))  # the next save works
        run_.terminate()
        rest = run_.communicate(timeout=60)[1]
        self.assertEqual(run_.returncode, STOPPED, rest)
        # A save that began before the process stood still fails as the first one did.
        earlier = re.compile(f"tandem: not saved: .*{pattern}.*; training goes on, last checkpoint: {re.escape(whole)}")
        said = re.findall("^tandem: (?!stop requested).*", rest, re.MULTILINE)
        self.assertEqual([line for line in said if not earlier.fullmatch(line)], [])
        self.check(run("inspect", self.run_folder(name), "--verify"))
        kept = [len(names) for names in self.entries(name)]
        self.assertEqual(kept, [1, 0])

    def test_a_full_disk(self):
        def limit(size):
            return lambda run_, partial: resource.prlimit(run_.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        self.check_fault("full", limit(1000), limit(resource.RLIM_INFINITY), "(no space left|disk full)")

    def test_a_permission_that_is_lost(self):
        def allow(mode):
            def change(run_, partial):
                for folder in [partial, os.path.dirname(partial)]:
                    if os.path.isdir(folder):
                        os.chmod(folder, mode)
            return change
        self.check_fault("forbidden", allow(0o555), allow(0o755), "[Pp]ermission denied")

    def test_a_folder_that_disappears(self):
        self.check_fault("gone", lambda run_, partial: shutil.rmtree(partial), lambda run_, partial: None, "[Nn]o such file")

    def test_an_old_checkpoint_that_cannot_be_removed(self):
        def save(steps):
            run_ = self.start("old", "--train.steps", steps, "--checkpoint.keep", 1, preexec_fn=obey_permissions)
            said = run_.communicate(timeout=60)[1]
            self.assertEqual(run_.returncode, 0, said)
            return re.findall("^tandem: .*", said, re.MULTILINE), self.entries("old")[0]
        self.assertEqual(save(2), ([], {"step-00000002"}))
        os.chmod(self.checkpoint("old", 2), 0o500)
        for steps, why in [(4, "old checkpoints were not removed: "), (6, "not removed: ")]:
            said, whole = save(steps)
            self.assertRegex(said[0], why + ".*[Pp]ermission denied")
            self.assertEqual((len(said), whole), (1, {f"step-{steps:08}"}))
        for partial in self.entries("old")[1]:
            os.chmod(self.checkpoint("old", partial), 0o700)
        self.assertEqual(save(8), ([], {"step-00000008"}))
        self.assertEqual(self.entries("old")[1], set())


class Counting(Life):
    """Which saves fail is exact here: a limit for files lies between the sizes of two manifests. A manifest is the largest file,
    because it holds a long text with every character escaped. Weights stay as they are, so all validations are alike."""
    SETTINGS = ["--optim.lr", "1e-30", "--optim.schedule", "constant", "--train.eval_every", "2", "--checkpoint.every_steps", "5",
                "--checkpoint.keep", "9", "--checkpoint.at_end", "false", "--checkpoint.async", "false", "--checkpoint.init_from", '"' * 20000]

    def go_on(self, name, limit=resource.RLIM_INFINITY):
        self.small(name, *self.SETTINGS[:-2], "--checkpoint.every_steps", "1", "--train.steps", "1")
        return self.small(name, *self.SETTINGS, "--train.steps", "6", preexec_fn=self.limited(limit), restore_signals=False)

    def size(self, name, step):
        return os.path.getsize(os.path.join(self.checkpoint(name, step), "manifest.json"))

    def test_which_failures_end_a_run_and_what_may_become_the_best(self):
        self.go_on("free")
        self.assertEqual(self.entries("free"), ({"step-00000001", "step-00000002", "step-00000005"}, set()))
        self.assertEqual((self.manifest("free", 2)["validation_loss"], self.manifest("free", "best")["step"]),
                         (self.lines("free", "val_loss")[-1]["val_loss"], 2))
        self.assertNotIn("validation_loss", self.manifest("free", 5))  # step 4 was validated, not step 5

        # Step 2 fails. Steps 2, 4, and so on have one loss, which is not yet that of any checkpoint.
        # In its manifest the position in the data, 24, has one digit more than that of step 4, which is 0.
        result = self.go_on("best", self.size("free", 2) - 1)
        self.assert_one_line(result, "not saved: .*step-00000002.*; training goes on")
        self.assertEqual(self.manifest("best", "best")["step"], 4)
        self.assert_is_copy("best", "best", 4)

        # Steps 2, 4 and 6 fail. Step 5, which has no loss in its manifest, does not: three failures, but not in a row.
        result = self.go_on("some", self.size("free", 2) - 20)
        self.assertEqual(re.findall(r"not saved: \S+step-0000000(\d)", result.stderr), ["2", "4", "6"], result.stderr)
        self.assertEqual(self.entries("some"), ({"step-00000001", "step-00000005"}, set()))

    def test_the_best_stays_when_a_better_one_cannot_be_saved(self):
        shim = self.path("refuse.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", shim], input=REFUSED_RENAME, text=True, check=True)
        self.small("all", *self.RESTLESS, "--train.steps", 60)
        loss = {line["step"]: line["val_loss"] for line in self.lines("all", "val_loss")}
        # The first step that is better than all before it, with one after it that is worse than the best of these.
        best_before = {step: min(range(2, step, 2), key=loss.get) for step in range(4, 60, 2)}
        lost = next(step for step, best in best_before.items() if loss[step] < loss[best] < loss[step + 2])
        result = self.small("lost", *self.RESTLESS, "--checkpoint.async", "false", "--train.steps", lost + 2,
                            environment={"LD_PRELOAD": shim, "REFUSED": f"step-{lost:08}"})
        self.assert_one_line(result, f"not saved: .*step-{lost:08}.*; training goes on")
        self.assertEqual(self.manifest("lost", "best")["step"], best_before[lost])
        # So it is with the copy of a checkpoint that is the best one.
        result = self.small("uncopied", *self.RESTLESS, "--checkpoint.async", "false", "--checkpoint.at_end", "false", "--train.steps", 3,
                            environment={"LD_PRELOAD": shim, "REFUSED": "checkpoints/best"})
        self.assert_one_line(result, "not saved: .*best.*; training goes on, last checkpoint: .*step-00000002")


if __name__ == "__main__":
    tandem_program.main()
