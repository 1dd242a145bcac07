#!/usr/bin/env python3
"""Files of older programs stay readable: in stored/ are a dataset and a run, as the program of November 2026 wrote them with

    tandem train --data.path data.h5 --run.dir . --run.name run --model.layers 1 --model.heads 2 --model.width 8
        --model.context 8 --train.steps 4 --train.global_batch 2 --optim.warmup_steps 1 --log.tensorboard false

and `tied` likewise, with exact sums and plain SGD. Their checkpoints have format 2. `pieces`, of five steps and plain SGD, has format 3.

    test_stored.py PATH_TO_TANDEM [unittest arguments]
"""
import os
import re
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program"))
import tandem_program  # noqa: E402
from tandem_program import CONFIG, Workspace, logged, run  # noqa: E402

STORED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stored")
MODEL = ["--model.layers", "1", "--model.heads", "2", "--model.width", "8", "--model.context", "8"]
RUN = ["--run.name", "run", "--train.global_batch", "2", "--optim.warmup_steps", "1", "--log.tensorboard", "false",
       "--log.progress", "none", "--run.threads", "1", "--run.device", "cpu"]


class Stored(Workspace):
    def setUp(self):
        self.here = self.path(self._testMethodName)
        shutil.copytree(STORED, self.here)

    def train(self, *settings, code=0):
        result = run("train", "--data.path", "data.h5", *MODEL, *RUN, *settings, cwd=self.here)
        self.check(result, code)
        return result

    def test_each_file_is_shown(self):
        for path in ["data.h5", "run", "pieces", "run/checkpoints/step-00000004", "pieces/checkpoints/step-00000005", "."]:
            self.check(run("inspect", path, cwd=self.here))

    def test_the_weights_give_the_stored_loss(self):
        written = [line["val_loss"] for line in logged(os.path.join(STORED, "run")) if "val_loss" in line]
        shown = run("eval", "run", "--data", "data.h5", "--device", "cpu", cwd=self.here)
        self.check(shown)
        self.assertIn(f"val_loss    {written[-1]:.6f}", shown.stdout)

    def test_the_run_goes_on(self):
        shown = self.train("--run.dir", ".", "--train.steps", "6")
        self.assertEqual(re.findall(r"^changed {5}(\S.*)$", shown.stdout, re.MULTILINE), ["train.steps 4 -> 6", "dist.timeout_s 600 -> auto"])
        steps = [line["step"] for line in logged(os.path.join(self.here, "run")) if "lr" in line]
        self.assertEqual(steps[-1], 6)

    def test_what_is_not_as_it_was_is_said(self):
        """Format 2 has whole stacks, and its exact sums added the two uses of a tied weight before they rounded."""
        settings = ["--run.dir", ".", "--run.name", "tied", "--dist.reduce", "exact", "--optim.kind", "sgd", "--optim.momentum", "0"]
        for steps, said in [("5", True), ("6", False)]:
            shown = self.train(*settings, "--train.steps", steps)
            self.assertEqual("tied/checkpoints/step-00000004: format 2, whose stacked parameters" in shown.stderr, said)
            self.assertEqual("changed     last bits of exact sums of the tied weight" in shown.stdout, said)

    def test_a_fixed_setting_is_compared(self):
        refused = self.train("--run.dir", ".", "--model.width", "16", code=CONFIG)
        self.assertEqual(re.findall("^  (was .*)$", refused.stderr, re.MULTILINE), ["was model.width = 8, now 16"])

    def test_another_run_begins_with_the_weights(self):
        self.train("--run.dir", "other", "--checkpoint.init_from", "run", "--train.steps", "1")


if __name__ == "__main__":
    tandem_program.main()
