#!/usr/bin/env python3
"""Runs whose ranks cut each layer (dist.tensor): the same model as on one rank, also when it goes on with another size.

    test_tensor_runs.py PATH_TO_TANDEM [unittest arguments]
"""
import json
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program"))
import tandem_program  # noqa: E402
from tandem_program import CONFIG, DATA, QUICK, Workspace, losses, metrics, run  # noqa: E402

SIZES = ["--model.heads", "4", "--model.dropout", "0.1"]  # a vocabulary of 22 tokens is cut unevenly
LLAMA = [*SIZES, "--model.kind", "llama", "--model.heads", "8", "--model.kv_heads", "4", "--model.tie_embeddings", "false"]


def cut(size, *settings):
    return ["--dist.tensor", size, *settings]


class Tensor(Workspace):
    def test_losses_are_those_of_one_rank(self):
        for name, model in ("gpt", SIZES), ("llama", LLAMA):
            every = [*model, "--train.eval_every", "10"]
            self.train(name, *every)
            one = losses(self.run_folder(name))
            for ranks, settings in [(2, cut(2)), (4, cut(2, "--dist.zero", 3, "--train.micro_batch", 2)),
                                    (4, cut(4, "--train.recompute", "block"))]:
                with self.subTest(f"{name}, {ranks} ranks", settings=settings):
                    other = f"{name}-{ranks}-{settings[1]}"
                    self.train(other, *every, *settings, ranks=ranks)
                    self.assert_curves_agree(one, losses(self.run_folder(other)))
                    shown = [[line["val_loss"] for line in metrics(self.run_folder(run)) if "val_loss" in line]
                             for run in (name, other)]
                    self.assertEqual(len(shown[0]), 2)
                    for mine, theirs in zip(*shown):
                        self.assertAlmostEqual(mine, theirs, delta=4e-5 * mine)

    def test_exact_sums_have_one_hash(self):
        """At one tensor size data ranks, stages, micro-steps, recomputation, overlap and a restart change no bit."""
        exact = [*SIZES, *cut(2), "--dist.reduce", "exact", "--train.micro_batch", 2, "--checkpoint.every_steps", 10]
        self.train("exact", *exact, ranks=2)
        for zero in range(4):
            name = f"exact{zero}"
            more = ["--train.recompute", "block"] if zero > 1 else ["--dist.overlap", "false"]
            self.train(name, *exact, "--dist.zero", zero, *more, ranks=4)
            self.assert_same_bits("exact", name)
        shutil.rmtree(os.path.join(self.run_folder("exact3"), "checkpoints/step-00000020"))
        self.train("exact3", *exact, "--dist.zero", 1, ranks=2)
        self.assert_same_bits("exact", "exact3")

    def goes_on(self, source, name, step, size, ranks, *settings):
        """Continues a copy of a run by a step that computes nothing, so that what is saved is what was loaded."""
        shutil.copytree(self.run_folder(source), self.run_folder(name))
        self.train(name, *SIZES, *cut(size, *settings), "--train.steps", step, "--train.skip_batches", step, ranks=ranks)

    def test_the_last_batch_of_a_validation_may_be_smaller(self):
        """Then two data groups exchange different numbers of rows, which is no disagreement."""
        for batch in 5, 6, 7:
            self.train(f"last-{batch}", *SIZES, *cut(2), "--train.steps", 3, "--train.eval_every", 1, "--train.global_batch", 2 * batch,
                       "--train.micro_batch", batch, ranks=4)

    def test_the_first_lines_say_it(self):
        shown = self.train("lines", *SIZES, *cut(2), "--train.steps", 1, "--log.progress", "plain", ranks=4).stdout
        self.assertRegex(shown, r"batch +12 = 6 micro-batch x 1 accumulation x 2 groups of 2 ranks;")
        self.assertRegex(shown, r"ranks +4 ranks; 2 cut each layer; ZeRO stage 0; ring sums")
        shown = self.train("far", *SIZES, *cut(4), "--train.steps", 1, "--dist.node_size", 2, "--log.progress", "plain", ranks=4).stdout
        self.assertRegex(shown, r"ranks +4 ranks, 2 on each node; 4 cut each layer, across nodes, which is slow;")
        shown = self.train("sharded", *SIZES, *cut(2), "--train.steps", 1, "--dist.zero", 3, "--log.progress", "plain", ranks=4).stdout
        self.assertRegex(shown, r"ranks +4 ranks; 2 cut each layer; ZeRO stage 3 over all ranks, cut weights over 2 ranks; ring sums")

    def test_a_run_goes_on_with_any_tensor_size(self):
        self.train("saved", *SIZES, *cut(2, "--dist.zero", 3), "--train.steps", 5, ranks=4)
        saved = self.tensors("saved")
        for size, ranks in (4, 4), (1, 4), (1, 1), (1, 3):
            with self.subTest(size=size, ranks=ranks):
                other, back = f"{size}-{ranks}", f"{size}-{ranks}-back"
                self.goes_on("saved", other, 6, size, ranks)
                self.assertEqual(self.tensors(other), saved)
                self.goes_on(other, back, 7, 2, 4, "--dist.zero", 3)
                self.assertEqual(self.tensors(back), saved)

    def test_weights_come_from_hugging_face_and_go_back(self):
        self.train("theirs", *LLAMA, *cut(4), "--train.steps", 3, ranks=4)
        folder, again = self.path("theirs"), self.path("again")
        self.check(run("export", self.run_folder("theirs"), "--output", folder))
        self.check(run("train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", "ours", *QUICK,
                       "--checkpoint.init_from", folder, *cut(2), "--train.steps", 1, "--train.skip_batches", 1, ranks=2))
        self.check(run("export", self.run_folder("ours"), "--output", again))
        with open(os.path.join(folder, "model.safetensors"), "rb") as one, \
                open(os.path.join(again, "model.safetensors"), "rb") as two:
            self.assertEqual(one.read(), two.read())

    def test_ranks_that_cut_a_model_write_and_evaluate_as_one(self):
        self.train("writer", *LLAMA, *cut(2, "--log.sample_every", 1), ranks=2)
        folder = self.run_folder("writer")
        generate = ["generate", folder, "--prompt", "the", "--tokens", 40, "--temperature", 0, "--samples", 3, "--batch", 2,
                    "--json"]
        evaluate = ["eval", folder, "--batch", 7, "--context", 15, "--json"]
        def shown(*words, **how):
            return json.loads(self.check(run(*words, **how)).stdout)
        texts, figures = shown(*generate)["samples"], shown(*evaluate)
        self.assertEqual([sample["tokens"] for sample in texts], [40] * 3)
        for ranks in 2, 4:
            self.assertEqual(shown(*generate, ranks=ranks)["samples"], texts)
            cut_figures = shown(*evaluate, "--tensor", 2, ranks=ranks)
            self.assertAlmostEqual(cut_figures.pop("val_loss"), figures["val_loss"], delta=1e-5)
            self.assertEqual(cut_figures["targets"], figures["targets"])

    def test_what_cannot_be_cut_is_refused(self):
        cases = [(4, [*cut(3)], "dist.tensor = 3 does not divide the 4 ranks; the nearest that works: 2 or 4"),
                 (1, [*cut(2)], "dist.tensor = 2 does not divide the 1 rank; the nearest that works: 1"),
                 (4, [*cut(4), "--model.heads", 2], "dist.tensor = 4 does not divide model.heads = 2; the nearest that works: 2"),
                 (4, [*LLAMA, *cut(4), "--model.kv_heads", 2],
                  "dist.tensor = 4 does not divide model.kv_heads = 2; the nearest that works: 2"),
                 (4, [*cut(4), "--model.ffn_width", 18], "does not divide model.ffn_width = 18; the nearest that works: 2"),
                 (2, [*cut(2), "--model.context", 15, "--train.micro_batch", 1, "--train.global_batch", 2],
                  r"does not divide the 15 rows of a micro-batch \(1 x 15\); the nearest that works: 1"),
                 (4, [*cut(2), "--train.global_batch", 9],
                  "not divisible by ranks / dist.tensor = 4 / 2 = 2; the nearest that are: 8 and 10"),
                 (2, [*cut(2), "--model.kind", "resnet"], "cuts gpt and llama, and model.kind = resnet; use dist.tensor = 1")]
        for ranks, settings, message in cases:
            with self.subTest(message):
                result = self.train("refused", *SIZES, *settings, ranks=ranks, code=CONFIG)
                self.assert_one_line(result, message)
        self.train("whole", *SIZES, "--train.steps", 1)
        self.train("images", "--model.kind", "mlp", "--train.steps", 1, data=self.images)
        for words, message in [(["eval", self.run_folder("whole"), "--tensor", 2], "--tensor 2 does not divide the 3 ranks"),
                               (["eval", self.run_folder("whole"), "--tensor", 3], "3 ranks cannot divide model.heads = 4"),
                               (["eval", self.run_folder("images"), "--tensor", 3], "ranks cannot cut model.kind = mlp, only gpt and llama"),
                               (["generate", self.run_folder("whole")], "and 3 cannot divide model.heads = 4")]:
            self.assert_one_line(self.check(run(*words, ranks=3), CONFIG), message)
        result = self.check(run("generate", self.path("nothing"), ranks=2), DATA)
        self.assert_one_line(result, "no checkpoint here")
        self.assertFalse(os.path.exists(self.run_folder("refused")))


if __name__ == "__main__":
    tandem_program.main()
