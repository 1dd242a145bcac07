#!/usr/bin/env python3
"""Runs the `tandem` program as a user would: training on 1 to 4 ranks, resuming, evaluating, generating, and every kind of
bad input with its exit code and its one line. Needs nothing but Python's standard library, mpirun and the program.

    test_commands.py PATH_TO_TANDEM [unittest arguments]
"""
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

TANDEM = ""
OK, CONFIG, DATA, OUT_OF_MEMORY, STOPPED = 0, 2, 3, 71, 85
TINY = ["--model.layers", "2", "--model.heads", "2", "--model.width", "32", "--model.context", "16",
        "--train.global_batch", "12", "--train.log_every", "1", "--optim.warmup_steps", "5", "--run.threads", "1",
        "--log.progress", "none"]
MPI_ENV = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
               OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none",
               OMPI_MCA_mpi_yield_when_idle="1")
# Relative tolerance between rank counts. One f32 sum over the ranks' gradients is off by at most (ranks - 1) * 2^-24 of
# the sum of magnitudes, 2e-7 for 4 ranks; cancellation within a gradient costs about a factor of 10, and over 20 steps
# Adam, which divides by the gradient's own size, adds up one such error a step: 20 * 10 * 2e-7 = 4e-5 of a loss.
ACROSS_RANKS = 4e-5


def run(*arguments, ranks=None, **options):
    command = [TANDEM, *map(str, arguments)]
    if ranks:
        command = ["timeout", "-k", "5", "120", "mpirun", "-np", str(ranks), *command]
    return subprocess.run(command, env=MPI_ENV, capture_output=True, text=True, timeout=300, **options)


def metrics(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as lines:
        return [json.loads(line) for line in lines]


def losses(folder):
    return {line["step"]: line["loss"] for line in metrics(folder) if "loss" in line}


def words(count, seed=1):
    pick = random.Random(seed)
    vocabulary = ["red", "green", "blue", "stone", "river", "walks", "sings", "under", "over", "the", "a", "old"]
    return " ".join(pick.choice(vocabulary) for _ in range(count)) + "\n"


class Workspace(unittest.TestCase):
    """A folder with a small text dataset and a small image dataset, made once."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="tandem-test-")
        cls.text_file = cls.path("words.txt")
        with open(cls.text_file, "w") as out:
            out.write(words(3000))
        cls.text = cls.path("words.h5")
        cls.check(run("prepare", "text", "--input", cls.text_file, "--output", cls.text, "--tokenizer", "char"))
        images = cls.path("cifar")
        os.makedirs(images)
        pick = random.Random(5)
        for name, count in [(f"data_batch_{i}.bin", 16) for i in range(1, 6)] + [("test_batch.bin", 24)]:
            with open(os.path.join(images, name), "wb") as out:
                for _ in range(count):
                    label = pick.randrange(10)
                    out.write(bytes([label]) + bytes((pick.randrange(40) + 20 * label) % 256 for _ in range(3072)))
        cls.images = cls.path("cifar.h5")
        cls.check(run("prepare", "images", "--input", images, "--output", cls.images))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder, name)

    @staticmethod
    def check(result, code=OK):
        if result.returncode != code:
            raise AssertionError(f"exit code {result.returncode}, not {code}\n{result.stdout}\n{result.stderr}")
        return result

    def train(self, name, *settings, ranks=None, code=OK, data=None, **options):
        arguments = ["train", "--data.path", data or self.text, "--run.dir", self.path("runs"), "--run.name", name,
                     "--train.steps", "20", *TINY, *settings]
        return self.check(run(*arguments, ranks=ranks, **options), code)

    def run_folder(self, name):
        return os.path.join(self.path("runs"), name)

    def assert_one_line(self, result, pattern):
        """One line of ours on standard error (mpirun adds its own), and it says what it should."""
        ours = [line for line in result.stderr.splitlines()
                if line.startswith("tandem:") and "stop requested" not in line]  # mpirun's signal to the other ranks
        self.assertEqual(len(ours), 1, result.stderr)
        self.assertRegex(ours[0], pattern)

    def assert_curves_agree(self, one, other, tolerance=ACROSS_RANKS):
        self.assertEqual(one.keys(), other.keys())
        for step in one:
            self.assertLessEqual(abs(one[step] - other[step]), tolerance * abs(one[step]), f"step {step}")


class Training(Workspace):
    def test_loss_falls_and_outputs_are_there(self):
        result = self.train("falls", "--train.eval_every", "10")
        curve = losses(self.run_folder("falls"))
        self.assertLess(curve[20], curve[1] - 0.3)
        for name in ["config.cfg", "metrics.jsonl", "tensorboard", "tokenizer.h5", "checkpoints/best/manifest.json",
                     "checkpoints/step-00000020/manifest.json", "checkpoints/step-00000020/rank-0000.h5"]:
            self.assertTrue(os.path.exists(os.path.join(self.run_folder("falls"), name)), name)
        line = metrics(self.run_folder("falls"))[0]
        self.assertEqual(set(line), {"step", "loss", "lr", "grad_norm", "step_ms", "tokens_per_s", "mfu", "wire_bytes",
                                     "exposed_comm_ms", "peak_bytes"})
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
            for one, other in zip(reference, figures):
                # ReLU networks leave a path in small jumps, so the bound is ten times that of the smooth models.
                self.assertAlmostEqual(one, other, delta=10 * ACROSS_RANKS * abs(one))

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

    def test_wire_bytes_are_what_a_ring_sends(self):
        for ranks in [2, 3, 4]:
            self.train(f"wire{ranks}", "--dist.bucket_mb", "1000", "--train.steps", "2", "--train.micro_batch", "1", ranks=ranks)
            parameters = int(re.search(r"parameters +(\d+)", run("inspect", self.run_folder(f"wire{ranks}")).stdout)[1])
            unit = 128 * ranks
            # The vocabulary has an even number of rows of 32, so every parameter starts at a multiple of 8 without gaps.
            padded = (parameters + unit - 1) // unit * unit
            for line in metrics(self.run_folder(f"wire{ranks}")):
                if "wire_bytes" in line:
                    self.assertEqual(line["wire_bytes"] * ranks, 2 * (ranks - 1) * 4 * padded)

    def test_resumed_run_equals_the_uninterrupted_one(self):
        self.train("straight", "--checkpoint.every_steps", "10", "--checkpoint.keep", "5")
        shutil.copytree(self.run_folder("straight"), self.run_folder("resumed"))
        shutil.rmtree(os.path.join(self.run_folder("resumed"), "checkpoints/step-00000020"))
        result = self.train("resumed", "--log.progress", "plain", "--checkpoint.every_steps", "10")
        self.assertRegex(result.stdout, r"resuming +\S+step-00000010 at step 10 of 20")
        self.assertEqual(losses(self.run_folder("straight")), losses(self.run_folder("resumed")))
        with open(os.path.join(self.run_folder("resumed"), "metrics.discarded.jsonl")) as lines:
            self.assertEqual([json.loads(line)["step"] for line in lines][0], 11)
        # And on another number of ranks, where the sums differ by rounding.
        shutil.copytree(self.run_folder("straight"), self.run_folder("resumed3"))
        shutil.rmtree(os.path.join(self.run_folder("resumed3"), "checkpoints/step-00000020"))
        self.train("resumed3", ranks=3)
        self.assert_curves_agree(losses(self.run_folder("straight")), losses(self.run_folder("resumed3")))

    def test_finished_run_does_nothing_again(self):
        self.train("again")
        before = metrics(self.run_folder("again"))
        self.train("again")
        self.assertEqual(before, metrics(self.run_folder("again")))

    def test_init_from_starts_with_the_weights(self):
        self.train("teacher")
        self.train("student", "--checkpoint.init_from", self.run_folder("teacher"), "--train.steps", "2")
        self.assertLess(losses(self.run_folder("student"))[1], losses(self.run_folder("teacher"))[10])

    def test_mlp_learns_images(self):
        self.train("mlp", "--model.kind", "mlp", "--train.steps", "30", "--optim.lr", "0.003", data=self.images)
        curve = losses(self.run_folder("mlp"))
        self.assertLess(curve[30], 0.7 * curve[1])

    def test_plain_progress_and_table(self):
        result = self.train("plain", "--log.progress", "plain", "--train.log_every", "5")
        self.assertRegex(result.stdout, r"step +10/20  loss \d\.\d+  lr .* tokens/s  .* ms/step  \d+s left")
        self.assertRegex(result.stdout, r"batch +12 = 12 micro-batch x 1 accumulation x 1 rank")
        self.assertRegex(result.stdout, r"memory +parameters \S+ KiB, gradients")
        self.assertIn("next        tandem generate --checkpoint", result.stdout)


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
        stopped = generate("--tokens", "80", "--seed", "3", "--stop", first[20:23])
        self.assertEqual(stopped, first[:first.find(first[20:23])] + "\n")
        greedy = generate("--tokens", "30", "--temperature", "0")
        self.assertEqual(greedy, generate("--tokens", "30", "--top-k", "1", "--seed", "9"))
        self.assertEqual(greedy, generate("--tokens", "30", "--top-p", "0.000001", "--seed", "9"))

    def test_generate_needs_no_dataset(self):
        moved = self.path("moved.h5")
        os.rename(self.text, moved)
        try:
            self.check(run("generate", "--checkpoint", self.model, "--prompt", "red", "--tokens", "5"))
        finally:
            os.rename(moved, self.text)

    def test_generate_refuses_unknown_characters(self):
        result = self.check(run("generate", "--checkpoint", self.model, "--prompt", "Ω"), DATA)
        self.assert_one_line(result, "vocabulary")

    def test_inspect_shows_datasets_and_checkpoints(self):
        self.assertIn("tokenizer   char", self.check(run("inspect", self.text, "--verify")).stdout)
        self.assertIn("10: ", self.check(run("inspect", self.images)).stdout)
        shown = self.check(run("inspect", self.model, "--verify")).stdout
        self.assertIn("param/blocks.0.attn.qkv.weight", shown)
        self.assertIn("optim/m/wte", shown)
        self.assertIn("width = 32", shown)

    def test_every_command_has_help(self):
        for command in [[], ["train"], ["eval"], ["generate"], ["prepare"], ["prepare", "text"], ["prepare", "images"],
                        ["inspect"]]:
            result = self.check(run(*command, "--help"))
            self.assertIn("tandem", result.stdout)
        self.assertRegex(run("train", "--help").stdout, r"--optim\.lr 0\.001 +learning rate")


class BadInput(Workspace):
    def test_missing_dataset(self):
        self.assert_one_line(self.train("x", data=self.path("no.h5"), code=DATA), "no.h5")

    def test_truncated_dataset(self):
        with open(self.text, "rb") as whole, open(self.path("cut.h5"), "wb") as cut:
            cut.write(whole.read()[:-4000])
        self.assert_one_line(self.train("x", data=self.path("cut.h5"), code=DATA), "cut.h5.*(cut short|truncated|shorter)")

    def test_wrong_kind_of_dataset(self):
        self.assert_one_line(self.train("x", data=self.images, code=DATA), "text.*images")
        self.assert_one_line(self.train("x", "--model.kind", "resnet", data=self.text, code=DATA), "image.*text")

    def corrupt_tokens(self, target):
        """A copy of the dataset in which one early training token is outside the vocabulary."""
        with open(self.text_file) as text, open(self.text, "rb") as dataset:
            characters, content = text.read(), bytearray(dataset.read())
        ids = {c: i for i, c in enumerate(sorted(set(characters)))}
        start = content.find(struct.pack("<40H", *(ids[c] for c in characters[:40])))
        self.assertGreater(start, 0)
        for place in range(0, 12000, 16):  # one in every window
            content[start + 2 * place:start + 2 * place + 2] = struct.pack("<H", 60000)
        with open(target, "wb") as out:
            out.write(content)

    def test_token_outside_the_vocabulary(self):
        self.corrupt_tokens(self.path("bad.h5"))
        self.assert_one_line(self.train("tokens", data=self.path("bad.h5"), code=DATA), "bad.h5.*60000")

    def test_context_longer_than_the_data(self):
        result = self.train("x", "--model.context", "1000000", code=DATA)
        self.assert_one_line(result, "context|window")

    def test_empty_validation_set(self):
        self.check(run("prepare", "text", "--input", self.text_file, "--output", self.path("noval.h5"), "--tokenizer", "char",
                       "--val-fraction", "0"))
        result = self.train("x", "--train.eval_every", "5", data=self.path("noval.h5"), code=DATA)
        self.assert_one_line(result, "noval.h5.*val")
        self.train("noval", data=self.path("noval.h5"))
        self.assert_one_line(self.check(run("eval", "--checkpoint", self.run_folder("noval")), DATA), "noval.h5.*val")

    def test_indivisible_batch_ends_all_ranks_with_one_message(self):
        started = time.monotonic()
        result = self.train("x", "--train.global_batch", "10", ranks=3, code=CONFIG)
        self.assert_one_line(result, "train.global_batch = 10 is not divisible by 3 ranks")
        print(f"indivisible batch: {time.monotonic() - started:.2f} s", file=sys.stderr)

    def test_unknown_keys_are_reported_together(self):
        result = run("train", "--data.path", self.text, "--train.step", "3", "--optim.lr", "fast")
        self.check(result, CONFIG)
        self.assertIn("unknown setting train.step; did you mean train.steps?", result.stderr)
        self.assertIn("optim.lr = fast must be a number", result.stderr)

    def test_missing_features_are_refused(self):
        for setting in [["--run.device", "cuda"], ["--dist.zero", "2"], ["--train.precision", "bf16"]]:
            self.assert_one_line(self.train("x", *setting, code=CONFIG), "not in this build")

    def test_missing_config_file(self):
        self.assert_one_line(self.train("x", "--config", self.path("no.cfg"), code=CONFIG), "no.cfg")

    def test_two_ranks_reading_different_files(self):
        for name, seed in [("a", 1), ("b", 2)]:
            os.makedirs(self.path(name))
            with open(self.path(name + "/t.txt"), "w") as out:
                out.write(words(2000, seed))
            self.check(run("prepare", "text", "--input", self.path(name + "/t.txt"), "--output", self.path(name + "/t.h5"),
                           "--tokenizer", "bytes"))
        arguments = [TANDEM, "train", "--data.path", "t.h5", "--run.dir", self.path("runs"), "--run.name", "different", *TINY]
        command = ["timeout", "-k", "5", "60", "mpirun", "-np", "1", "-wdir", self.path("a"), *arguments, ":", "-np", "1",
                   "-wdir", self.path("b"), *arguments]
        result = subprocess.run(command, env=MPI_ENV, capture_output=True, text=True)
        self.assert_one_line(self.check(result, DATA), "t.h5.*not the same on all ranks: rank 1")

    def test_unwritable_output(self):
        with open(self.path("file"), "w") as out:
            out.write("in the way")
        self.assert_one_line(self.train("x", "--run.dir", self.path("file"), code=DATA), "file/x")

    def test_disk_full_while_saving_keeps_the_older_checkpoint(self):
        self.train("full", "--train.steps", "20", "--checkpoint.every_steps", "10", "--checkpoint.keep", "5")
        shutil.rmtree(os.path.join(self.run_folder("full"), "checkpoints/step-00000020"))

        def limit_file_size():  # a file that may not grow fails like one on a full disk
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000))
        result = self.train("full", "--train.steps", "20", code=DATA, preexec_fn=limit_file_size, restore_signals=False)
        self.assert_one_line(result, "rank-0000.h5|manifest")
        left = sorted(os.listdir(os.path.join(self.run_folder("full"), "checkpoints")))
        self.assertIn("step-00000010", left)
        self.assertNotIn("step-00000020", left)
        self.train("full", "--train.steps", "20")  # goes on from step 10 when there is room again

    def test_checkpoint_of_another_model(self):
        self.train("narrow")
        result = self.train("wide", "--model.width", "64", "--checkpoint.init_from", self.run_folder("narrow"), code=DATA)
        self.assert_one_line(result, r"step-00000020.*param/.*\[")

    def test_run_name_used_before_with_another_model(self):
        self.train("taken")
        result = self.train("taken", "--model.width", "64", code=CONFIG)
        self.assertIn("was model.width = 32, now 64", result.stderr)

    def test_out_of_memory(self):
        result = self.train("x", "--model.width", "1000000", "--model.heads", "1", code=OUT_OF_MEMORY)
        self.assert_one_line(result, "out of cpu memory: wanted .* for parameters; held: .*; limit")

    def test_a_rank_that_throws_ends_the_job(self):
        for name in ["good", "bad"]:
            os.makedirs(self.path(name))
        shutil.copy(self.text, self.path("good/t.h5"))
        self.corrupt_tokens(self.path("bad/t.h5"))  # the same header, so only reading shows it
        arguments = [TANDEM, "train", "--data.path", "t.h5", "--run.dir", self.path("runs"), "--run.name", "throws", *TINY]
        command = ["timeout", "-k", "5", "60", "mpirun", "-np", "1", "-wdir", self.path("good"), *arguments, ":", "-np", "1",
                   "-wdir", self.path("bad"), *arguments]
        result = self.check(subprocess.run(command, env=MPI_ENV, capture_output=True, text=True), DATA)
        self.assert_one_line(result, "rank 1.*60000")
        self.assertEqual(self.processes_of("throws"), [])

    @staticmethod
    def processes_of(name):
        found = []
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{process}/cmdline") as file, open(f"/proc/{process}/stat") as stat:
                    words = file.read().split("\0")
                    if words[0] == TANDEM and name in words and ") Z " not in stat.read():
                        found.append(int(process))
            except OSError:
                pass  # it ended meanwhile
        return found

    def start_endless(self, name, ranks):
        command = [TANDEM, "train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", name, *TINY,
                   "--train.steps", "1000000", "--checkpoint.every_steps", "20"]
        if ranks > 1:
            command = ["timeout", "-k", "5", "120", "mpirun", "-np", str(ranks), *command]
        job = subprocess.Popen(command, env=MPI_ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not os.path.exists(os.path.join(self.run_folder(name), "checkpoints/step-00000020")):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        return job

    def assert_stopped_with_checkpoint(self, name, job, code):
        output, errors = job.communicate(timeout=60)
        self.assertEqual(job.returncode, code, output + errors)
        self.assertRegex(errors, r"stop requested; saving after this step \(last checkpoint: \S+step-\d+\)")
        self.assertEqual(self.processes_of(name), [])
        manifest = json.loads(open(os.path.join(self.newest(name), "manifest.json")).read())
        self.assertEqual(manifest["step"], metrics(self.run_folder(name))[-1]["step"])

    def newest(self, name):
        folder = os.path.join(self.run_folder(name), "checkpoints")
        return os.path.join(folder, max(entry for entry in os.listdir(folder) if re.fullmatch(r"step-\d+", entry)))

    def test_interrupt_saves_and_says_so(self):
        job = self.start_endless("interrupted", 1)
        job.send_signal(signal.SIGINT)
        self.assert_stopped_with_checkpoint("interrupted", job, STOPPED)

    def test_termination_of_one_rank_stops_all(self):
        job = self.start_endless("terminated", 2)
        for process in self.processes_of("terminated"):  # whichever rank it is
            os.kill(process, signal.SIGTERM)
        self.assert_stopped_with_checkpoint("terminated", job, STOPPED)

    def test_unknown_command(self):
        self.assert_one_line(self.check(run("trian"), CONFIG), "no command trian")


if __name__ == "__main__":
    TANDEM = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
