#!/usr/bin/env python3
"""Each mode of tandem_gpu_bench runs on tiny sizes, prints its rows, and refuses bad input with one line. Speed is not tested.

    test_gpu_bench.py PATH_TO_TANDEM_GPU_BENCH [unittest arguments]

With TANDEM_REQUIRE_DEVICES=cpu,cuda in the environment it runs on a GPU, or on the emulated one.
"""
import os
import re
import subprocess
import sys
import unittest

PROGRAM = sys.argv.pop(1)
DEVICE = "cuda" if "cuda" in os.environ.get("TANDEM_REQUIRE_DEVICES", "") else "cpu"
README = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "README.md")
ONCE = ["--warm-up", "1", "--runs", "2", "--device", DEVICE, "--threads", "1"]
GPT = ["norm forward, the first", "residual add + norm forward", "norm backward", "norm backward, the last", "GELU forward",
       "GELU backward", "cross-entropy", "embedding forward", "embedding backward", "QKV bias gradient", "gradient norm", "AdamW"]


def bench(*words, stdin="", **environment):
    return subprocess.run([PROGRAM, *map(str, words)], env=dict(os.environ, **environment), capture_output=True, text=True,
                          input=stdin)


def rows_of(text):
    """Name -> columns, of a printed table."""
    rows = [re.split(r"  +", line.strip()) for line in text.splitlines()]
    return {row[0]: row[1:] for row in rows if len(row) > 1}


class GpuBench(unittest.TestCase):
    def run_mode(self, *words, stdin="", **environment):
        result = bench(*words, *ONCE, stdin=stdin, **environment)
        self.assertEqual((result.returncode, result.stderr if "--turns" not in words else ""), (0, ""), result.stdout)
        return result.stdout

    def positive(self, text):
        self.assertGreater(float(text), 0)

    def test_copy(self):
        rows = rows_of(self.run_mode("copy", "--mib", 1))
        if DEVICE == "cuda":
            for name in ["from the host", "to the host", "each way, both at once"]:
                self.positive(rows[name][0])
        for name in ["copy, by the device", "copy, by a kernel", "read", "write", "product of 256 cubed, TFLOP/s"]:
            self.positive(rows[name][0])

    def test_each_product_of_a_model(self):
        rows = rows_of(self.run_mode("gemm", "--case", "tiny_gpt", "--batch", 3))
        for layer, shape in {"QKV": (48, 16), "attention projection": (16, 16), "FC1": (64, 16), "FC2": (16, 64),
                             "head": (40, 16)}.items():
            out, inner = map(str, shape)
            forward, gradient = f"{layer} forward", f"{layer} input gradient"
            self.assertEqual(rows[forward + (", with GELU" if layer == "FC1" else "")][:3], ["24", out, inner])
            self.assertEqual(rows[f"{layer} weight gradient"][:3], [out, inner, "24"])
            self.assertEqual(rows[gradient + (", with GELU" if layer == "FC2" else "")][:3], ["24", inner, out])
        for row in rows.values():
            self.assertNotIn("0", row[3:4])
        self.assertEqual(len(rows), 1 + 5 * 3 + 2 + 1)  # a heading, products, two without GELU, the sum

    @unittest.skipUnless(DEVICE == "cuda", "algorithms are chosen on GPUs")
    def test_tuned_products(self):
        rows = rows_of(self.run_mode("gemm", "--case", "tiny_gpt", "--choose"))
        for name, row in rows.items():
            if re.match("QKV|attention|FC|head", name):
                self.positive(row[3])  # of the fastest, and of the first
                self.positive(row[4])
        self.positive(rows_of(self.run_mode("step", "--case", "tiny_gpt", "--choose"))["median ms"][0])

    def test_each_kernel_of_a_model(self):
        rows = rows_of(self.run_mode("kernels", "--case", "tiny_gpt"))
        self.assertEqual(set(rows), {"kernel", *GPT})
        llama = rows_of(self.run_mode("kernels", "--case", "tiny_llama", "--precision", "f32"))
        self.assertEqual(set(llama), {"kernel", *GPT} - {name for name in GPT if "GELU" in name or "bias" in name}
                         | {"RoPE forward", "RoPE backward", "SwiGLU forward", "SwiGLU backward"})
        for name, row in [*rows.items(), *llama.items()]:
            if name != "kernel":
                self.positive(row[0])
        # bf16, 2 x 8 rows of 16: x and y, and two f32 numbers for each row.
        self.assertEqual(float(rows["norm forward, the first"][1]), (2 * 16 * 16 * 2 + 16 * 4 * 2) / 1e9)

    def test_attention(self):
        rows = rows_of(self.run_mode("attention", "--shape", "2,9,4,2,8"))
        for value in rows["2, 9, 4, 2, 8"]:
            self.positive(value)

    def test_steps_of_each_kind_of_model(self):
        for case, kind in [("tiny_gpt", "tokens/s"), ("tiny_llama", "tokens/s"), ("tiny_resnet", "images/s")]:
            text = self.run_mode("step", "--case", case, "--profile", *(["--recompute"] if case == "tiny_gpt" else []))
            rows = rows_of(text)
            for name in ["median ms", kind, "model TFLOP/s", "host enqueues a step in, ms", "peak of tensors, GiB"]:
                self.positive(rows[name][0])
            product = "conv2d" if kind == "images/s" else "product"
            for folder in [product, "cross_entropy", "optim"]:
                self.positive(rows[folder][0])
            # The calls add up to the whole.
            calls = [row[2] for name, row in rows.items() if re.match(r"\w+/\w+\.\w+:\d+ ", name)]
            self.assertAlmostEqual(sum(map(float, calls)), float(rows["all"][1]), delta=0.5)

    @unittest.skipUnless(DEVICE == "cuda", "graphs are for GPUs")
    def test_a_step_as_one_graph(self):
        text = self.run_mode("step", "--case", "tiny_gpt", "--graph", TANDEM_MEMORY_CACHE="1")
        self.assertIn(", one graph", text.splitlines()[0])
        self.positive(rows_of(text)["median ms"][0])

    @unittest.skipUnless(DEVICE == "cuda", "offload is for GPUs")
    def test_steps_that_offload(self):
        for words in [["optimizer"], ["activations", "--recompute"], ["both", "--recompute"]]:
            rows = rows_of(self.run_mode("step", "--case", "tiny_gpt", "--offload", *words))
            for name in ["median ms", "copied each way, GB", "link, both ways at once, GB/s"]:
                self.positive(rows[name][0])
            self.assertGreaterEqual(float(rows["waiting for copies, ms"][0]), 0)
            self.assertIn("copies hidden", rows)

    def test_turns(self):
        lines = self.run_mode("step", "--case", "tiny_gpt", "--turns", stdin="run 1\nrun 2\n").splitlines()
        self.assertEqual(len(lines), 2)
        self.positive(lines[0])

    def test_the_forecast_is_that_of_the_readme(self):
        result = bench("forecast", "--vocab", 50304)
        self.assertEqual(result.returncode, 0)
        with open(README) as file:
            readme = file.read().splitlines()
        missing = [line for line in result.stdout.splitlines() if line not in readme]
        self.assertEqual(missing, [], "run `tandem_gpu_bench forecast --vocab 50304` and put the tables into " + README)

    def test_bad_input(self):
        for words, pattern in [
                ([], 'no mode ""; --help lists them'), (["fly"], 'no mode "fly"'), (["step", "--fly", 1], "there is no option --fly"),
                (["step", "--batch"], "--batch has no value"), (["step", "--batch", "0"], "--batch 0: must be a number from 1"),
                (["step", "--batch", "2x"], "--batch 2x: must be"), (["step", "--runs", 1 << 40], "--runs .*: must be a number"),
                (["step", "--case", "gpt5"], "--case gpt5: there are gpt2_124m, gpt2_350m, .*resnet20"),
                (["gemm", "--case", "resnet20"], "--case resnet20: gemm needs a transformer"),
                (["step", "--case", "resnet20", "--vocab", 7], "--vocab 7: resnet20 reads images"),
                (["step", "--precision", "f8"], "--precision f8: must be one of f32, bf16, fp16"),
                (["gemm", "--device", "cpu", "--choose"], "--choose: products on the CPU have no algorithms"),
                (["step", "--device", "cpu", "--graph"], "--graph: steps on the CPU are no CUDA graphs"),
                (["step", "--device", "cpu", "--offload", "both"], "--offload: it needs a GPU, and steps that are no CUDA graphs"),
                (["step", "--offload", "none"], "--offload none: must be one of optimizer, activations, both"),
                (["step", "--device", "tpu"], "--device tpu: must be one of cpu, cuda"),
                (["attention", "--shape", "1,2,3"], "--shape 1,2,3: must be B,T,HEADS,KV_HEADS,WIDTH"),
                (["attention", "--shape", "1,2,3,2,8"], ".*where KV_HEADS divides HEADS")]:
            result = bench(*words)
            self.assertEqual((result.returncode, result.stdout), (2, ""), words)
            self.assertRegex(result.stderr, f"^tandem_gpu_bench: {pattern}")
            self.assertEqual(result.stderr.count("\n"), 1)

    def test_no_gpu_is_an_error(self):
        result = bench("copy", "--device", "cuda", TANDEM_SIMT_DEVICES="0", CUDA_VISIBLE_DEVICES="")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertRegex(result.stderr, "^tandem_gpu_bench: (no GPU here: |--device cuda: built without CUDA).*\n$")


if __name__ == "__main__":
    unittest.main()
