#!/usr/bin/env python3
"""Trains with the `tandem` program on the emulated GPU, with NCCL on 1 to 4 ranks, and compares with the CPU.

    test_program.py PATH_TO_TANDEM [unittest arguments]
"""
import json
import os
import re
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "program"))
import tandem_program
from tandem_program import CONFIG, DATA, Workspace, losses, metrics, run

CUDA = ["--run.device", "cuda", "--dist.backend", "nccl"]
QUICK = ["--train.steps", "4", "--optim.warmup_steps", "0"]
SMALL = ["--model.layers", "1", "--model.width", "16", "--model.context", "8"]
MODELS = {"gpt": ["--model.kind", "gpt", *SMALL, "--model.dropout", "0.1"],
          "llama": ["--model.kind", "llama", *SMALL, "--model.kv_heads", "1"],
          "qwen": ["--model.kind", "llama", *SMALL, "--model.kv_heads", "2", "--model.head_width", "6", "--model.qk_norm", "true"],
          "biased": ["--model.kind", "llama", *SMALL, "--model.attention_bias", "true", "--model.sliding_window", "5"],
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
        cls.make_stories(80)

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

    def test_whole_documents(self):
        for model in ["gpt", "llama"]:
            def trained(name, *settings, ranks=None, model=model):
                return self.curve(f"{model}-documents-{name}", model, "--data.windows", "documents", "--data.path", self.stories,
                                  *settings, ranks=ranks)
            cpu = trained("cpu", "--run.device", "cpu")
            for name, settings in [("gpu", []), ("recomputed", ["--train.recompute", "block"])]:
                self.assert_curves_agree(cpu, trained(name, *CUDA, *settings), BANDS["f32"])
            if model == "gpt":  # the other has one key-value head, which cannot be cut
                self.assert_curves_agree(cpu, trained("cut", *CUDA, "--dist.tensor", "2", ranks=2), BANDS["f32"])

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

    def test_islands_that_send_eight_bits_are_alike_where_they_meet(self):
        """Otherwise a run would not equal one in which all islands have what the first had saved."""
        for ranks, settings in [(2, ["--train.precision", "fp16"]), (4, ["--dist.zero", "2", "--dist.gather_dtype", "int8"])]:
            name, again = f"islands-{ranks}", f"islands-again-{ranks}"
            def train(name, ranks=ranks, settings=settings):
                self.curve(name, "gpt", *CUDA, "--dist.islands", "2", "--dist.sync_every", "2", "--dist.sync_delay", "1", "--dist.wire_dtype",
                           "int8", *settings, "--train.steps", "8", "--train.eval_every", "8", "--checkpoint.every_steps", "4", ranks=ranks)
            train(name)
            self.assertEqual([line["step"] for line in metrics(self.run_folder(name)) if line.get("drift")], [3, 4, 7, 8])
            shutil.copytree(self.run_folder(name), self.run_folder(again))
            shutil.rmtree(os.path.join(self.run_folder(again), "checkpoints", "step-00000008"))
            train(again)
            self.assert_same_bits(name, again)

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

    def evaluated(self, name, device, *more, ranks=None):
        return json.loads(self.check(run("eval", self.run_folder(name), "--device", device, "--json", *more, ranks=ranks)).stdout)["val_loss"]

    def test_eval_and_generate_follow_the_cpu(self):
        likeliest = ["--temperature", "0", "--tokens", "12", "--samples", "3", "--batch", "2"]
        for model in ["gpt", "llama", "qwen", "biased"]:
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

    def choices(self, name):
        with open(os.path.join(self.run_folder(name), "choices.json")) as file:
            return json.load(file)

    def algorithms(self, name):
        """Those of all products that are computed in one call (the fifth of an algorithm's eight words)."""
        [choices] = self.choices(name)
        return [choice["algorithm"][4] for _, choice in choices["products"] if choice["is_fused"]]

    def test_choices_are_measured_and_kept(self):
        constant = [*QUICK, *MODELS["gpt"], *CUDA, "--optim.schedule", "constant"]
        shown = self.train("chosen", *constant, ranks=2).stdout
        self.assertRegex(shown, r"choices +\d\d measured in .*; kept in .*runs/chosen/choices.json")
        self.assertGreater(len(self.algorithms("chosen")), 10)
        self.assertEqual(set(self.algorithms("chosen")), {1})
        kept = self.choices("chosen")
        self.train("chosen-parts", *constant, "--train.steps", "2", ranks=2)
        self.assertNotIn("choices ", self.train("chosen-parts", *constant, ranks=2).stdout)
        self.assertEqual(losses(self.run_folder("chosen")), losses(self.run_folder("chosen-parts")))
        self.assertEqual(self.tensors("chosen"), self.tensors("chosen-parts"))
        # A file of another run decides for a new run, and not for one that has chosen.
        file = self.path("choices.json")
        for _, choice in kept[0]["products"]:
            choice["algorithm"][4] = 2
        with open(file, "w") as stream:
            json.dump(kept, stream)
        shown = self.train("other", *constant, "--train.steps", "2", "--run.choices", file, ranks=2).stdout
        self.assertNotIn("choices ", shown)
        self.assertEqual(set(self.algorithms("other")), {2})
        os.remove(file)
        self.train("other", *constant, "--run.choices", file, ranks=2)
        self.assertNotEqual(losses(self.run_folder("chosen")), losses(self.run_folder("other")))
        # `eval` follows the run whose checkpoint it reads.
        batch = ["--batch", "6"]  # as a rank has
        follows = self.evaluated("other", "cuda", *batch)
        os.remove(os.path.join(self.run_folder("other"), "choices.json"))
        self.assertNotEqual(follows, self.evaluated("other", "cuda", *batch))

    def test_choices_are_for_a_gpu_and_a_library(self):
        model = [*QUICK, *MODELS["gpt"], *CUDA]
        self.train("here", *model, "--train.steps", "2")
        [here] = self.choices("here")
        path = os.path.join(self.run_folder("here"), "choices.json")
        with open(path, "w") as file:
            json.dump([dict(here, gpu="NVIDIA A100")], file)
        self.assertIn(" measured in ", self.train("here", *model, "--train.steps", "3").stdout)
        self.assertEqual([choices["gpu"] for choices in self.choices("here")], ["NVIDIA A100", here["gpu"]])
        for wrong in ["[", "{}", json.dumps([dict(here, cublas_lt=1)]), json.dumps([here]).replace("f32", "f8")]:
            with open(path, "w") as file:
                file.write(wrong)
            result = self.train("here", *model, ranks=2, code=DATA)
            self.assert_one_line(result, "here/choices.json: no measured choices .*remove it")
        result = self.train("cpu", *QUICK, *SMALL, "--run.device", "cpu", "--run.choices", path, code=CONFIG)
        self.assert_one_line(result, "run.choices is for a GPU")

    def test_a_wrong_suggestion_is_left_out(self):
        for ranks in [1, 3]:
            name = f"wrong-{ranks}"
            def train(steps):
                return self.train(name, *QUICK, *MODELS["gpt"], *CUDA, "--train.steps", steps, ranks=ranks,
                                  environment={"TANDEM_SIMT_CUBLASLT": "timed-errs"})
            result = train(4)
            self.assertEqual(set(self.algorithms(name)), {2})
            warnings = re.findall("tandem: warning: rank 0: suggestion 2 of cuBLASLt gives another result.*", result.stderr)
            self.assertGreaterEqual(len(warnings), len(self.algorithms(name)))
            self.assertNotIn("rank 1: suggestion", result.stderr)
            self.assertNotIn("suggestion", train(6).stderr)  # nothing is measured again

    def test_attention_is_by_cudnn_where_it_is_faster_and_right(self):
        wide = [*QUICK, *MODELS["gpt"], *CUDA, "--model.width", "64", "--model.heads", "1", "--train.precision", "bf16"]
        def train(name, ranks, cudnn="", steps=4):
            return self.train(name, *wide, "--optim.schedule", "constant", "--train.steps", str(steps), ranks=ranks,
                              environment={"TANDEM_SIMT_CUDNN": cudnn} if cudnn else {})
        for ranks in [1, 3]:
            train(f"own-{ranks}", ranks)
            for cudnn in ["fast", "slow", "fast-errs"]:
                name = f"{cudnn}-{ranks}"
                said = train(name, ranks, cudnn, 2).stderr
                self.assertEqual(len(re.findall("tandem: warning: rank 0: cuDNN gives another result", said)), cudnn == "fast-errs")
                self.assertNotIn("choices ", train(name, ranks, cudnn).stdout)
                [choices] = self.choices(name)
                self.assertEqual([choice["by_library"] for choice in choices["libraries"].values()], [cudnn == "fast"])
                self.assertEqual(losses(self.run_folder(name)) == losses(self.run_folder(f"own-{ranks}")), cudnn != "fast")
        self.assertIn("take the place of the choice attention of bf16", train("fast-3", 3, steps=5).stderr)
        self.train("own-wide", *wide, "--kernels.attention", "own", environment={"TANDEM_SIMT_CUDNN": "fast"})
        self.assertEqual(self.choices("own-wide")[0]["libraries"], {})

    def test_more_ranks_than_gpus(self):
        environment = dict(tandem_program.MPI_ENV, TANDEM_SIMT_DEVICES="1")
        saved, tandem_program.MPI_ENV = tandem_program.MPI_ENV, environment
        try:
            result = self.train("crowded", *QUICK, *SMALL, *CUDA, ranks=2, code=CONFIG)
            self.assert_one_line(result, "ranks 0 and 1 both use GPU .*--dist.backend mpi")
            self.train("shared", *QUICK, *SMALL, "--run.device", "cuda", "--dist.backend", "mpi", ranks=2)
            environment["TANDEM_SIMT_DEVICES"] = "0"
            result = self.train("none", *QUICK, *SMALL, "--run.device", "cuda", code=CONFIG)
            self.assert_one_line(result, "finds no GPU here: .*run.device = cpu")
            result = self.train("auto", *QUICK, *SMALL, "--run.device", "auto")
            self.assertRegex(result.stdout, r"machine +CPU \(no GPU found\), 1 thread a rank")
        finally:
            tandem_program.MPI_ENV = saved

    def test_each_rank_sees_a_gpu_of_its_own(self):
        """As under srun --gpus-per-task=1."""
        program, tandem_program.TANDEM = tandem_program.TANDEM, self.path("one_gpu")
        with open(tandem_program.TANDEM, "w") as script:
            script.write(f'#!/bin/sh\nCUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK exec "{program}" "$@"\n')
        os.chmod(tandem_program.TANDEM, 0o755)
        try:
            alone = self.curve("sees-one", "gpt", *CUDA, ranks=2)
        finally:
            tandem_program.TANDEM = program
        self.assertEqual(alone, self.curve("sees-all", "gpt", *CUDA, ranks=2))

    def refused(self, code, pattern, ranks, **variables):
        result = self.train("refused", *QUICK, *SMALL, *CUDA, ranks=ranks, code=code, environment=variables)
        self.assert_one_line(result, pattern)

    def test_gpus_that_cannot_be_used(self):
        self.refused(CONFIG, "GPU 0 of host .*emulated GPU, is of generation sm_70, and .* from sm_80 on",
                     2, TANDEM_SIMT_CAPABILITY="70")
        self.refused(75, "cudaErrorSystemNotReady .*GPU 0 of host", 2, TANDEM_SIMT_DEVICES="not-ready")
        self.refused(71, "start of NCCL: .*out of memory", None, TANDEM_SIMT_MEMORY="1000000")


if __name__ == "__main__":
    tandem_program.main()
