#!/usr/bin/env python3
"""Ten steps of runs with Muon beside torch.optim.Muon, which gets the same values, momentum and gradients.

    check_muon.py PATH_TO_TANDEM [unittest arguments]

Part of tests/nightly.sh, because it needs a recent PyTorch. A checkpoint of each step has the values and the momentum; two
momenta tell the gradient. Both compute in bf16 and round at the same places. Small singular values of a matrix, and the roundings in
their directions, grow by up to 3.4445^5 = 485, so what few elements are rounded otherwise is seen: sums have another order, and the
gradient that the momenta tell has an error of 1e-7 / (1 - momentum). tests/parity has whole runs in f32.

Exit codes: 0 all agree, 1 something differs or PyTorch cannot be installed, 77 it is missing.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(HERE, "..", "program"))

import packages

packages.require("check of Muon", "torch", "h5py")

import h5py
import torch

import tandem_program
from tandem_program import Workspace

STEPS, LR, MU, DECAY = 11, 0.01, 0.9, 0.3
SETTINGS = ["--train.precision", "bf16", "--train.steps", STEPS, "--checkpoint.every_steps", 1, "--checkpoint.keep", STEPS,
            "--optim.kind", "muon", "--optim.lr", LR, "--optim.schedule", "constant", "--optim.warmup_steps", 0,
            "--optim.momentum", MU, "--optim.weight_decay", DECAY, "--optim.clip_norm", 1]
CLOSE = 0.02  # of an update's norm


class Muon(Workspace):
    def state(self, name, step):
        """(value, momentum) of each matrix after a step."""
        with h5py.File(os.path.join(self.run_folder(name), f"checkpoints/step-{step:08d}/rank-0000.h5")) as file:
            def matrix(data):
                return torch.from_numpy(data[()])
            return {piece: (matrix(file["param"][piece]), matrix(data)) for piece, data in file["optim/momentum"].items()}

    @staticmethod
    def by_torch(value, momentum, gradient):
        made = torch.nn.Parameter(value.clone())
        made.grad = gradient
        muon = torch.optim.Muon([made], lr=LR, momentum=MU, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
        muon.state[made]["momentum_buffer"] = momentum.clone()
        muon.step()
        return made.detach()

    def test_updates(self):
        for kind in "gpt", "llama":
            self.train(kind, *SETTINGS, "--model.kind", kind)
            before, apart = self.state(kind, 1), []
            self.assertIn("blocks.0.attn.q.weight", before)
            for step in range(2, STEPS + 1):
                after = self.state(kind, step)
                for name, (value, momentum) in before.items():
                    moved, kept = after[name]
                    gradient = (kept.double() - MU * momentum.double()) / (1 - MU)
                    theirs = self.by_torch(value, momentum, gradient.float())
                    apart.append(((moved - theirs).norm() / (theirs - value).norm()).item())
                before = after
            print(f"{kind}: {len(apart)} updates are at most {max(apart):.4f} of their norm from PyTorch's")
            self.assertLess(max(apart), CLOSE)


if __name__ == "__main__":
    tandem_program.main()
