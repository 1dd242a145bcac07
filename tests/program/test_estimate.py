#!/usr/bin/env python3
"""`tandem estimate` predicts what `tandem train` uses: peak memory and bytes sent, for configurations drawn at random. Also
tests what `tandem estimate` prints.

    test_estimate.py PATH_TO_TANDEM [unittest arguments]

With TANDEM_ESTIMATE_DEVICE=cuda in the environment the training runs on a GPU, or on the emulated one.
"""
import json
import os
import random
import resource

import tandem_program
from tandem_program import CONFIG, DATA, OK, Workspace, metrics, run

DEVICE = os.environ.get("TANDEM_ESTIMATE_DEVICE", "cpu")
GPU = "none" if DEVICE == "cpu" else "a100-40"
CONFIGURATIONS = 10
CONFIGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "configs")


# Settings that a kind of model ignores; draw() leaves them out.
IGNORED = {"gpt": ["model.kv_heads", "model.rope_scaling", "model.depth"],
           "llama": ["model.positions", "model.depth"],
           "mlp": ["model.heads", "model.kv_heads", "model.context", "model.positions", "model.vocab", "model.rope_scaling",
                   "model.dropout", "model.tie_embeddings", "model.depth"],
           "resnet": ["model.layers", "model.heads", "model.kv_heads", "model.width", "model.context", "model.dropout",
                      "model.positions", "model.vocab", "model.rope_scaling", "model.tie_embeddings"]}


def draw(pick):
    """Draws a number of ranks, and settings."""
    ranks = pick.choice([1, 2, 3, 4])
    kind = pick.choice(["gpt", "llama", "resnet", "mlp"])
    micro_batch, accumulation = pick.choice([1, 2, 3]), pick.choice([1, 1, 2, 3])
    heads = pick.choice([1, 2, 4])
    settings = {
        "model.kind": kind,
        "model.layers": pick.randint(1, 4),
        "model.heads": heads,
        "model.kv_heads": pick.choice([0, 1]) if kind == "llama" else 0,
        "model.width": heads * pick.choice([4, 8, 12]),
        "model.context": pick.randint(4, 24),
        "model.positions": pick.choice([0, 24]),
        "model.vocab": pick.choice([0, 1025]),
        "model.rope_scaling": pick.choice(["none", "llama3"]),
        "model.dropout": pick.choice([0, 0.1]),
        "model.tie_embeddings": pick.choice(["true", "false"]),
        "model.depth": 8,
        "train.global_batch": micro_batch * accumulation * ranks,
        "train.micro_batch": micro_batch,
        "train.recompute": pick.choice(["none", "block"]),
        "train.precision": pick.choice(["f32", "bf16", "fp16"]),
        "optim.kind": pick.choice(["adamw", "lion", "muon", "sgd"] if kind in ("gpt", "llama") else ["adamw", "lion", "sgd"]),
        "dist.zero": pick.randint(0, 3),
        "dist.reduce": pick.choice(["ring", "ring", "exact"]),
        "dist.bucket_mb": pick.choice([0.01, 0.05, 4]),
        "dist.overlap": pick.choice(["true", "false"]),
        "dist.node_size": pick.choice([n for n in [1, 2, 3, 4] if ranks % n == 0]),
        "dist.shard": pick.choice(["world", "node"]),
    }
    settings["train.offload"] = pick.choice(["none", "optimizer", "both" if settings["train.recompute"] == "block" else "none"])
    if settings["optim.kind"] == "muon":
        settings["train.offload"] = "none"
    settings["dist.wire_dtype"] = pick.choice(["f32", "bf16"]) if settings["dist.reduce"] == "ring" else "f32"
    return ranks, {key: value for key, value in settings.items() if key not in IGNORED[kind]}


def options(settings):
    return [word for key, value in settings.items() for word in ("--" + key, str(value))]


class Estimates(Workspace):
    def estimate(self, *settings, code=OK):
        return self.check(run("estimate", "--run.threads", "1", *settings), code)

    def given(self, *settings):
        rows = json.loads(self.estimate("--json", *settings).stdout)["rows"]
        return next(row for row in rows if row["given"])

    def test_equals_what_training_used(self):
        pick = random.Random(20)
        drawn = [draw(pick) for _ in range(CONFIGURATIONS)]
        # Matrices go to their owners and back.
        drawn.append((3, {"model.kind": "llama", "model.layers": 2, "model.width": 16, "model.heads": 2, "model.context": 8,
                          "model.dropout": 0, "train.global_batch": 6, "train.micro_batch": 1, "train.precision": "bf16",
                          "optim.kind": "muon", "dist.zero": 2}))
        for number, (ranks, settings) in enumerate(drawn):
            data = self.text if settings["model.kind"] in ("gpt", "llama") else self.images
            with self.subTest(ranks=ranks, **settings):
                self.assert_equals_training(f"drawn{number}", ranks, data, *options(settings))

    def assert_equals_training(self, run, ranks, data, *settings):
        """Returns the estimate."""
        self.train(run, *settings, "--train.steps", "3", "--run.device", DEVICE, ranks=ranks, data=data)
        used = next(line for line in metrics(self.run_folder(run)) if line["step"] == 3)
        expected = self.given(*settings, "--data.path", data, "--ranks", ranks, "--gpu", GPU)
        self.assertEqual(expected["wire_bytes"], used["wire_bytes"])
        self.assertEqual(expected["peak_bytes"], used["peak_bytes"])
        with open(os.path.join(self.run_folder(run), "report.json")) as file:
            copies = [rank["saved_copy_bytes"] for rank in json.load(file)["ranks"]]
        self.assertEqual(expected["checkpoint_bytes"], max(copies))
        for name, bytes in used["memory"].items():
            self.assertEqual(expected["memory"][name], bytes, name)
        return expected

    def test_adapters(self):
        """What is saved are adapters and their two moments; of a run whose checkpoints are self-contained, the model, too."""
        model = ["--model.kind", "llama", "--model.layers", "2", "--model.heads", "2", "--model.width", "32", "--model.ffn_width", "48",
                 "--model.context", "8", "--model.dropout", "0"]
        self.train("base", *model, "--train.steps", "1")
        tuned = [*model, "--checkpoint.init_from", self.run_folder("base"), "--lora.rank", "4", "--lora.targets", "q_proj,down_proj"]
        elements = 2 * 4 * (32 + 32 + 48 + 32)
        weights = self.given(*model, "--data.path", self.text, "--train.global_batch", "12")["checkpoint_bytes"] // 3
        for number, (ranks, zero, precision, is_whole) in enumerate([(1, 0, "f32", False), (1, 0, "bf16", True), (3, 2, "bf16", False), (2, 3, "f32", False)]):
            with self.subTest(ranks=ranks, zero=zero, precision=precision, is_whole=is_whole):
                expected = self.assert_equals_training(f"tuned{number}", ranks, self.text, *tuned, "--dist.zero", zero, "--train.precision", precision,
                                                       "--train.global_batch", "12", *(["--checkpoint.self_contained", "true"] if is_whole else []))
                if ranks == 1:
                    passing = 2 * 48 * 32 if is_whole and DEVICE == "cuda" else 0  # the largest matrix in bf16, on its way from the GPU
                    self.assertEqual(expected["checkpoint_bytes"], 3 * 4 * elements + (weights if is_whole else 0) + passing)

    def test_says_what_does_not_fit_and_what_would(self):
        large = ["--config", os.path.join(CONFIGS, "gpt2_124m.cfg"), "--vocab", "50257",
                 "--gpu", "a100-40", "--ranks", "8", "--model.layers", "48", "--model.heads", "25", "--model.width", "1600",
                 "--train.precision", "bf16", "--train.global_batch", "64", "--train.micro_batch", "8"]
        text = self.estimate(*large, "--dist.zero", "0", "--train.recompute", "none").stdout
        verdict = " ".join(text.split())
        self.assertRegex(verdict, r"dist.zero = 0 with train.recompute = none does not fit in 38.5 GiB")
        self.assertRegex(verdict, r"needs \d+.\d GiB; use .*train.micro_batch = \d")
        rows = [line for line in text.splitlines() if line[:1].isdigit()]
        self.assertEqual(len(rows), 8)
        self.assertIn("does not fit", rows[0])
        self.assertNotIn("does not fit", rows[7])
        self.assertRegex(self.estimate(*large, "--dist.zero", "3", "--train.recompute", "block").stdout,
                         r"dist.zero = 3 with train.recompute = block fits in 38.5 GiB")
        heads = [*large, "--model.heads", "20", "--dist.zero", "0"]
        self.assertRegex(" ".join(self.estimate(*heads).stdout.split()), r"dist.tensor = 2 \(\d+.\d GiB\)")
        rows = json.loads(self.estimate(*heads, "--json").stdout)["rows"]
        self.assertEqual([row["tensor"] for row in rows], [1] * 8 + [2, 4])
        whole, halves = rows[0]["memory"]["parameters"], rows[8]["memory"]["parameters"]
        self.assertAlmostEqual(halves / whole, 0.5, delta=0.01)
        self.assertEqual(rows[9]["fits"], True)
        tiny = " ".join(self.estimate(*large, "--memory-gib", "0.1").stdout.split())
        self.assertIn("no stage fits, not even with one sample: take more ranks or a smaller model", tiny)

    # Two ranks that cut a model divide the rows of an even number of such samples only.
    def test_an_odd_context(self):
        rows = json.loads(self.estimate("--json", "--model.context", "11", "--ranks", "2", "--train.global_batch", "12",
                                        "--memory-gib", "0.1").stdout)["rows"]
        most = {row["largest_micro_batch"] for row in rows if row["tensor"] == 2}
        self.assertTrue(most and min(most) > 0 and all(number % 2 == 0 for number in most), most)

    # What the files in configs/ say of themselves: 8 A100 of 40 GB, and nothing is recomputed.
    def test_the_settings_for_gpus_fit(self):
        for name, parameters in [("gpt2_124m", 124.4e6), ("gpt2_350m", 354.8e6), ("gpt2_774m", 774.0e6), ("gpt2_1558m", 1557.6e6),
                                 ("llama_1b", 1235.8e6)]:
            row = self.given(os.path.join(CONFIGS, name + ".cfg"), "--vocab", "128256" if name == "llama_1b" else "50257",
                             "--gpu", "a100-40", "--ranks", "8")
            self.assertEqual((row["fits"], row["recompute"], row["zero"]), (True, "none", 1), name)
            # Weights are bf16, in padded buckets.
            self.assertAlmostEqual(row["memory"]["parameters"] / 2 / parameters, 1, delta=0.001, msg=name)

    def test_the_tables_fit_a_terminal_and_equal_stages_share_a_line(self):
        job = ["--data.path", self.text, "--train.global_batch", "64"]
        for ranks, zero, tensor in [(1, ["0-3", "0-3"], []), (8, ["0", "0", "1", "1", "2", "2", "3", "3"], ["1", "2", "4"])]:
            lines = self.estimate(*job, "--ranks", ranks, "--gpu", "a100-40").stdout.splitlines()
            self.assertLessEqual(max(map(len, lines)), 100)
            self.assertEqual([line.split()[0] for line in lines if line[:1].isdigit()], zero + tensor)
            self.assertEqual([line.split()[1:] for line in lines if line.startswith("zero ") and "peak" not in line], [zero])
        self.assertIn("1 rank,", self.estimate(*job).stdout)

    def test_times_follow_from_the_rates(self):
        job = ["--data.path", self.text, "--gpu", "a100-40", "--ranks", "16", "--train.global_batch", "32",
               "--model.width", "256"]
        slow, fast = self.given(*job, "--between-gb-s", "0.1"), self.given(*job, "--between-gb-s", "1000")
        self.assertGreater(slow["exposed_comm_ms"], 2 * fast["exposed_comm_ms"])
        self.assertGreater(slow["step_ms"] - fast["step_ms"], 0.9 * (slow["exposed_comm_ms"] - fast["exposed_comm_ms"]))
        self.assertLess(slow["mfu"], fast["mfu"])
        self.assertEqual(slow["wire_bytes"], fast["wire_bytes"])

    def test_says_which_rates_are_used(self):
        job = ["--gpu", "h100", "--model.width", "1024", "--model.heads", "16", "--train.precision", "bf16"]
        said = " ".join(self.estimate(*job).stdout.split())
        self.assertIn("matrix products 540 TFLOP/s of 989 (80 % of the 675 that a long run sustains; short bursts reach 790), "
                      "attention 186;", said)
        given = " ".join(self.estimate(*job, "--tflops", "400").stdout.split())
        self.assertIn("matrix products 400 TFLOP/s of 989, attention", given)

    # The same number of tokens: attention grows with the context, and is slower than products of matrices.
    def test_long_contexts_cost_more_than_products(self):
        model = ["--gpu", "a100-80", "--model.kind", "llama", "--model.width", "4096", "--model.heads", "32", "--model.layers", "4",
                 "--train.precision", "bf16"]
        mfu = [self.given(*model, "--model.context", 65536 // samples, "--train.global_batch", samples)["mfu"]
               for samples in [32, 8, 2, 1]]
        self.assertEqual(mfu, sorted(mfu, reverse=True))
        self.assertLess(mfu[-1], 0.85 * mfu[0])

    def test_recomputation_does_not_fix_the_mfu(self):
        mfu = [self.given("--gpu", "a100-80", "--model.width", width, "--model.heads", width // 128, "--model.context", "2048",
                          "--train.precision", "bf16", "--train.global_batch", "8", "--train.recompute", "block")["mfu"]
               for width in [512, 2048, 8192]]
        self.assertGreater(mfu[1], 1.1 * mfu[0])
        self.assertGreater(mfu[2], 1.05 * mfu[1])

    # The same list as that of the benchmarks; tests/estimate/test_cost_model.cpp compares it with a table made by hand.
    def test_the_floor_of_each_op(self):
        text = self.estimate(os.path.join(CONFIGS, "gpt2_124m.cfg"), "--vocab", "50304",
                             "--gpu", "h200", "--ranks", "8", "--ops").stdout
        self.assertIn("one rank: 64 x 1024 tokens and the update, bf16, vocabulary 50304, on h200", text)
        self.assertIn("ceilings, in short bursts: 790 TFLOP/s, 4300 GB/s", text)
        self.assertRegex(text, r"\nQKV forward +12 +2.783 +4.874 +4.874 +3.523\n")
        self.assertRegex(text, r"\nGELU forward +12 +0.000 +0.000 +9.664 +0\n(.*\n)*all +75.7\d\n$")
        self.assertLessEqual(max(map(len, text.splitlines())), 100)
        self.assert_one_line(self.estimate("--model.kind", "resnet", "--ops", code=CONFIG), "--ops: a resnet has no list of ops")
        self.assert_one_line(self.estimate("--ops", "--json", code=CONFIG), "--ops: it prints a table alone; leave out --json")
        for ignored in ["--largest-batch"], ["--gpu", "h200", "--tflops", "400"], ["--gpu", "h200", "--memory-gb-s", "400"]:
            self.assert_one_line(self.estimate("--ops", *ignored, code=CONFIG), "--ops: it is of train.micro_batch, at the highest rates of --gpu; leave out")
        self.assert_one_line(self.estimate("--optim.kind", "muon", "--ops", code=CONFIG), "--ops: optim.kind = muon has no floor")
        for cut in [["--dist.tensor", "2", "--ranks", "2"], ["--lora.rank", "2", "--checkpoint.init_from", "base", "--model.layers", "2"]]:
            self.assert_one_line(self.estimate(*cut, "--ops", code=CONFIG), "--ops: .*; use dist.tensor = 1 and lora.rank = 0")

    def test_says_what_it_assumes_where_there_is_no_dataset(self):
        self.assertIn("no dataset: assuming 50257 tokens in the vocabulary (--vocab)", self.estimate().stdout)
        self.assertIn("no dataset: assuming 300 tokens in the vocabulary (model.vocab)",
                      self.estimate("--model.vocab", "300").stdout)
        self.assertIn("no none.h5: assuming 24 x 24 images of 7 classes (--image, --classes)",
                      self.estimate("--model.kind", "mlp", "--data.path", "none.h5", "--image", "24", "--classes", "7").stdout)

    # Each answers at once: what a GPU's kernels list of a huge model is counted, not built.
    def test_dollars(self):
        """A price adds dollars of train.steps steps on whole nodes, and of 10^9 tokens; of what the rows say, by hand."""
        words = ["--config", os.path.join(CONFIGS, "gpt2_124m.cfg"), "--gpu", "a100-40", "--ranks", "16", "--train.steps", "1000"]
        plain = self.given(*words)
        self.assertNotIn("usd", plain)
        row = self.given(*words, "--usd-per-node-hour", "36")
        self.assertAlmostEqual(row["usd"], 2 * 36 * row["step_ms"] / 3600, delta=1e-9 * row["usd"])
        self.assertAlmostEqual(row["usd_per_1e9_tokens"], row["usd"] / (1000 * 512 * 1024) * 1e9, delta=1e-9 * row["usd"])
        self.assertAlmostEqual(row["tokens_per_s"], 512 * 1024 / row["step_ms"] * 1000, delta=1e-9 * row["tokens_per_s"])
        self.assertEqual({key: value for key, value in row.items() if not key.startswith("usd")}, plain)
        shown = self.estimate(*words, "--usd-per-node-hour", "36").stdout
        self.assertIn(f" {row['usd']:.2f} ", shown)
        self.assertIn("dollars of 1000 steps on whole nodes", shown)
        apart = self.given(*words, "--dist.islands", "2", "--dist.sync_every", "10", "--usd-per-node-hour", "36")
        step_ms = apart["step_ms"] + apart["sync_ms"] / 10
        self.assertGreater(apart["sync_ms"], 0)
        nodes = self.given(*words, "--dist.islands", "node", "--dist.sync_every", "10", "--usd-per-node-hour", "36")
        self.assertEqual(nodes, apart, "two nodes")
        self.assertAlmostEqual(apart["tokens_per_s"], 512 * 1024 / step_ms * 1000, delta=1e-9 * apart["tokens_per_s"])
        self.assertAlmostEqual(apart["usd"], 2 * 36 * step_ms / 3600, delta=1e-9 * apart["usd"])
        images = self.given("--model.kind", "resnet", "--train.global_batch", "100", "--train.steps", "50", "--usd-per-node-hour", "36")
        self.assertAlmostEqual(images["usd_per_1e6_images"], images["usd"] / 5000 * 1e6, delta=1e-9 * images["usd_per_1e6_images"])

    def test_the_largest_micro_batch(self):
        """Each row has the largest divisor of a rank's share that fits, whatever train.micro_batch is."""
        words = ["--config", os.path.join(CONFIGS, "gpt2_350m.cfg"), "--gpu", "a100-40", "--ranks", "8", "--train.global_batch", "512", "--train.micro_batch", "0"]
        rows = json.loads(self.estimate("--json", "--largest-batch", *words).stdout)["rows"]
        for row in rows:
            with self.subTest(zero=row["zero"], tensor=row["tensor"], recompute=row["recompute"]):
                share = 64 * row["tensor"]
                self.assertEqual(row["micro_batch"], max(n for n in range(1, share + 1) if share % n == 0 and n <= row["largest_micro_batch"]))
                self.assertTrue(row["fits"])
        row = next(row for row in rows if row["given"])
        self.assertEqual(row, self.given(*words[:-1], row["micro_batch"]))
        self.assertFalse(self.given(*words)["fits"])

    def test_absurd_sizes(self):
        job = ["--gpu", "h100", "--ranks", "8", "--train.global_batch", "8"]
        wide = ["--model.width", "262144", "--model.heads", "1024"]
        for words in [wide, [*wide, "--dist.reduce", "exact"], ["--model.width", "1048576", "--model.heads", "8192"],
                      ["--model.context", "16777216"]]:
            self.assertIn("no stage fits, not even with one sample", " ".join(self.estimate(*job, *words).stdout.split()))
        many = ["--gpu", "h100", "--train.micro_batch", "1", "--train.global_batch", "4194304"]
        for words, pattern in [
                ([*job, "--model.layers", "10000"], "10000 layers, .* with 1 micro-batches a rank would take minutes.*fewer layers"),
                ([*job, "--model.kind", "mlp", "--model.layers", "10000"], "10000 layers, width 128 with 1 micro-batches a rank"),
                ([*job, "--model.kind", "resnet", "--model.depth", "1202"], "depth 1202 with 1 micro-batches a rank"),
                (many, "4 layers, .* with 4194304 micro-batches a rank.*a larger train.micro_batch"),
                ([*many, "--ranks", "1048576"], "ranks = 1048576.*65536"),
                ([*job, "--model.kind", "mlp", "--model.width", "1048576", "--image", "65536", "--channels", "65536"],
                 "--channels 65536 of --image 65536: an image has at most 2.31 - 1 values"),
                ([*job, "--model.kind", "resnet", "--image", "32768"], "--channels 3 of --image 32768: an image has at most"),
                ([*job, "--node-size", "4294967296"], "node-size = 4294967296 must be a whole number"),
                ([*job, "--vocab", "1073741824", "--model.width", "1048576", "--model.heads", "8192"],
                 r"a tensor of \[.*\] has more than 2.46 elements; take smaller sizes")]:
            self.assert_one_line(self.estimate(*words, code=CONFIG), pattern)

    def test_as_many_ranks_as_it_takes(self):
        """It takes 3 seconds of the processor, and took 67 when all pairs of ranks were compared."""
        shown = run("estimate", "--gpu", "h100", "--ranks", "65536", "--train.global_batch", "65536", "--model.layers", "1", "--run.threads", "1",
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (30, 30)))
        self.assertIn("fits in", self.check(shown).stdout)

    def test_bad_requests(self):
        for settings, pattern in [
                (["--vocab", "9", "--ranks", "8", "--gpu", "h100", "--node-size", "3", "--train.global_batch", "8"],
                 "--node-size 3 does not divide --ranks 8"),
                (["--vocab", "9", "--gpu", "h10"], "gpu = h10.*h100"),
                (["--vocab", "9", "--ranks", "7"], "train.global_batch = 12 is not divisible by 7 ranks")]:
            self.assert_one_line(self.estimate(*settings, code=CONFIG), pattern)
        self.assert_one_line(self.estimate("--gpu", "h100", "--checkpoint.init_from", self.path("typo"), code=DATA), "typo: no checkpoint here")
        self.assert_one_line(self.estimate("--gpu", "h100", "--model.kind", "resnet", "--image", 4, "--train.micro_batch", 1, code=CONFIG),
                             "one value per channel is left there")


if __name__ == "__main__":
    tandem_program.main()
