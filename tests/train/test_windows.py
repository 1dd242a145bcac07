#!/usr/bin/env python3
"""Training and evaluation in windows of whole documents (data.windows = documents).

    test_windows.py PATH_TO_TANDEM [unittest arguments]
"""
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program"))
import tandem_program  # noqa: E402
from tandem_program import CONFIG, Workspace, losses, metrics, run  # noqa: E402

DOCUMENTS = ["--data.windows", "documents"]


class WholeDocuments(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.make_stories(600)

    def stories_run(self, name, *settings, **how):
        return self.train(name, *DOCUMENTS, "--train.eval_every", "10", "--optim.schedule", "constant", *settings,
                          data=self.stories, **how)

    # Sums are exact, so that nothing depends on the number of ranks but the samples that each one takes.
    def test_batches_do_not_depend_on_ranks_or_interruptions(self):
        exact = ["--dist.reduce", "exact", "--train.micro_batch", "1", "--train.eval_every", "1"]  # as where a run ends
        self.stories_run("whole", *exact)
        for ranks in [2, 3, 4]:
            self.stories_run(f"on-{ranks}", *exact, ranks=ranks)
            self.assert_same_bits("whole", f"on-{ranks}")
        for steps, ranks in [(1, 3), (10, 2), (13, None), (20, 4)]:
            self.stories_run("parts", *exact, "--train.steps", steps, ranks=ranks)
        self.assert_same_bits("whole", "parts")
        self.train("stream", *exact, data=self.stories)
        self.assertNotEqual(losses(self.run_folder("stream")), losses(self.run_folder("whole")))

    def test_with_other_features(self):
        for kind in ["gpt", "llama"]:
            def trained(name, *settings, ranks=None, kind=kind):
                self.stories_run(f"{kind}-{name}", "--model.kind", kind, *settings, ranks=ranks)
                return f"{kind}-{name}"
            plain = trained("plain")
            self.assert_same_bits(plain, trained("recomputed", "--train.recompute", "block"))
            self.assert_same_bits(plain, trained("offloaded", "--train.recompute", "block", "--train.offload", "both"))
            for other in [trained("sharded", "--dist.zero", "3", ranks=3), trained("cut", "--dist.tensor", "2", ranks=2)]:
                self.assert_curves_agree(losses(self.run_folder(plain)), losses(self.run_folder(other)))

    def test_islands_go_on_with_their_batches(self):
        islands = ["--dist.islands", "2", "--dist.sync_every", "5"]
        self.stories_run("islands", *islands, ranks=2)
        self.stories_run("islands-in-parts", *islands, "--train.steps", "10", ranks=2)
        self.stories_run("islands-in-parts", *islands, ranks=2)
        self.assert_same_bits("islands", "islands-in-parts")

    def test_figures(self):
        shown = self.stories_run("figures").stdout
        said = re.search(r"; an epoch is \d+ steps, (\S+) % padding, (\d+) cuts in documents$", shown, re.MULTILINE)
        self.assertTrue(said, shown)
        padding, cuts = float(said[1]), int(said[2])
        steps = [line for line in metrics(self.run_folder("figures")) if "loss" in line]
        with open(os.path.join(self.run_folder("figures"), "report.json")) as file:
            report = json.load(file)
        for place in [*steps, report]:
            self.assertAlmostEqual(100 * place["padding"], padding, delta=0.05 + 1e-9)
            self.assertEqual(place["documents_cut"], cuts)
        self.assertGreater(cuts, 0)
        self.assertLess(padding, 1)
        # A stream has neither.
        self.train("figures-of-a-stream", data=self.stories)
        self.assertNotIn("padding", metrics(self.run_folder("figures-of-a-stream"))[0])

    def test_evaluation(self):
        self.stories_run("evaluated")
        def val_loss(*settings, ranks=None):
            return json.loads(self.check(run("eval", self.run_folder("evaluated"), "--json", *settings, ranks=ranks)).stdout)
        logged = [line["val_loss"] for line in metrics(self.run_folder("evaluated")) if "val_loss" in line]
        own = val_loss()
        self.assertEqual(own["val_loss"], logged[-1])
        self.assertEqual(val_loss("--windows", "documents", ranks=2), own)
        stream = val_loss("--windows", "stream")
        self.assertNotEqual(stream["val_loss"], own["val_loss"])
        self.assertGreater(stream["targets"], own["targets"])  # the first tokens of documents are among them

    def test_what_is_refused(self):
        self.stories_run("fixed", "--train.steps", "5")
        refused = self.train("fixed", data=self.stories, code=CONFIG)
        self.assertIn("was data.windows = documents, now stream", refused.stderr)
        refused = self.stories_run("cudnn", "--kernels.attention", "cudnn", code=CONFIG)
        self.assertIn("kernels.attention = cudnn is not possible with data.windows = documents", refused.stderr)
        refused = self.train("images", *DOCUMENTS, "--model.kind", "resnet", data=self.images, code=CONFIG)
        self.assertIn("data.windows", refused.stderr)


if __name__ == "__main__":
    tandem_program.main()
