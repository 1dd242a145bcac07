"""What a run of `tandem train` used, for programs that repeat it in PyTorch: the weights in a checkpoint, and each step's tokens.
"""
import os
import sys

import h5py
import numpy as np

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data"))
from packing_reference import planned_pool
from sample_order import pools, sample, window_start, windows

IGNORE = -1  # no target


def weights_in(folder, step):
    """By name of the reference's parameters, some of which are stacks of several tensors."""
    with h5py.File(os.path.join(folder, f"checkpoints/step-{step:08d}/rank-0000.h5")) as file:
        weights = {name: data[()].astype(np.float64) for name, data in file["param"].items()}
    for stack, pieces in [("attn.qkv.", ["attn.q.", "attn.k.", "attn.v."]), ("mlp.gate_up.", ["mlp.gate.", "mlp.up."])]:
        for first in [name for name in weights if pieces[0] in name]:
            rows = [weights.pop(first.replace(pieces[0], piece)) for piece in pieces]
            weights[first.replace(pieces[0], stack)] = np.concatenate(rows)
    return weights


class TokenBatches:
    """The global batch of each step of a run on text."""

    def __init__(self, dataset, seed, batch, context):
        with h5py.File(dataset) as file:
            self.tokens, self.vocab = file["train/tokens"][()].astype(np.int64), int(file.attrs["vocab_size"][0])
        self.seed, self.batch, self.context = seed, batch, context

    def window(self, epoch, index):
        start = window_start(self.seed, epoch, index, self.context, len(self.tokens))
        return self.tokens[start:start + self.context + 1]

    def at(self, step):
        """(inputs, targets)"""
        size = windows(self.context, len(self.tokens))
        rows = np.stack([self.window(*sample(self.seed, step * self.batch + i, size)) for i in range(self.batch)])
        return rows[:, :-1], rows[:, 1:]


class DocumentBatches(TokenBatches):
    """With data.windows = documents, and perhaps a loss mask."""

    def __init__(self, dataset, seed, batch, context):
        super().__init__(dataset, seed, batch, context)
        with h5py.File(dataset) as file:
            starts = [int(start) for start in file["train/starts"][()]]
            is_masked = "loss" in file["train"]
            self.targets = np.where(file["train/loss"][()], self.tokens, IGNORE) if is_masked else self.tokens
        self.plan = []
        for pool in pools(seed, len(starts) - 1):
            self.plan += planned_pool([(starts[n + 1] - starts[n], starts[n]) for n in pool], context + 1, not is_masked)

    def at(self, step):
        """(inputs, targets, positions)"""
        shape = self.batch, self.context + 1
        tokens, targets, positions = np.zeros(shape, np.int64), np.full(shape, IGNORE), np.zeros(shape, np.int64)
        for row in range(self.batch):
            place = 0
            for length, start in self.plan[sample(self.seed, step * self.batch + row, len(self.plan))[1]]:
                piece = self.tokens[start:start + length]
                tokens[row, place:place + length], positions[row, place:place + length] = piece, np.arange(length)
                targets[row, place:place + length - 1] = self.targets[start + 1:start + length]
                place += length
        return tokens[:, :-1], targets[:, :-1], positions[:, :-1]
