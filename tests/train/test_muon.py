#!/usr/bin/env python3
"""Runs with Muon (optim.kind = muon).

    test_muon.py PATH_TO_TANDEM [unittest arguments]
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program"))
import tandem_program  # noqa: E402
from tandem_program import CONFIG, Workspace, losses  # noqa: E402

MUON = ["--optim.kind", "muon"]
EXACT = [*MUON, "--dist.reduce", "exact", "--train.micro_batch", "1"]  # 12 samples a step: on 4 ranks 3 micro-steps
CONSTANT = ["--optim.schedule", "constant", "--train.eval_every", "10"]


class Muon(Workspace):
    def test_ranks_and_stages_change_no_bit(self):
        self.train("alone", *EXACT)
        for ranks, zero in [(2, 0), (2, 3), (3, 1), (4, 2)]:
            self.train(f"on-{ranks}-{zero}", *EXACT, "--dist.zero", zero, ranks=ranks)
            self.assert_same_bits("alone", f"on-{ranks}-{zero}")
        self.train("adamw", *EXACT[2:])
        self.assertNotEqual(losses(self.run_folder("alone")), losses(self.run_folder("adamw")))

    def test_a_run_goes_on_with_other_ranks_and_stages(self):
        constant = [*EXACT, *CONSTANT]
        self.train("whole", *constant)
        self.train("parts", *constant, "--train.steps", "10", "--dist.zero", 1, ranks=2)
        self.train("parts", *constant, "--dist.zero", 3, ranks=3)
        self.assert_same_bits("whole", "parts")

    def test_with_other_features(self):
        for kind in "gpt", "llama":
            self.train(f"plain-{kind}", *MUON, "--model.kind", kind)
            self.train(f"recomputed-{kind}", *MUON, "--model.kind", kind, "--train.recompute", "block")
            self.assert_same_bits(f"plain-{kind}", f"recomputed-{kind}")
        for setting, value in [("train.precision", "bf16"), ("model.freeze", "blocks.0.attn.*,blocks.1.*"), ("data.windows", "documents")]:
            settings = [*EXACT, f"--{setting}", value]
            self.train(setting, *settings)
            self.train(f"sharded-{setting}", *settings, "--dist.zero", 2, ranks=3)
            self.assert_same_bits(setting, f"sharded-{setting}")
        eight_bits = [*MUON, "--dist.wire_dtype", "int8", "--dist.gather_dtype", "int8", "--dist.zero", 2, *CONSTANT]
        self.train("eight", *eight_bits, ranks=3)
        self.train("eight-parts", *eight_bits, "--train.steps", 10, ranks=3)
        self.train("eight-parts", *eight_bits, ranks=3)
        self.assert_same_bits("eight", "eight-parts")

    def test_histograms_leave_out_overwritten_gradients(self):
        self.train("shown", *MUON, "--train.steps", "2", "--log.histograms", "true")
        shown = tandem_program.events(self.run_folder("shown"))
        for tag in b"weights/blocks.0.attn.proj.weight", b"gradients/wte":
            self.assertIn(tag, shown)
        self.assertNotIn(b"gradients/blocks.0.attn.proj.weight", shown)

    def test_what_is_refused(self):
        for settings, ranks, message in [
                (["--model.kind", "mlp"], 1, "model.kind = mlp; use gpt or llama"),
                (["--model.kind", "resnet"], 1, "model.kind = resnet; use gpt or llama"),
                (["--dist.tensor", "2"], 2, "dist.tensor = 2; use dist.tensor = 1"),
                (["--dist.islands", "2", "--dist.sync_every", "5"], 2, "dist.islands = 2; use dist.islands = 1"),
                (["--train.offload", "optimizer"], 1, "train.offload = optimizer; use train.offload = none"),
                (["--train.offload", "both", "--train.recompute", "block"], 1, "train.offload = both; use train.offload = none")]:
            with self.subTest(message):
                data = self.images if settings[0] == "--model.kind" else None
                refused = self.train("refused", *MUON, *settings, ranks=ranks, code=CONFIG, **({"data": data} if data else {}))
                self.assert_one_line(refused, "optim.kind = muon is not possible with " + message)

    def test_another_optimizer_is_refused_and_another_momentum_is_listed(self):
        self.train("changed", *MUON, "--train.steps", "5")
        refused = self.train("changed", code=CONFIG)
        self.assertIn("was optim.kind = muon, now adamw", refused.stderr)
        shown = self.train("changed", *MUON, "--optim.momentum", "0.9").stdout
        self.assertRegex(shown, r"changed +optim\.momentum 0\.95 -> 0\.9\n")


if __name__ == "__main__":
    tandem_program.main()
