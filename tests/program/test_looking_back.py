#!/usr/bin/env python3
"""What a user looks back on: `tandem inspect` of runs, `tandem compare`, and the JSON of `eval` and `generate`.

    test_looking_back.py PATH_TO_TANDEM [unittest arguments]
"""
import fcntl
import json
import os
import re
import shutil
import struct

import tandem_program
from tandem_program import CONFIG, DATA, Workspace, losses, metrics, run


class LookingBack(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train(cls, "first", "--train.eval_every", "10")
        cls.train(cls, "wide", "--model.width", "64", "--train.steps", "10")
        with open(os.path.join(cls.run_folder(cls, "wide"), "config.cfg")) as file:  # as if it had been stopped
            text = file.read()
        with open(os.path.join(cls.run_folder(cls, "wide"), "config.cfg"), "w") as out:
            out.write(text.replace("steps = 10\n", "steps = 40\n"))
        os.makedirs(cls.path("runs/not a run"))

    def shown(self, *arguments):
        return self.check(run(*arguments)).stdout

    def test_summary_of_a_run(self):
        shown = self.shown("inspect", self.run_folder("first"))
        self.assertLessEqual(len(shown.splitlines()), 14)
        best = min((line for line in metrics(self.run_folder("first")) if "val_loss" in line), key=lambda line: line["val_loss"])
        for pattern in [r"^run +\S+runs/first: finished, 20 of 20 steps, \d+\S* ago$",
                        fr"^loss +{losses(self.run_folder('first'))[20]:.4f} at step 20$",
                        fr"^val_loss .*; best {best['val_loss']:.4f} at step {best['step']}$",
                        r"^model +gpt: 2 layers, 2 heads, width 32, context 16$", r"^step +20 \(sample 240\), written by 1 rank$",
                        r"^speed +\S+ tokens/s, \S+ ms a step$", r"^checkpoint +\S+step-00000020 \(\S+ KiB\)$"]:
            self.assertRegex(shown, re.compile(pattern, re.MULTILINE))
        self.assertNotIn("param/", shown)
        self.assertIn("param/", self.shown("inspect", self.run_folder("first"), "--tensors"))
        newest = os.path.join(self.run_folder("first"), "checkpoints/step-00000020")
        self.assertNotIn("param/", self.shown("inspect", newest))
        self.assertIn("param/", self.shown("inspect", "--tensors", newest))
        self.assertIn("peak memory", self.shown("inspect", "--ranks", self.run_folder("first")))

    def test_table_of_runs(self):
        lines = self.shown("inspect", self.path("runs")).splitlines()
        self.assertLessEqual(max(map(len, lines)), 80)
        self.assertEqual([line.split()[:3] for line in lines[:3]],
                         [["run", "state", "steps"], ["first", "finished", "20/20"], ["wide", "stopped", "10/40"]])
        self.assertEqual(lines[3], "")
        first, wide = json.loads(self.shown("inspect", self.path("runs"), "--json"))
        self.assertEqual((first["name"], first["state"], first["step"], first["steps"]), ("first", "finished", 20, 20))
        self.assertEqual(first["loss"], {"step": 20, "value": losses(self.run_folder("first"))[20]})
        validations = [line["val_loss"] for line in metrics(self.run_folder("first")) if "val_loss" in line]
        self.assertEqual(first["best"]["value"], min(validations))
        size = sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(self.run_folder("first"))
                   for name in names)
        self.assertEqual(first["bytes"], size)
        self.assertLess(first["age_s"], 600)
        self.assertEqual(json.loads(self.shown("inspect", self.run_folder("wide"), "--json"))["state"], "stopped")
        self.assertEqual(wide["state"], "stopped")

    def test_a_run_that_goes_on_is_running(self):
        with open(os.path.join(self.run_folder("wide"), "lock"), "r+") as lock:
            fcntl.fcntl(lock, 37, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))  # 37: F_OFD_SETLK
            self.assertRegex(self.shown("inspect", self.path("runs")), r"(?m)^wide +running +10/40 ")
        self.assertRegex(self.shown("inspect", self.path("runs")), r"(?m)^wide +stopped +10/40 ")

    def test_a_run_whose_last_start_never_ended_died(self):
        report = os.path.join(self.run_folder("wide"), "report.json")
        with open(report) as file:
            text = file.read()
        for damaged, state in [(text.replace('"state": "finished"', '"state": "running"'), "died"),
                               (text.replace('"state": "finished"', '"state": 3'), "stopped"),
                               (text.replace('"starts"', '"stars"'), "stopped"), ("[]", "stopped"), (text[:-9], "stopped")]:
            self.assertNotEqual(damaged, text)
            with open(report, "w") as out:
                out.write(damaged)
            self.assertRegex(self.shown("inspect", self.path("runs")), fr"(?m)^wide +{state} +10/40 ")
        with open(report, "w") as out:
            out.write(text)

    def test_damaged_and_unfinished_runs_do_not_stop_the_table(self):
        shutil.copytree(self.run_folder("first"), self.path("others/cut"))
        with open(self.path("others/cut/metrics.jsonl"), "r+") as log:
            log.truncate(len(log.read()) - 9)
        os.makedirs(self.path("others/new"))
        shutil.copy(os.path.join(self.run_folder("first"), "config.cfg"), self.path("others/new"))
        os.makedirs(self.path("others/odd"))
        with open(self.path("others/odd/metrics.jsonl"), "w") as out:
            out.write('{"step": 1, "val_loss": 3}\n{"step": 2, "val_loss": 2}\n[1]\n{"step": 3, "val_loss": 2.5}\n{"step": 4, "loss": null}\n')
        odd = json.loads(self.shown("inspect", self.path("others/odd"), "--json"))
        self.assertEqual((odd["best"], odd["val_loss"], odd["loss"], odd["step"], odd["state"]),
                         ({"step": 2, "value": 2}, {"step": 3, "value": 2.5}, None, 4, "stopped"))
        os.remove(self.path("others/odd/metrics.jsonl"))
        self.assertRegex(self.shown("inspect", self.path("others")), r"\ncut +finished +20/20 .*\nnew +new +0/20 +- +- ")
        self.assertIn("none yet", self.shown("inspect", self.path("others/new")))
        shutil.rmtree(self.path("others"))

    def test_compare(self):
        shown = self.shown("compare", self.run_folder("first"), self.run_folder("wide") + "/")
        self.assertLessEqual(max(map(len, shown.splitlines())), 80)
        settings = shown[:shown.index("results")]
        self.assertEqual(re.findall(r"(?m)^  (\S+) +(\S+) +(\S+)$", settings),
                         [("model.width", "32", "64"), ("train.steps", "20", "40"), ("train.eval_every", "10", "0")])
        self.assertRegex(shown, r"(?m)^ +first +wide$")
        self.assertRegex(shown, r"(?m)^  steps +20 +10 of 40$")
        self.assertRegex(shown, fr"(?m)^  loss +{losses(self.run_folder('first'))[20]:.4f} +{losses(self.run_folder('wide'))[10]:.4f}$")
        curves = re.findall(r"\|([ \u2800-\u28ff]*)", shown)
        self.assertEqual(len(curves), 6)
        self.assertGreater(len("".join(curves[:3]).replace(" ", "")), 50)
        self.assertLess(max(map(len, curves[3:])), 30)  # ten of the twenty steps
        same = self.shown("compare", self.run_folder("first"), self.run_folder("first"))
        self.assertIn("settings: all the same", same)
        self.assertIn(self.run_folder("first")[-20:], same)  # two runs of one name have their paths

    def test_wrong_uses(self):
        first = self.run_folder("first")
        for arguments in [[], [first], [first] * 7]:
            self.assert_one_line(self.check(run("compare", *arguments), CONFIG), "takes 2 to 6 runs, not")
        self.assert_one_line(self.check(run("compare", first, self.folder), DATA), "no run here")
        newest = os.path.join(first, "checkpoints/step-00000020")
        for path, options in [(self.text, ["--tensors", "--ranks", "--json"]), (newest, ["--ranks", "--json"]),
                              (self.path("runs"), ["--tensors", "--ranks", "--verify"])]:
            for option in options:
                self.assert_one_line(self.check(run("inspect", path, option), CONFIG), f"{option} has no meaning for {path}, ")
        self.assert_one_line(self.check(run("inspect", first, "--json", "--ranks"), CONFIG), "--json has no meaning for .* together with")

    def test_no_gpu(self):
        for command in ["eval", "generate"]:
            result = run(command, self.run_folder("first"), "--device", "cuda", environment={"CUDA_VISIBLE_DEVICES": ""})
            self.assert_one_line(self.check(result, CONFIG), "device = cuda.* (finds no GPU here|has no CUDA).*use device = cpu")

    def test_eval_and_generate_as_json(self):
        first = self.run_folder("first")
        text = self.shown("eval", first, "--threads", "1")
        evaluated = json.loads(self.shown("eval", first, "--threads", "1", "--json"))
        self.assertEqual(f"{evaluated['val_loss']:.6f}", re.search(r"val_loss +(\S+)", text)[1])
        self.assertEqual(f"{evaluated['perplexity']:.4f}", re.search(r"perplexity +(\S+)", text)[1])
        self.assertEqual((evaluated["step"], str(evaluated["targets"])), (20, re.search(r"targets +(\S+)", text)[1]))
        options = ["generate", first, "--prompt", "the ", "--tokens", "30", "--samples", "3"]
        generated = json.loads(self.shown(*options, "--json"))
        texts = [sample["text"] for sample in generated["samples"]]
        self.assertEqual("\n---------------\n".join(texts) + "\n", self.shown(*options))
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(texts[0] + "\n", self.shown(*options[:-2]))  # the first is what one sample gives
        for batch in ["1", "2"]:
            self.assertEqual("\n---------------\n".join(texts) + "\n", self.shown(*options, "--batch", batch))
        stops = [text[10:13] for text in texts[1:]]  # the texts end one after the other
        cut = [min([text.find(stop) for stop in stops if stop in text], default=len(text)) for text in texts]
        self.assertEqual("\n---------------\n".join(text[:end] for text, end in zip(texts, cut)) + "\n",
                         self.shown(*options, "--stop", stops[0], "--stop", stops[1]))
        self.assertEqual(([sample["tokens"] for sample in generated["samples"]], generated["tokens"]), ([30] * 3, 90))
        self.assertAlmostEqual(generated["tokens_per_s"], 90 / generated["seconds"], delta=1e-6 * generated["tokens_per_s"])


if __name__ == "__main__":
    tandem_program.main()
