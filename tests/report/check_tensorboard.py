#!/usr/bin/env python3
"""TensorBoard itself, from PyPI for the moment, reads what runs write: scalars, texts, pictures, histograms and HParams.

    check_tensorboard.py PATH_TO_TANDEM [unittest arguments]

Part of tests/nightly.sh, because it needs a network for PyPI. It runs tensorboard_reads.py too.
"""
import json
import os
import re
import subprocess
import sys
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "program"))
import tandem_program
from tandem_program import Workspace, metrics

# Prints as JSON what its EventAccumulator has of a folder.
READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import tensor_util
kinds = ("scalars", "images", "histograms", "tensors", "compressedHistograms")
everything = EventAccumulator(sys.argv[1], {kind: 0 for kind in kinds})
everything.Reload()
tags = everything.Tags()
def hparams(tag):
    return plugin_data_pb2.HParamsPluginData.FromString(everything.SummaryMetadata(tag).plugin_data.content)
start = hparams("_hparams_/session_start_info").session_start_info.hparams
print(json.dumps({
    "scalars": {tag: [(e.step, e.value) for e in everything.Scalars(tag)] for tag in tags["scalars"]},
    "texts": {tag: [(e.step, tensor_util.make_ndarray(e.tensor_proto)[0].decode()) for e in everything.Tensors(tag)]
              for tag in tags["tensors"] if tag.startswith("samples/")},
    "pictures": {tag: [(e.step, e.height, e.width, e.encoded_image_string[:4].hex()) for e in everything.Images(tag)]
                 for tag in tags["images"]},
    "histograms": {tag: [(e.step, h.num, h.min, h.max, sum(h.bucket)) for e in everything.Histograms(tag)
                         for h in [e.histogram_value]] for tag in tags["histograms"]},
    "hparams": {key: getattr(value, value.WhichOneof("kind")) for key, value in start.items()},
    "status": hparams("_hparams_/session_end_info").session_end_info.status}))
"""


class TensorBoard(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.python = os.environ.get("TANDEM_TENSORBOARD_PYTHON")  # one that has TensorBoard
        if not cls.python:
            subprocess.run(["/usr/bin/python3", "-m", "venv", cls.path("venv")], check=True)
            cls.python = cls.path("venv/bin/python")
            subprocess.run([cls.python, "-m", "pip", "install", "--quiet", "tensorboard", "setuptools<81"], check=True)

    def read(self, name):
        done = subprocess.run([self.python, "-c", READ, self.run_folder(name)], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_a_language_model(self):
        settings = ["--train.eval_every", "4", "--log.sample_every", "1", "--log.histograms", "true"]
        for steps in ("8", "12"):  # two starts
            self.train("words", *settings, "--train.steps", steps, ranks=2)
        seen = self.read("words")
        lines = [line for line in metrics(self.run_folder("words")) if "loss" in line]
        self.assertEqual([step for step, _ in seen["scalars"]["train/loss"]], [line["step"] for line in lines])
        for (_, value), line in zip(seen["scalars"]["train/loss"], lines):
            self.assertAlmostEqual(value, line["loss"], delta=2**-24 * line["loss"])  # f32 has 24 bits
        wanted = ["lr", "grad_norm", "step_ms", "tokens_per_s", "mfu", "epoch", "tokens", "wire_bytes", "exposed_comm_ms",
                  "peak_bytes", "slowest/ratio", "wire/all_reduce/inside", "memory/parameters"]
        self.assertEqual([tag for tag in wanted if f"train/{tag}" not in seen["scalars"]], [])
        self.assertEqual([step for step, _ in seen["scalars"]["val/perplexity"]], [4, 8, 12])
        self.assertIn("checkpoint/write_ms", seen["scalars"])
        self.assertEqual([step for step, _ in seen["texts"]["samples/text"]], [4, 8, 12])
        # The tokenizer has only the letters of the text; each sample has 100 of them, in a block of code.
        for _, text in seen["texts"]["samples/text"]:
            self.assertEqual(len(text.replace("\n    ", "\n")) - 4, 100, text)
            self.assertRegex(text, r"^    [a-z \n]*$")
        with open(self.text_file) as file:
            size = 32 * len(set(file.read()))  # width x characters
        for kind in ("weights", "gradients"):
            rows = seen["histograms"][kind + "/wte"]
            self.assertEqual([row[0] for row in rows], [4, 8, 12])
            for _, count, least, most, together in rows:
                self.assertEqual((count, together), (size, size))
                self.assertLess(least, most)
        self.assertEqual((seen["hparams"]["optim.lr"], seen["hparams"]["model.kind"], seen["hparams"]["dist.overlap"]),
                         (0.001, "gpt", True))
        self.assertEqual(seen["status"], 1)

    def test_an_image_model(self):
        self.train("pictures", "--model.kind", "mlp", "--train.eval_every", "10", "--log.sample_every", "1", data=self.images)
        seen = self.read("pictures")
        # Twelve of 16 a batch: two rows, of eight and of four, each of 32 pixels in a frame.
        self.assertEqual(seen["pictures"]["samples/predictions"],
                         [[step, 2 * 36, 8 * 36, b"\x89PNG".hex()] for step in (10, 20)])
        tables = seen["texts"]["samples/predictions_table"]
        self.assertEqual([len(re.findall(r"^\| \d", text, re.MULTILINE)) for _, text in tables], [12, 12])

    def test_the_server(self):
        """Runs have their own names, and the HParams tab has their settings and last figures."""
        for name, lr in [("slow", "0.001"), ("quick", "0.01")]:
            self.train(name, "--optim.lr", lr, data=self.text)
        command = [self.python, "-m", "tensorboard.main", "--logdir", self.path("runs"), "--port", "0", "--load_fast", "false"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        address = next(found[0] for found in (re.search(r"http://[^/ ]+/", line) for line in server.stderr) if found)
        address = re.sub("//[^:/]+:", "//127.0.0.1:", address)

        def ask(path, body=None):
            kind = {"Content-Type": "application/json"}
            request = urllib.request.Request(address + path, body and json.dumps(body).encode(), kind)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        deadline = time.monotonic() + 60
        while not {"slow", "quick"} <= set(ask("data/runs")):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.5)
        self.assertEqual([name for name in ask("data/runs") if "/" in name or name == "."], [])
        experiment = ask("data/plugin/hparams/experiment", {"experimentName": ""})
        self.assertIn("optim.lr", [info["name"] for info in experiment["hparamInfos"]])
        columns = [{"hparam": "optim.lr"}, {"metric": {"group": "", "tag": "val/loss"}}]
        groups = ask("data/plugin/hparams/session_groups", {
            "experimentName": "", "startIndex": 0, "sliceSize": 100, "colParams": columns,
            "allowedStatuses": ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]})["sessionGroups"]
        rates, last = {}, {}
        for group in groups:
            (session,) = group["sessions"]
            rates[session["name"]] = group["hparams"]["optim.lr"]
            last[session["name"]] = {value["name"]["tag"]: value["value"] for value in session["metricValues"]}
        self.assertEqual((rates["slow"], rates["quick"]), (0.001, 0.01))
        for name in ("slow", "quick"):
            expected = [line["val_loss"] for line in metrics(self.run_folder(name)) if "val_loss" in line][-1]
            self.assertAlmostEqual(last[name]["val/loss"], expected, delta=2**-23 * expected)

    def test_the_format(self):
        program = os.path.join(os.path.dirname(tandem_program.TANDEM), "tests", "test_tensorboard")
        done = subprocess.run([self.python, os.path.join(HERE, "tensorboard_reads.py"), program], capture_output=True,
                              text=True, env={**os.environ, "TANDEM_REQUIRE_PARITY": "1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    tandem_program.main()
