#!/usr/bin/env python3
"""A run of `tandem train` that is started again: what may change, what may not, and when there is nothing to do.

    test_resume.py PATH_TO_TANDEM [unittest arguments]
"""
import os
import re

import tandem_program
from tandem_program import CONFIG
from test_life_of_a_run import Life


class Resuming(Life):
    def contents(self, name, but=()):
        """Every file in the folder of a run, with its bytes."""
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
        # A new run may take the weights over.
        self.small("begun", "--optim.kind", "sgd", "--train.global_batch", "24", "--checkpoint.init_from", self.run_folder("fixed"))

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
            self.assertEqual(self.contents("again", but=["config.cfg"]).items() - before.items(), set())
        self.assertEqual(self.contents("again").keys(), before.keys())
        self.small("again", *often, "--train.steps", "25")
        self.assertEqual([line["step"] for line in self.lines("again")], list(range(1, 26)))


if __name__ == "__main__":
    tandem_program.main()
