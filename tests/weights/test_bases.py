#!/usr/bin/env python3
"""Checkpoints that refer to frozen weights where they came from: checkpoint.self_contained = false.

    test_bases.py PATH_TO_TANDEM [unittest arguments]
"""
import json
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program"))
import tandem_program  # noqa: E402
from tandem_program import CONFIG, DATA, OK, Workspace, run, tensors_in  # noqa: E402

RUN = ["--model.kind", "llama", "--model.layers", "2", "--model.heads", "4", "--model.kv_heads", "2", "--model.width", "16",
       "--model.context", "8", "--train.global_batch", "4", "--optim.warmup_steps", "1", "--log.tensorboard", "false",
       "--log.progress", "none", "--run.threads", "1", "--run.device", "cpu"]
FROZEN = ["--model.freeze", "wte,blocks.0.*"]


class Bases(Workspace):
    @classmethod
    def train(cls, name, *settings, ranks=None, code=OK):
        done = run("train", "--data.path", cls.text, "--run.dir", cls.path("runs"), "--run.name", name, *RUN, *settings,
                   ranks=ranks)
        return cls.check(done, code)

    def referring(self, name, source, *settings, frozen=FROZEN, **how):
        return self.train(name, "--checkpoint.init_from", self.run_folder(source), *frozen,
                          "--checkpoint.self_contained", "false", *settings, **how)

    def checkpoint(self, name, step):
        return os.path.join(self.run_folder(name), f"checkpoints/step-{step:08d}")

    def bases(self, name, step):
        with open(os.path.join(self.checkpoint(name, step), "manifest.json")) as file:
            return json.load(file).get("bases", [])

    def exported(self, name, *options):
        folder = self.path("exported-" + name)
        shutil.rmtree(folder, ignore_errors=True)
        self.check(run("export", self.run_folder(name), "--output", folder, *options))
        with open(os.path.join(folder, "model.safetensors"), "rb") as file:
            return file.read()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("teacher", "--train.steps", "2")
        cls.steps = ["--train.steps", "4", "--checkpoint.every_steps", "2"]
        cls.train("whole", "--checkpoint.init_from", cls.path("runs/teacher"), *FROZEN, *cls.steps)

    def test_the_same_model_in_less_space(self):
        self.referring("part", "teacher", *self.steps)
        whole, part = tensors_in(self.run_folder("whole")), tensors_in(self.run_folder("part"))
        gone = {name for name in whole if name == "param/wte" or name.startswith("param/blocks.0.")}
        self.assertEqual({name: value for name, value in whole.items() if name not in gone}, part)
        base = self.bases("part", 4)
        self.assertEqual([(one["path"], set(one["tensors"])) for one in base], [(self.checkpoint("teacher", 2), gone)])
        self.assertEqual(self.exported("part"), self.exported("whole"))
        losses = [self.check(run("eval", self.run_folder(name), "--data", self.text, "--device", "cpu")).stdout.split("val_loss")[1]
                  for name in ["whole", "part"]]
        self.assertEqual(*losses)
        # The hash does not depend on the ranks.
        self.referring("ranks", "teacher", *self.steps, ranks=2)
        self.assertEqual(self.bases("ranks", 4), base)

    def test_a_resumed_run_refers_to_it_again(self):
        self.referring("again", "teacher", "--train.steps", "4", "--checkpoint.every_steps", "2")
        shutil.rmtree(self.checkpoint("again", 4))
        self.referring("again", "teacher", "--train.steps", "4", "--dist.zero", "3", ranks=2)
        self.assertEqual(self.bases("again", 4), self.bases("again", 2))
        # A run that is to be self-contained reads what it referred to.
        shutil.rmtree(self.checkpoint("again", 4))
        self.train("again", "--checkpoint.init_from", self.run_folder("teacher"), *FROZEN, *self.steps)
        self.assertEqual(self.bases("again", 4), [])
        self.assertEqual(tensors_in(self.run_folder("again")), tensors_in(self.run_folder("whole")))

    def test_a_run_that_was_self_contained_may_refer_to_it(self):
        self.referring("part", "teacher", *self.steps)
        shutil.copytree(self.run_folder("whole"), self.run_folder("later"))
        shutil.rmtree(self.checkpoint("later", 4))
        # Other weights are there: the teacher's of another seed.
        self.train("other", "--train.steps", "2", "--run.seed", "9")
        self.assert_one_line(self.referring("later", "other", *self.steps, code=DATA),
                             f"{self.checkpoint('other', 2)} has other weights than the frozen ones of {self.checkpoint('later', 2)}")
        self.referring("later", "teacher", *self.steps, ranks=2)
        self.assertEqual(self.bases("later", 4), self.bases("part", 4))
        self.assertEqual(tensors_in(self.run_folder("later")).keys(), tensors_in(self.run_folder("part")).keys())
        # Where nothing is frozen, the source may be gone.
        self.referring("free", "other", "--train.steps", "1", frozen=[])
        shutil.rmtree(self.run_folder("other"))
        self.referring("free", "other", "--train.steps", "2", frozen=[])

    def test_a_source_that_refers_elsewhere_is_not_named(self):
        self.referring("child", "teacher", *self.steps)
        self.referring("grandchild", "child", *self.steps, frozen=["--model.freeze", "wte,blocks.*"])
        self.check(run("inspect", self.run_folder("grandchild"), "--verify"))
        bases = {base["path"]: sorted(base["tensors"]) for base in self.bases("grandchild", 4)}
        teacher, child = self.checkpoint("teacher", 2), self.checkpoint("child", 4)
        self.assertEqual(set(bases), {teacher, child})
        self.assertIn("param/blocks.0.attn.q.weight", bases[teacher])
        self.assertIn("param/blocks.1.attn.q.weight", bases[child])
        expected = self.exported("grandchild")
        moved = self.path("moved-child")
        os.rename(child, moved)
        self.assertEqual(self.exported("grandchild", "--base", moved), expected)
        os.rename(moved, child)

    def test_a_model_that_refers_to_nothing_has_no_base(self):
        teacher, folder = self.run_folder("teacher"), self.path("hugging-face")
        self.check(run("export", teacher, "--output", folder))
        for model, named in [(teacher, self.checkpoint("teacher", 2)), (folder, folder)]:
            for command in [["eval", model, "--data", self.text], ["generate", model, "--tokenizer", self.text, "--prompt", "the"],
                            ["export", model, "--output", self.path("refused")]]:
                self.assert_one_line(self.check(run(*command, "--base", teacher), CONFIG),
                                     f"--base {teacher}: {named} refers to no other weights; leave --base out")

    def test_one_that_moved_or_changed(self):
        self.train("lender", "--train.steps", "1")
        self.referring("borrower", "lender", "--train.steps", "1")
        there, moved = self.checkpoint("lender", 1), self.path("moved")
        expected = self.exported("borrower")
        os.rename(there, moved)
        checkpoint = self.checkpoint("borrower", 1)
        for command in [["eval", self.run_folder("borrower"), "--data", self.text],
                        ["export", self.run_folder("borrower"), "--output", self.path("refused")]]:
            result = self.check(run(*command), DATA)
            self.assert_one_line(result, f"{checkpoint} refers to weights in {there}: .*no checkpoint here.*checkpoint.base")
        self.check(run("inspect", checkpoint, "--tensors"))
        verified = self.check(run("inspect", checkpoint, "--verify"), DATA)
        self.assertIn("every byte is as it was written", verified.stdout)
        self.assert_one_line(verified, f"{checkpoint} refers to weights in {there}: .*no checkpoint here.*otherwise --base")
        self.assert_one_line(self.referring("borrower", "lender", "--train.steps", "2", code=DATA),
                             f"{checkpoint} refers to weights in {there}: .*checkpoint.base")
        self.assertEqual(self.exported("borrower", "--base", moved), expected)
        self.referring("borrower", "lender", "--train.steps", "2", "--checkpoint.base", moved)
        self.assertEqual([base["path"] for base in self.bases("borrower", 2)], [moved])
        # Other weights in its place.
        self.train("other", "--train.steps", "1", "--run.seed", "9")
        shutil.copytree(self.checkpoint("other", 1), there)
        for command in [["eval", checkpoint, "--data", self.text], ["inspect", checkpoint, "--verify"]]:
            self.assert_one_line(self.check(run(*command), DATA),
                                 f"{checkpoint} refers to weights in {there}: its 10 tensors had the hash .* and have .*checkpoint.base")


if __name__ == "__main__":
    tandem_program.main()
