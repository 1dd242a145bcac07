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
import subprocess

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

    def test_what_runs_cost(self):
        """The dollars of a run are those of its last start, and the table has them where a run knows them."""
        self.assertNotIn("usd", self.shown("inspect", self.path("runs")))
        prices = ["--run.usd_per_node_hour", "360000"]
        self.train("priced", "--train.steps", "10", *prices, "--run.dir", self.path("priced"))
        self.train("priced", "--train.steps", "20", *prices, "--run.dir", self.path("priced"))
        folder = self.path("priced/priced")
        lines = [line["usd"] for line in metrics(folder) if "usd" in line]
        self.assertEqual(lines, sorted(lines))
        with open(os.path.join(folder, "report.json")) as file:
            starts = [start["usd"] for start in json.load(file)["starts"]]
        self.assertLess(starts[0], starts[1])
        self.assertEqual(json.loads(self.shown("inspect", folder, "--json"))["usd"], starts[1])
        self.assertIn(f"cost        {starts[1]:.2f} dollars\n", self.shown("inspect", folder))
        self.assertRegex(self.shown("inspect", self.path("priced")), fr"(?m) usd$[\s\S]*^priced .* {starts[1]:.2f}$")

    def test_a_run_that_goes_on_is_running(self):
        with open(os.path.join(self.run_folder("wide"), "lock"), "r+") as lock:
            fcntl.fcntl(lock, 37, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))  # 37: F_OFD_SETLK
            self.assertRegex(self.shown("inspect", self.path("runs")), r"(?m)^wide +running +10/40 ")
        self.assertRegex(self.shown("inspect", self.path("runs")), r"(?m)^wide +stopped +10/40 ")

    def test_a_run_whose_last_start_never_ended_died(self):
        report = os.path.join(self.run_folder("first"), "report.json")
        with open(report) as file:
            text = file.read()
        for state in ["stopped", "died"]:  # in the validation after the last step
            with open(report, "w") as out:
                out.write(text.replace('"state": "finished"', f'"state": "{state}"'))
            self.assertRegex(self.shown("inspect", self.path("runs")), fr"(?m)^first +{state} +20/20 ")
        with open(report, "w") as out:
            out.write(text)
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

    def test_a_path_of_any_bytes_has_a_json(self):
        odd = os.fsdecode(os.path.join(os.fsencode(self.path("odd")), b"r\xe9n"))
        shutil.copytree(self.run_folder("first"), odd)
        for command, key in [("inspect", "path"), ("eval", "checkpoint")]:
            self.assertIn("/r\ufffdn", json.loads(self.shown(command, odd, "--json"))[key])
        shutil.copy(self.text, os.path.join(odd, "text.h5"))
        estimated = self.shown("estimate", "--model.width", "32", "--data.path", os.path.join(odd, "text.h5"), "--json")
        self.assertIn("/r\ufffdn/", json.loads(estimated)["data"])
        shutil.rmtree(self.path("odd"))

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

    def test_output_that_is_lost_is_an_error(self):
        first, wide = self.run_folder("first"), self.run_folder("wide")
        for command in [["inspect", first], ["inspect", first, "--json"], ["inspect", self.path("runs")], ["inspect", self.text],
                        ["compare", first, wide], ["eval", "--checkpoint", first, "--json"],
                        ["generate", "--checkpoint", first, "--tokens", "3"], ["generate", "--checkpoint", first, "--tokens", "3", "--json"],
                        ["estimate", "--data.path", self.text, *tandem_program.TINY, "--json"],
                        ["train", "--check", "--data.path", self.text]]:
            with open("/dev/full", "w") as full:
                result = subprocess.run([tandem_program.TANDEM, *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (DATA, 1), result.stderr)
            self.assertRegex(result.stderr, "^tandem: standard output: ")

    def test_a_folder_that_cannot_be_read_hides_no_other(self):
        runs = self.path("some")
        shutil.copytree(self.run_folder("first"), os.path.join(runs, "good"))
        for name in ["garbage", "pipe", "loop"]:
            os.makedirs(os.path.join(runs, name))
        with open(os.path.join(runs, "garbage/config.cfg"), "wb") as file:
            file.write(b"\0\xff[[[\n" * 50)
        shutil.copy(os.path.join(runs, "good/config.cfg"), os.path.join(runs, "pipe"))
        os.mkfifo(os.path.join(runs, "pipe/metrics.jsonl"))
        os.symlink("config.cfg", os.path.join(runs, "loop/config.cfg"))
        os.symlink("itself", os.path.join(runs, "itself"))
        result = self.check(run("inspect", runs, timeout=20))
        self.assertEqual([line.split()[0] for line in result.stdout.splitlines()[:3] if line], ["run", "good"])
        for name in ["garbage", "pipe", "loop", "itself"]:
            self.assertRegex(result.stderr, re.compile(f"^tandem: passed over {runs}/{name}: ", re.MULTILINE))
        self.assertLess(max(map(len, result.stderr.splitlines())), 401)

    def test_text_of_strangers_commands_no_terminal(self):
        evil = "evil\x1b]0;title\x07\x1b[2J\r\n\x9btandem: all is well"
        folder = os.path.join(self.path("strange"), evil)
        shutil.copytree(self.run_folder("first"), folder)
        with open(os.path.join(folder, "config.cfg")) as file:
            text = file.read()
        with open(os.path.join(folder, "config.cfg"), "w") as file:
            file.write(re.sub(r"^kind = gpt$", "kind = \x1b[31mgpt", text, flags=re.MULTILINE))
        for command in [["inspect", folder], ["inspect", self.path("strange")], ["compare", folder, self.run_folder("first")]]:
            result = subprocess.run([tandem_program.TANDEM, *command], capture_output=True, timeout=60)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(b"\\x1B", result.stdout)
            shown = (result.stdout + result.stderr).decode()
            self.assertEqual([c for c in shown if (c < " " and c != "\n") or "\x7f" <= c < "\xa0"], [])
            self.assertNotRegex(shown, "(?m)^tandem: all")

    def test_a_line_break_in_a_file_begins_no_line(self):
        path = self.path("forged/tokenizer.json")
        os.makedirs(os.path.dirname(path))
        with open(path, "w") as file:
            json.dump({"model": {"type": "x\ntandem: finished"}}, file)
        result = run("prepare", "text", "--input", self.text, "--output", self.path("none.h5"), "--tokenizer", os.path.dirname(path))
        self.assert_one_line(self.check(result, DATA), r"model x\\x0Atandem: finished is not supported")
        report = shutil.copytree(self.run_folder("first"), self.path("forged/run")) + "/report.json"
        with open(report) as file:
            text = file.read()
        with open(report, "w") as file:
            file.write(text.replace('"wire": {}', '"wire": {"x\\ntandem: finished": 0}'))
        self.assert_one_line(self.check(run("inspect", "--ranks", os.path.dirname(report)), DATA), r"no x\\x0Atandem: finished is known")

    def test_generated_text_commands_no_terminal(self):
        text, dataset = self.path("escapes.txt"), self.path("escapes.h5")
        with open(text, "w") as file:
            file.write("\x1b[2J" * 400)
        self.check(run("prepare", "text", "--input", text, "--output", dataset, "--tokenizer", "char"))
        self.train("escapes", "--run.dir", self.path("apart"), "--train.steps", "2", data=dataset)
        command = [tandem_program.TANDEM, "generate", "--checkpoint", self.path("apart/escapes"), "--prompt", "J", "--tokens", "60"]
        def generated(**output):
            result = subprocess.run(command, **output, stderr=subprocess.PIPE, timeout=60)
            self.assertEqual(result.returncode, 0, result.stderr)
            return result.stdout
        as_it_is = generated(stdout=subprocess.PIPE)  # a file gets what the model says
        self.assertIn(b"\x1b", as_it_is)
        ours, theirs = os.openpty()
        generated(stdout=theirs)
        os.close(theirs)
        on_terminal = os.read(ours, 4096)
        os.close(ours)
        # A file does not get the prompt either.
        self.assertEqual(on_terminal.replace(b"\r", b""), b"J" + as_it_is.replace(b"\x1b", b"\\x1B"))

    def test_a_line_has_at_most_400_characters(self):
        for word in ["c" * 100_000, "é" * 50_000, "\x1b" * 30_000]:
            result = run("prepare", "text", "--input", self.text, "--output", self.path("none.h5"), "--tokenizer", word)
            self.assert_one_line(self.check(result, DATA), r"^tandem: .*\.\.\..*")
            [line] = result.stderr.splitlines()
            self.assertLess(len(line.encode()), 401)
            self.assertGreater(len(line.encode()), 390)


if __name__ == "__main__":
    tandem_program.main()
