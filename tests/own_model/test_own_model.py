#!/usr/bin/env python3
"""A program with a model of its own, outside the tree: built against an installed Tandem, trained on ranks, looked at.

    test_own_model.py PATH_TO_TANDEM [unittest arguments]
"""
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "program"))
import tandem_program  # noqa: E402
from tandem_program import CONFIG, Workspace, metrics, run  # noqa: E402

INTERNAL = 70
SOURCE = os.path.join(HERE, "..", "..")


def cmake(*arguments):
    done = subprocess.run(["cmake", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class OwnModel(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cmake("--install", os.path.dirname(tandem_program.TANDEM), "--prefix", cls.path("installed"))
        tandem_program.TANDEM = cls.built(HERE, "build")

    @classmethod
    def built(cls, source, build):
        cmake("-S", source, "-B", cls.path(build), f"-DCMAKE_PREFIX_PATH={cls.path('installed')}", "-DCMAKE_BUILD_TYPE=Release")
        cmake("--build", cls.path(build))
        return cls.path(build + "/own_model")

    def train(self, name, *settings, code=0, ranks=None):
        result = run("train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", name, "--model.kind", "bigram",
                     "--train.steps", "30", *tandem_program.QUICK, "--optim.lr", "0.1", *settings, ranks=ranks)
        self.check(result, code)
        return result

    def test_it_is_trained_and_looked_at(self):
        self.assertIn("bigram: rank 4", self.train("one", "--model.rank", "4").stdout)
        losses = [line["loss"] for line in metrics(self.path("runs/one")) if "loss" in line]
        self.assertLess(losses[-1], losses[0] - 0.5)
        self.assertIn("bigram", self.check(run("inspect", self.path("runs/one"))).stdout)
        self.check(run("eval", self.path("runs/one")))
        refused = run("generate", self.path("runs/one"), "--prompt", "the")
        self.assert_one_line(self.check(refused, CONFIG) or refused, "a bigram has no decoder")

    def test_on_ranks_exact_sums_are_the_same(self):
        for name, settings, ranks in [("alone", [], None), ("sharded", ["--dist.zero", "3"], 2)]:
            self.train(name, "--dist.reduce", "exact", "--train.micro_batch", "2", *settings, ranks=ranks)
        alone, sharded = [tandem_program.tensors_in(self.path("runs/" + name)) for name in ["alone", "sharded"]]
        self.assertTrue(alone)
        self.assertEqual(alone, sharded)

    def test_its_settings_are_settings(self):
        self.assertIn("--model.rank 8", self.check(run("train", "--help")).stdout)
        self.assert_one_line(self.train("x", "--model.rank", "0", code=CONFIG), "model.rank = 0 must be a whole number in")
        self.assert_one_line(self.train("x", "--model.heads", "2", code=CONFIG), "model.heads = 2 has no meaning with model.kind = bigram")
        self.assert_one_line(self.train("x", "--model.kind", "gpt", "--model.rank", "2", code=CONFIG),
                             "model.rank = 2 has no meaning with model.kind = gpt")

    def test_a_name_that_is_taken(self):
        """The program is wrong, which each of its commands that knows kinds says by a line."""
        shutil.copytree(HERE, self.path("twice"))
        with open(os.path.join(HERE, "own_model.cpp")) as ours, open(self.path("twice/own_model.cpp"), "w") as theirs:
            theirs.write(ours.read().replace('register_model("bigram"', 'register_model("gpt"'))
        program = self.built(self.path("twice"), "build_twice")
        for command in "train", "estimate":
            done = subprocess.run([program, command], capture_output=True, text=True)
            self.assert_one_line(self.check(done, INTERNAL), "model.kind = gpt is registered twice")

    def test_another_project_takes_the_sources_in(self):
        said = cmake("-S", HERE, "-B", self.path("sources"), f"-DTANDEM_SOURCE={SOURCE}", "-DTANDEM_CUDA=OFF")
        self.assertIn("program ON, tests OFF", said)


if __name__ == "__main__":
    tandem_program.main()
