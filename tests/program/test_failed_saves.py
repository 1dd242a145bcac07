#!/usr/bin/env python3
"""What becomes of a run whose only checkpoint is being replaced (checkpoint.keep = 1) when the disk is full, a permission is lost
or the folder disappears during the save: training goes on, one line says why, and nothing happens to the checkpoint.

    test_failed_saves.py PATH_TO_TANDEM [unittest arguments]
"""
import ctypes
import os
import re
import resource
import shutil
import signal
import time

import tandem_program
from tandem_program import STOPPED, run
from test_life_of_a_run import Life

LIBC = ctypes.CDLL(None)
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1


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
                          "--checkpoint.every_steps", 50, preexec_fn=prepare, restore_signals=False)
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
        self.assertEqual(re.findall("^tandem: (?!stop requested).*", rest, re.MULTILINE), [])
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
        said, whole = save(4)
        self.assertRegex(said[0], "old checkpoints were not removed: .*[Pp]ermission denied")
        self.assertEqual((len(said), whole), (1, {"step-00000004"}))
        for partial in self.entries("old")[1]:
            os.chmod(self.checkpoint("old", partial), 0o700)
        self.assertEqual(save(6), ([], {"step-00000006"}))
        self.assertEqual(self.entries("old")[1], set())


if __name__ == "__main__":
    tandem_program.main()
