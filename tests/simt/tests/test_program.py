#!/usr/bin/env python3
"""Trains with the `tandem` program on the emulated GPU, with NCCL on 1 to 4 ranks, and compares with the CPU.

    test_program.py PATH_TO_TANDEM [unittest arguments]
"""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "program"))
import tandem_program
from tandem_program import CONFIG, Workspace, losses, metrics, run

CUDA = ["--run.device", "cuda", "--dist.backend", "nccl"]
QUICK = ["--train.steps", "4", "--optim.warmup_steps", "0"]
SMALL = ["--model.layers", "1", "--model.width", "16", "--model.context", "8"]
MODELS = {"gpt": ["--model.kind", "gpt", *SMALL, "--model.dropout", "0.1"],
          "llama": ["--model.kind", "llama", *SMALL, "--model.kv_heads", "1"],
          "resnet": ["--model.kind", "resnet", "--model.depth", "8", "--optim.kind", "sgd", "--optim.lr", "0.02",
                     "--optim.min_lr", "0.02"]}
# Rounding changes a bf16 number by up to 2^-8 of itself, an fp16 number by 2^-11. About thirty roundings, of either sign,
# lie between an input and a target's loss. In the mean over a batch they cancel further, which leaves room for the errors
# that four steps of training add.
BANDS = {"f32": 1e-4, "bf16": 30 ** 0.5 * 2 ** -8, "fp16": 30 ** 0.5 * 2 ** -11}


class Emulated(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.make_digits()

    def curve(self, name, model, *settings, ranks=None):
        self.train(name, *QUICK, *MODELS[model], *settings, ranks=ranks,
                   data=self.digits if model == "resnet" else self.text)
        return losses(self.run_folder(name))

    def test_follows_the_cpu_on_1_to_4_ranks(self):
        for model in MODELS:
            for ranks in [1, 2, 3, 4]:
                cpu = self.curve(f"{model}-cpu-{ranks}", model, "--run.device", "cpu", ranks=ranks)
                gpu = self.curve(f"{model}-gpu-{ranks}", model, *CUDA, ranks=ranks)
                self.assert_curves_agree(cpu, gpu, BANDS["f32"])

    def test_mixed_precision_follows_f32(self):
        for model in MODELS:
            cpu = self.curve(f"{model}-cpu", model, "--run.device", "cpu", ranks=2)
            for precision in ["bf16", "fp16"]:
                for device in [["--run.device", "cpu"], CUDA]:
                    name = f"{model}-{precision}-{device[1]}"
                    curve = self.curve(name, model, *device, "--train.precision", precision, ranks=2)
                    self.assert_curves_agree(cpu, curve, BANDS[precision])

    def test_recomputation_and_staging(self):
        for settings in [["--train.recompute", "block"], ["--dist.bucket_mb", "0.002", "--dist.overlap", "false"]]:
            kept = self.curve("kept", "gpt", *CUDA, ranks=2)
            again = self.curve("again" + settings[0], "gpt", *CUDA, *settings, ranks=2)
            self.assertEqual(kept, again)
        staged = self.curve("staged", "gpt", "--run.device", "cuda", "--dist.backend", "mpi", ranks=2)
        self.assert_curves_agree(kept, staged, BANDS["f32"])

    def test_exact_sums_are_the_same_for_all_ranks_stages_and_backends(self):
        exact = ["--dist.reduce", "exact", "--train.micro_batch", "1", "--train.steps", "3"]
        staged = ["--run.device", "cuda", "--dist.backend", "mpi"]
        for model, cases in [("gpt", [(2, 3, CUDA), (3, 1, staged), (4, 2, [*CUDA, "--dist.node_size", "2"])]),
                             ("resnet", [(2, 2, CUDA), (3, 3, staged)])]:
            self.curve(f"exact-{model}", model, *CUDA, *exact)
            for ranks, zero, settings in cases:
                name = f"exact-{model}-{ranks}"
                self.curve(name, model, *exact, *settings, "--dist.zero", zero, ranks=ranks)
                self.assert_same_bits(f"exact-{model}", name)

    def test_a_run_goes_on_where_it_stopped(self):
        fp16 = ["--train.precision", "fp16"]
        self.curve("parts", "llama", *CUDA, *fp16, "--train.steps", "2", "--optim.schedule", "constant", ranks=2)
        parts = self.curve("parts", "llama", *CUDA, *fp16, "--optim.schedule", "constant", ranks=2)
        whole = self.curve("constant", "llama", *CUDA, *fp16, "--optim.schedule", "constant", ranks=2)
        self.assertEqual(whole, parts)
        self.assertEqual([line["loss_scale"] for line in metrics(self.run_folder("parts")) if "loss" in line], [65536] * 4)

    def test_a_run_goes_on_on_the_other_device(self):
        """A GPU stores more rows than there are tokens."""
        constant = ["--optim.schedule", "constant", "--run.device"]
        whole = self.curve("stays", "gpt", *constant, "cpu")
        for name, first, ranks, second in [("to-cpu", "cuda", 2, "cpu"), ("to-gpu", "cpu", 3, "cuda")]:
            self.curve(name, "gpt", "--train.steps", "2", "--dist.zero", "3", *constant, first, ranks=ranks)
            self.assert_curves_agree(whole, self.curve(name, "gpt", *constant, second), BANDS["f32"])
            shapes = {tensor: shape for tensor, (shape, _) in self.tensors(name).items()}
            self.assertEqual(shapes, {tensor: shape for tensor, (shape, _) in self.tensors("stays").items()})
        # So hot that all tokens are equally likely; one that is not in the vocabulary has no text.
        hot = self.check(run("generate", self.run_folder("to-cpu"), "--device", "cuda", "--temperature", "1000",
                             "--tokens", "400")).stdout
        with open(self.text_file) as text:
            self.assertLessEqual(set(hot), set(text.read()))

    def evaluated(self, name, device, ranks=None):
        return json.loads(self.check(run("eval", self.run_folder(name), "--device", device, "--json", ranks=ranks)).stdout)["val_loss"]

    def test_eval_and_generate_follow_the_cpu(self):
        likeliest = ["--temperature", "0", "--tokens", "12", "--samples", "3", "--batch", "2"]
        for model in ["gpt", "llama"]:
            for precision in BANDS:
                name = f"{model}-{precision}-shown"
                self.curve(name, model, *CUDA, "--train.precision", precision)
                cpu, cuda = self.evaluated(name, "cpu"), self.evaluated(name, "cuda")
                self.assertAlmostEqual(cpu, cuda, delta=BANDS[precision] * cpu)
                self.assertEqual(cuda, self.evaluated(name, "cuda", ranks=2))  # which share the GPU of their host
                texts = {device: self.check(run("generate", self.run_folder(name), *likeliest, "--device", device)).stdout
                         for device in ["cpu", "cuda"]}
                if precision == "f32":
                    self.assertEqual(texts["cpu"], texts["cuda"])
                self.assertEqual(*texts["cuda"].split("\n---------------\n")[:2])

    def test_products_follow_a_table(self):
        model = [*QUICK, *MODELS["gpt"], *CUDA, "--data.path", self.text]
        path = self.path("plans.txt")
        self.check(run("bench", "gemm", *model, "--ranks", "2", "--output", path))
        with open(path) as file:
            *head, end = file.read().split("\n")
        def write(number):
            """The same table, but each fused product takes the algorithm with this number (the fifth of its eight words)."""
            rows = [line[:-64] + f"{number:016x}" + line[-48:] if " fused " in line else line for line in head]
            with open(path, "w") as file:
                file.write("\n".join([*rows, end]))
        self.assertGreater(sum(" fused " in line for line in head), 10)
        plans = ["--run.gemm_plans", path, "--optim.schedule", "constant"]
        write(1)
        first = self.curve("planned", "gpt", *CUDA, *plans, ranks=2)
        self.curve("planned-parts", "gpt", *CUDA, *plans, "--train.steps", "2", ranks=2)
        write(2)
        self.assertNotEqual(first, self.curve("other", "gpt", *CUDA, *plans, ranks=2))
        self.assertEqual(first, self.curve("planned-parts", "gpt", *CUDA, *plans, ranks=2))  # by its copy
        head[2] = "gpu NVIDIA A100"
        write(1)
        for ranks in [None, 2]:
            result = self.train("elsewhere", *QUICK, *MODELS["gpt"], *CUDA, *plans, ranks=ranks, code=CONFIG)
            self.assert_one_line(result, "elsewhere/gemm_plans.txt: plans for NVIDIA A100, and this is .*tandem bench gemm")
        self.assert_one_line(self.check(run("bench", "gemm", *model), CONFIG), "with --output FILE")
        self.assert_one_line(self.check(run("bench", "gemm", *model, "--output", path, "--run.device", "cpu", "--dist.backend", "mpi"),
                                        CONFIG), "on a GPU")

    def test_more_ranks_than_gpus(self):
        environment = dict(tandem_program.MPI_ENV, TANDEM_SIMT_DEVICES="1")
        saved, tandem_program.MPI_ENV = tandem_program.MPI_ENV, environment
        try:
            result = self.train("crowded", *QUICK, *SMALL, *CUDA, ranks=2, code=CONFIG)
            self.assert_one_line(result, "1 GPU for 2 ranks.*dist.backend = mpi")
            self.train("shared", *QUICK, *SMALL, "--run.device", "cuda", "--dist.backend", "mpi", ranks=2)
            environment["TANDEM_SIMT_DEVICES"] = "0"
            result = self.train("none", *QUICK, *SMALL, "--run.device", "cuda", code=CONFIG)
            self.assert_one_line(result, "finds no GPU here: .*run.device = cpu")
            result = self.train("auto", *QUICK, *SMALL, "--run.device", "auto")
            self.assertRegex(result.stdout, r"machine +CPU \(no GPU found\), 1 thread a rank")
        finally:
            tandem_program.MPI_ENV = saved


if __name__ == "__main__":
    tandem_program.main()
