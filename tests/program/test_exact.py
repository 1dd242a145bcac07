#!/usr/bin/env python3
"""With dist.reduce = exact the number of ranks, the ZeRO stage, bucket sizes, overlap, nodes, threads and
restarts change no bit.
Also tests how many bytes each stage sends.

    test_exact.py PATH_TO_TANDEM [unittest arguments]
"""
import os
import shutil

import tandem_program
from tandem_program import Workspace, metrics

# Micro-batches of one sample: 12 on one rank, 6 on each of two ranks, 4 on each of three, 3 on each of four.
EXACT = ["--dist.reduce", "exact", "--train.micro_batch", "1", "--train.steps", "50", "--checkpoint.every_steps", "25",
         "--checkpoint.keep", "5"]
MODELS = {"gpt": ["--model.dropout", "0.1"],
          "mlp": ["--model.kind", "mlp"],
          "resnet": ["--model.kind", "resnet", "--model.depth", "8", "--optim.kind", "sgd", "--optim.lr", "0.02",
                     "--optim.min_lr", "0.02"]}
LATE = ["--dist.overlap", "false"]
TINY_BUCKETS, ONE_BUCKET = [["--dist.bucket_mb", size] for size in ["0.0009765625", "1000"]]
NODES = ["--dist.node_size", "2"]
THREADS = ["--run.threads", "3"]


class Exact(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.make_digits()

    def exact(self, name, model, *settings, ranks=None, zero=0):
        data = self.text if model == "gpt" else self.digits
        self.train(name, *EXACT, *MODELS[model], "--dist.zero", zero, *settings, ranks=ranks, data=data)

    def resumed(self, source, model, *settings, **how):
        """Runs the second half of `source` again, on other ranks, and compares the bits."""
        name = f"{source}-on-{how['ranks']}"
        shutil.copytree(self.run_folder(source), self.run_folder(name))
        shutil.rmtree(os.path.join(self.run_folder(name), "checkpoints/step-00000050"))
        self.exact(name, model, *settings, **how)
        self.assert_same_bits(source, name)
        sent = {line["step"]: line["wire_bytes"] for line in metrics(self.run_folder(name)) if "loss" in line}
        self.assertEqual(sent[26] > 0, how["ranks"] > 1)  # one rank sends nothing, so it cannot show a step that is run again
        self.assertEqual(sent[26], sent[27], "the exponents come from the checkpoint, so no step is run again")

    def compare(self, model, *cases):
        self.exact(model, model)
        for number, (ranks, zero, *settings) in enumerate(cases):
            name = f"{model}{number}"
            self.exact(name, model, *settings, ranks=ranks, zero=zero)
            self.assert_same_bits(model, name)

    def test_gpt(self):
        self.compare("gpt", (4, 0, *TINY_BUCKETS), (3, 1, *LATE, *TINY_BUCKETS), (2, 2, *ONE_BUCKET), (3, 3), (4, 3, *LATE),
                     (4, 2, *NODES), (4, 3, *NODES, "--dist.shard", "node"), (2, 1, "--train.recompute", "block"),
                     (1, 0, *THREADS), (2, 3, *THREADS))
        self.resumed("gpt", "gpt", ranks=3, zero=3)
        for ranks, zero in (1, 0), (2, 1), (4, 3):
            self.resumed("gpt3", "gpt", ranks=ranks, zero=zero)

    def test_mlp(self):
        self.compare("mlp", (3, 0, *LATE, *ONE_BUCKET), (4, 1), (2, 3, *TINY_BUCKETS), (1, 0, *THREADS))
        self.resumed("mlp1", "mlp", ranks=2)

    def test_resnet(self):
        self.compare("resnet", (2, 1, *LATE), (3, 2, *TINY_BUCKETS), (4, 3, *ONE_BUCKET), (1, 0, *THREADS))
        self.resumed("resnet2", "resnet", ranks=2, zero=0)

    def test_fp16_resumes_with_its_loss_scale(self):
        fp16 = ["--train.precision", "fp16"]
        self.exact("fp16", "gpt", *fp16)
        self.resumed("fp16", "gpt", *fp16, ranks=3, zero=2)


class WireBytes(Workspace):
    """What each of N ranks sends in a step. Gradients: (N-1)/N of their bytes whenever they are summed, once a step or once a
    micro-step, depending on the stage; twice that where all ranks get the sum. Values: (N-1)/N of their bytes whenever they
    are gathered.
    """

    @staticmethod
    def padded(sizes, ranks):
        """Elements of a bucket: parameters begin at multiples of 8, and each rank's shard is a multiple of 128."""
        elements = sum((size + 7) // 8 * 8 for size in sizes)
        unit = 128 * ranks
        return (elements + unit - 1) // unit * unit

    def expected(self, tensors, ranks, zero, micro_steps, bytes_of_gradient, bytes_of_value):
        blocks = {}
        for name, (shape, _) in tensors.items():
            if name.startswith("param/"):
                size = 1
                for extent in shape:
                    size *= extent
                place = name.split("/")[1].split(".")
                block = {"wte": "shared", "wpe": "embedding", "blocks": "block " + place[1 % len(place)], "ln_f": "head"}[place[0]]
                blocks.setdefault(block, []).append(size)
        shared = self.padded(blocks.pop("shared"), ranks)
        if zero < 3:
            gradients = self.padded(sum(blocks.values(), []), ranks)
            values = shared + gradients if zero > 0 else 0
        else:  # gathered block by block; the last block once for forward and backward
            each = [self.padded(sizes, ranks) for sizes in blocks.values()]
            gradients, last = sum(each), self.padded(blocks["head"], ranks)
            values = shared + micro_steps * (2 * gradients - last)
        sums = 2 * (shared + gradients) if zero == 0 else shared + (micro_steps if zero > 1 else 1) * gradients
        return (ranks - 1) * (sums * bytes_of_gradient + values * bytes_of_value) // ranks

    def test_every_stage_sends_what_its_formula_says(self):
        for ranks, zero, reduce, precision in [(3, 0, "ring", "f32"), (4, 0, "exact", "f32"), (2, 1, "ring", "f32"),
                                               (3, 1, "exact", "bf16"), (3, 2, "ring", "f32"), (2, 2, "exact", "f32"),
                                               (3, 3, "ring", "f32"), (4, 3, "ring", "bf16"), (2, 3, "exact", "f32")]:
            name = f"wire-{ranks}-{zero}-{reduce}-{precision}"
            self.train(name, "--train.steps", "3", "--dist.bucket_mb", "1000", "--dist.zero", zero, "--dist.reduce", reduce,
                       "--train.precision", precision, "--train.micro_batch", "1", "--train.eval_every", "2", ranks=ranks)
            sizes = (8 if reduce == "exact" else 4), (2 if precision == "bf16" else 4)
            expected = self.expected(self.tensors(name), ranks, zero, 12 // ranks, *sizes)
            sent = [line["wire_bytes"] for line in metrics(self.run_folder(name)) if "loss" in line]
            # A validation before the third step changes nothing. Exact sums find their exponents in the first step, which is therefore run twice.
            self.assertEqual(sent[1:], [expected] * 2, name)
            self.assertEqual(sent[0] == sent[1], reduce == "ring", name)


if __name__ == "__main__":
    tandem_program.main()
