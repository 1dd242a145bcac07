#!/usr/bin/env python3
"""Runs the `tandem` program as a user would: training on 1 to 4 ranks, resuming, evaluating, generating, inspecting.

    test_commands.py PATH_TO_TANDEM [unittest arguments]
"""
import glob
import json
import math
import os
import re
import shutil
import struct
import subprocess

import tandem_program
from tandem_program import ACROSS_RANKS, CONFIG, DATA, Workspace, events, losses, metrics, run


class Training(Workspace):
    def test_loss_falls_and_outputs_are_there(self):
        result = self.train("falls", "--train.eval_every", "10")
        curve = losses(self.run_folder("falls"))
        with open(self.text_file) as text:
            self.assertLess(curve[20], math.log(len(set(text.read()))))  # what a guess among all characters gives
        self.assertEqual(len(glob.glob(self.run_folder("falls") + "/events.out.tfevents.*")), 1)
        for name in ["config.cfg", "metrics.jsonl", "tokenizer.h5", "checkpoints/best/manifest.json",
                     "checkpoints/step-00000020/manifest.json", "checkpoints/step-00000020/rank-0000.h5"]:
            self.assertTrue(os.path.exists(os.path.join(self.run_folder("falls"), name)), name)
        line = metrics(self.run_folder("falls"))[0]
        self.assertEqual(set(line), {"step", "epoch", "tokens", "loss", "lr", "grad_norm", "step_ms", "tokens_per_s", "mfu",
                                     "wire_bytes", "exposed_comm_ms", "slowest", "peak_bytes", "wire", "memory", "own_ms",
                                     "elapsed_s", "time"})
        validations = [line for line in metrics(self.run_folder("falls")) if "val_loss" in line]
        self.assertEqual([line["step"] for line in validations], [10, 20])
        self.assertNotIn("step 10/20  loss", result.stdout)  # log.progress = none

    def test_curve_does_not_depend_on_the_number_of_ranks(self):
        for model in [["--model.dropout", "0.1"],
                      ["--model.kind", "llama", "--model.heads", "4", "--model.kv_heads", "2"]]:
            name = "ranks-" + model[1]
            self.train(name + "-1", *model)
            for ranks in [1, 2, 3, 4]:
                self.train(f"{name}-np{ranks}", *model, ranks=ranks)
                self.assert_curves_agree(losses(self.run_folder(name + "-1")), losses(self.run_folder(f"{name}-np{ranks}")))

    def test_resnet_curve_and_statistics_do_not_depend_on_ranks_at_a_fixed_micro_batch(self):
        settings = ["--model.kind", "resnet", "--model.depth", "8", "--train.micro_batch", "3", "--train.steps", "6",
                    "--optim.kind", "sgd", "--optim.lr", "0.02", "--optim.min_lr", "0.02", "--data.augment", "true",
                    "--train.recompute", "block"]
        reference = None
        for ranks in [1, 2, 4]:
            self.train(f"resnet{ranks}", *settings, ranks=ranks, data=self.images)
            lines = metrics(self.run_folder(f"resnet{ranks}"))
            figures = [line.get("loss", line.get("val_loss")) for line in lines]
            reference = reference or figures
            self.assertEqual(len(figures), 7)  # six steps and a validation, which reads the running statistics
            # The weights before the first step are the same, and losses of micro-batches are added in a fixed order.
            self.assertEqual(figures[0], reference[0])
            # An f32 sum of four ranks' gradients is off by 3 * 2^-24 of their magnitudes, which is 2e-6 of a sum ten times
            # smaller. With gradients of norm 2, a learning rate up to 0.02 and momentum 0.9, six such errors move the weights
            # by at most 6 * 0.02 / (1 - 0.9) * 2 * 2e-6 = 5e-6, and the loss by 2 * 5e-6.
            for one, other in zip(reference, figures):
                self.assertAlmostEqual(one, other, delta=1e-5)

    def test_accumulation_gives_the_same_curve(self):
        self.train("whole")
        self.train("parts", "--train.micro_batch", "3")
        self.assert_curves_agree(losses(self.run_folder("whole")), losses(self.run_folder("parts")))

    def test_recompute_changes_no_bit(self):
        for kind in ["gpt", "llama"]:
            self.train(kind + "-keep", "--model.kind", kind, "--model.dropout", "0.1")
            self.train(kind + "-again", "--model.kind", kind, "--model.dropout", "0.1", "--train.recompute", "block")
            self.assertEqual(losses(self.run_folder(kind + "-keep")), losses(self.run_folder(kind + "-again")))

    def test_overlap_and_bucket_size_change_no_bit_on_two_ranks(self):
        # With two ranks a sum has two terms, and a + b = b + a: the order of a ring cannot matter.
        self.train("bucket-large", "--dist.bucket_mb", "100", "--dist.overlap", "false", ranks=2)
        self.train("bucket-small", "--dist.bucket_mb", "0.01", ranks=2)
        self.assertEqual(losses(self.run_folder("bucket-large")), losses(self.run_folder("bucket-small")))

    def test_mixed_precision_follows_the_curve(self):
        # Rounding changes a bf16 number by up to 2^-8 of itself, an fp16 number by 2^-11. In two layers about sixty roundings,
        # of either sign, lie between an input and a target's loss. In the mean over a batch they cancel further, which
        # leaves room for the errors that twenty steps of training add.
        self.train("f32")
        for precision, unit in [("bf16", 2 ** -8), ("fp16", 2 ** -11)]:
            self.train(precision, "--train.precision", precision)
            self.assert_curves_agree(losses(self.run_folder("f32")), losses(self.run_folder(precision)),
                                     60 ** 0.5 * unit)
        line = metrics(self.run_folder("fp16"))[0]
        self.assertEqual((line["loss_scale"], line["skipped"]), (65536, 0))
        self.check(run("eval", "--checkpoint", self.run_folder("bf16")))
        self.check(run("generate", "--checkpoint", self.run_folder("bf16"), "--tokens", "3", "--prompt", "a"))

    def test_looking_at_a_model_changes_no_bit(self):
        """Text, pictures and histograms, on ranks that gather their weights and on ranks that have them, and after a skipped
        step."""
        shown = ["--log.sample_every", "1", "--log.histograms", "true"]
        for ranks, zero, more in [(1, 0, ["--model.vocab", "1000"]), (2, 1, ["--train.precision", "fp16"]), (2, 2, ["--dist.reduce", "exact"]),
                                  (3, 3, []), (2, 3, ["--model.kind", "mlp"]), (2, 0, ["--model.kind", "resnet", "--model.depth", "8"])]:
            with self.subTest(ranks=ranks, zero=zero, more=more):
                name = f"looks{ranks}{zero}{''.join(more)}".replace("-", "")
                data = self.images if more[:1] == ["--model.kind"] else self.text
                settings = ["--dist.zero", zero, "--train.steps", "4", "--train.eval_every", "1", "--train.skip_batches", "1",
                            *more]
                self.train(name, *settings, ranks=ranks, data=data)
                self.train(name + "-shown", *settings, *shown, ranks=ranks, data=data)
                self.assert_same_bits(name, name + "-shown")
                self.assert_gradients_are_shown(name + "-shown")

    def assert_gradients_are_shown(self, name):
        """The squares in a step's histograms of gradients (field 5 of TensorBoard's HistogramProto) add up to that of the norm."""
        squares = re.findall(rb"gradients/[\w.]+\x2a.{1,3}?\x09.{8}\x11.{8}\x19.{8}\x21.{8}\x29(.{8})",
                             events(self.run_folder(name)), re.DOTALL)
        norms = [line["grad_norm"] for line in metrics(self.run_folder(name)) if line.get("grad_norm")]
        wanted = sum(norm ** 2 for norm in norms)
        # Both are sums in f64 of fewer than 2^20 squares.
        self.assertAlmostEqual(sum(struct.unpack("<d", square)[0] for square in squares), wanted, delta=2**20 * 2**-53 * wanted)

    def test_bf16_on_the_wire_halves_the_bytes(self):
        self.train("wire-f32", ranks=2)
        self.train("wire-bf16", "--dist.wire_dtype", "bf16", ranks=2)
        one, other = metrics(self.run_folder("wire-f32"))[0], metrics(self.run_folder("wire-bf16"))[0]
        self.assertEqual(one["wire_bytes"], 2 * other["wire_bytes"])
        # Each rank rounds each gradient once, by up to 2^-8 of itself.
        self.assert_curves_agree(losses(self.run_folder("wire-f32")), losses(self.run_folder("wire-bf16")), 2 ** -8)

    def test_resumed_run_equals_the_uninterrupted_one(self):
        self.train("straight", "--checkpoint.every_steps", "10", "--checkpoint.keep", "5")
        shutil.copytree(self.run_folder("straight"), self.run_folder("resumed"))
        shutil.rmtree(os.path.join(self.run_folder("resumed"), "checkpoints/step-00000020"))
        result = self.train("resumed", "--log.progress", "plain", "--checkpoint.every_steps", "10")
        self.assertRegex(result.stdout, r"resuming +\S+step-00000010 at step 10 of 20")
        self.assertEqual(losses(self.run_folder("straight")), losses(self.run_folder("resumed")))
        with open(os.path.join(self.run_folder("resumed"), "metrics.discarded.jsonl")) as lines:
            self.assertEqual([json.loads(line)["step"] for line in lines][0], 11)
        # The run also resumes on another number of ranks, where sums differ by rounding.
        shutil.copytree(self.run_folder("straight"), self.run_folder("resumed3"))
        shutil.rmtree(os.path.join(self.run_folder("resumed3"), "checkpoints/step-00000020"))
        self.train("resumed3", ranks=3)
        self.assert_curves_agree(losses(self.run_folder("straight")), losses(self.run_folder("resumed3")))

    def test_init_from_starts_with_the_weights(self):
        self.train("teacher")
        for name, source in [("student", "teacher"), ("grandchild", "student")]:  # a step that changes no weight
            self.train(name, "--checkpoint.init_from", self.run_folder(source), "--train.steps", "1", "--optim.lr", "0",
                       "--optim.min_lr", "0")
        def weights(name):
            return {tensor: content for tensor, content in self.tensors(name).items() if tensor.startswith("param/")}
        self.assertGreater(len(weights("teacher")), 0)
        self.assertEqual(weights("teacher"), weights("student"))
        # Only weights are taken over: the moments of the two source runs differ, and the steps are equal.
        self.assert_same_bits("student", "grandchild")
        self.assertEqual(metrics(self.run_folder("teacher"))[-1]["val_loss"], metrics(self.run_folder("student"))[-1]["val_loss"])

    def test_mlp_learns_images(self):
        self.train("mlp", "--model.kind", "mlp", "--train.steps", "30", "--optim.lr", "0.003", data=self.images)
        curve = losses(self.run_folder("mlp"))
        self.assertLess(curve[30], 0.7 * curve[1])
        self.assert_one_line(self.check(run("eval", self.run_folder("mlp"), "--windows", "stream"), CONFIG),
                             "--windows: model.kind = mlp reads no text; leave it out")

    def test_config_file_from_another_system(self):
        with open(self.path("windows.cfg"), "wb") as out:
            out.write(b"\xef\xbb\xbf[train]\r\n# a comment\r\n\r\nlog_every = 3   # lines\r\n[train]\r\nsteps = 4\r\n")
        result = run("train", "--config", self.path("windows.cfg"), "--data.path", self.text, "--run.dir", self.path("runs"),
                     "--run.name", "windows", "--model.width", "32", "--train.global_batch", "3")
        self.assertIn("finished 4 steps", self.check(result).stdout)

    def test_later_files_win_and_then_the_command_line(self):
        for name, text in [("first", "[train]\nsteps = 9\nlog_every = 9\n[optim]\nlr = 0.5\n"),
                           ("second", "[train]\nsteps = 8\nlog_every = 8\n")]:
            with open(self.path(name + ".cfg"), "w") as out:
                out.write(text)
        self.check(run("train", "--train.steps", "1", "--config", self.path("first.cfg"), "--config", self.path("second.cfg"),
                       "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", "later", "--model.width", "32",
                       "--train.global_batch", "3"))
        with open(os.path.join(self.run_folder("later"), "config.cfg")) as file:
            resolved = file.read()
        for line in ["steps = 1", "log_every = 8", "lr = 0.5"]:
            self.assertRegex(resolved, f"(?m)^{line}$")

    def test_plain_progress_and_table(self):
        result = self.train("plain", "--log.progress", "plain", "--train.log_every", "5")
        self.assertRegex(result.stdout, r"step +10/20  loss \d\.\d+  lr .* tokens/s  .* ms/step  \d+s left")
        self.assertRegex(result.stdout, r"batch +12 = 12 micro-batch x 1 accumulation x 1 rank")
        self.assertRegex(result.stdout, r"memory +a rank: parameters \S+ KiB, gradients")
        self.assertIn(f"next        {tandem_program.TANDEM} generate --checkpoint", result.stdout)


class UsingAModel(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train(cls, "model", "--train.steps", "60")
        cls.model = os.path.join(cls.path("runs"), "model")

    def test_eval_has_the_same_bits_on_every_number_of_ranks(self):
        outputs = {self.check(run("eval", "--checkpoint", self.model, "--threads", "1", ranks=ranks)).stdout
                   for ranks in [None, 1, 2, 3, 4]}
        self.assertEqual(len(outputs), 1, outputs)
        output = outputs.pop()
        loss = float(re.search(r"val_loss +(\S+)", output)[1])
        self.assertAlmostEqual(loss, [line["val_loss"] for line in metrics(self.model) if "val_loss" in line][-1], 6)
        with open(self.text_file) as text:
            characters = len(text.read())
        self.assertEqual(int(re.search(r"targets +(\d+)", output)[1]), characters - int(0.9 * characters) - 1)

    def test_generate_is_repeatable_and_stops(self):
        def generate(*options):
            return self.check(run("generate", "--checkpoint", self.model, "--prompt", "the old ", *options)).stdout
        first = generate("--tokens", "80", "--seed", "3")
        self.assertEqual(first, generate("--tokens", "80", "--seed", "3"))
        self.assertNotEqual(first, generate("--tokens", "80", "--seed", "4"))
        self.assertEqual(len(first), 81)
        long = self.check(run("generate", self.model, "--prompt", "the old " * 20, "--tokens", "1"))
        self.assert_one_line(long, r"^tandem: only the ends are read of prompts longer than the window of \d+ tokens: 1 of 1$")
        stopped = generate("--tokens", "80", "--seed", "3", "--stop", first[20:23])
        self.assertEqual(stopped, first[:first.find(first[20:23])] + "\n")
        greedy = generate("--tokens", "30", "--temperature", "0")
        self.assertEqual(greedy, generate("--tokens", "30", "--top-k", "1", "--seed", "9"))
        self.assertEqual(greedy, generate("--tokens", "30", "--top-p", "0.000001", "--seed", "9"))

    def test_generate_continues_prompts_of_a_file(self):
        """A text depends on its prompt alone, not on those beside it."""
        prompts = ["the old ", "red", "a", "blue and green and red", "gr"]
        with open(self.path("prompts.jsonl"), "w") as file:
            file.writelines(json.dumps({"id": i, "prompt": prompt}) + "\n" for i, prompt in enumerate(prompts))

        def texts(*options):
            self.check(run("generate", self.model, "--input", self.path("prompts.jsonl"), "--output", self.path("texts.jsonl"), "--tokens",
                           "40", "--samples", "2", *options))
            with open(self.path("texts.jsonl")) as file:
                return [json.loads(line) for line in file]
        together = texts("--batch", "3", "--threads", "2")
        self.assertEqual([line["prompt"] for line in together], [prompt for prompt in prompts for _ in range(2)])
        self.assertEqual(together, texts("--batch", "1", "--threads", "1"))
        for i, prompt in enumerate(prompts):
            alone = self.check(run("generate", self.model, "--prompt", prompt, "--tokens", "40", "--samples", "2")).stdout
            self.assertEqual(alone, "\n---------------\n".join(line["text"] for line in together[2 * i:2 * i + 2]) + "\n")
        with open(self.path("prompts.jsonl"), "a") as file:
            file.write('{"prompt": "Ω"}\n')
        before = os.listdir(self.folder)
        refused = self.check(run("generate", self.model, "--input", self.path("prompts.jsonl"), "--output", self.path("other.jsonl")), DATA)
        self.assert_one_line(refused, "prompts.jsonl:6: ")
        open(self.path("prompts.jsonl"), "w").close()
        refused = self.check(run("generate", self.model, "--input", self.path("prompts.jsonl"), "--output", self.path("other.jsonl")), DATA)
        self.assert_one_line(refused, "prompts.jsonl: has no prompts")
        self.assertEqual(os.listdir(self.folder), before)
        self.assert_one_line(self.check(run("generate", self.model, "--input", "x"), CONFIG), "--input and --output go together")

    def test_generate_has_the_same_prompts_on_all_ranks(self):
        parts = [part for prompt in ["the", "red"] for part in [":", "-np", "1", tandem_program.TANDEM, "generate", self.model, "--prompt", prompt]]
        done = subprocess.run(["timeout", "-k", "5", "120", "mpirun", *parts[1:]], env=tandem_program.MPI_ENV, capture_output=True, text=True)
        self.assert_one_line(self.check(done, DATA), "--prompt is not the same on all ranks: rank 1 differs")

    def test_generate_needs_no_dataset(self):
        moved = self.path("moved.h5")
        os.rename(self.text, moved)
        try:
            self.check(run("generate", "--checkpoint", self.model, "--prompt", "red", "--tokens", "5"))
        finally:
            os.rename(moved, self.text)

    def test_generate_finds_its_tokenizer_however_the_checkpoint_is_written(self):
        moved = self.path("moved.h5")
        best = os.path.join(self.model, "checkpoints/best")
        os.rename(self.text, moved)
        try:
            for name, folder in [(best + "/", None), (".", best), ("checkpoints", self.model)]:
                self.check(run("generate", "--checkpoint", name, "--prompt", "red", "--tokens", "5", cwd=folder))
        finally:
            os.rename(moved, self.text)

    def test_generate_says_when_its_text_is_lost(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([tandem_program.TANDEM, "generate", "--checkpoint", self.model, "--prompt", "red"], stdout=full,
                                    stderr=subprocess.PIPE, text=True)
        self.assertEqual(result.returncode, DATA)
        self.assertIn("standard output: cannot write", result.stderr)

    def test_generate_refuses_unknown_characters(self):
        result = self.check(run("generate", "--checkpoint", self.model, "--prompt", "Ω"), DATA)
        self.assert_one_line(result, "vocabulary")

    def test_inspect_shows_datasets_and_checkpoints(self):
        shown = self.check(run("inspect", self.text, "--verify")).stdout
        self.assertIn("tokenizer   char", shown)
        self.assertRegex(shown, r"documents   1 to train, 1 to validate; median \d+ tokens, longest \d+\n")
        self.assertIn("10: ", self.check(run("inspect", self.images)).stdout)
        shown = self.check(run("inspect", self.model, "--verify")).stdout
        self.assertIn("param/blocks.0.attn.q.weight", shown)
        self.assertIn("optim/m/wte", shown)
        self.assertIn("width = 32", shown)

    def test_every_command_has_help(self):
        for command in ["", "train", "eval", "generate", "prepare", "prepare text", "prepare sft", "prepare images", "serve", "inspect", "inspect runs",
                        "compare", "export", "estimate", "bench", "bench links"]:
            shown = self.check(run(*command.split(), "--help")).stdout
            self.assertIn(f"tandem {command}", shown)
            self.assertEqual([line for line in shown.splitlines() if len(line) > 120 and " " in line[36:120]], [], command)
        self.assertEqual(set(re.findall(r"(?m)^(\w+):$", run("bench", "links", "--help").stdout)), {"options", "run", "dist"})
        self.assertRegex(run("train", "--help").stdout, r"--optim\.lr 0\.001 +learning rate")


if __name__ == "__main__":
    tandem_program.main()
