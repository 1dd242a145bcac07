#!/usr/bin/env python3
"""launch/scaling.py: with a stand-in for the program whose times are known, and one small study with the real one.

    test_scaling.py PATH_TO_TANDEM [unittest arguments]
"""
import html
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "program"), os.path.join(HERE, "studies")]
from scaling_studies import SCALING, STAND_IN, Studies, check_report
import tandem_program
from tandem_program import MPI_ENV, SHAPES, Workspace, write_program


class Truth(Studies):
    EFFICIENCY = {1: 1, 4: 0.9, 8: 0.7}

    def measure_truth(self, **truth):
        self.say_truth(efficiency=self.EFFICIENCY, launches=18, **truth)
        return self.measure("--ranks", 1, 4, 8, "--node-size", 4, "--usd-per-node-hour", 36)

    def test_a_machine_that_slows_moves_no_efficiency(self):
        self.measure_truth(drift=0.2)
        times = {name: record["measured"]["step_ms"] for name, record in self.records().items()}
        self.assertGreater(max(times.values()) / min(times.values()), 1.2 / 0.7 * 0.98, "the machine did slow down")
        for ranks, true in self.EFFICIENCY.items():
            self.assertAlmostEqual(self.efficiency()[ranks], true, delta=0.02)

    def test_every_figure(self):
        self.measure_truth()
        results = self.results()
        by_ranks = {case["ranks"]: case for case in results["cases"]}
        for ranks, true in self.EFFICIENCY.items():
            case, step_ms = by_ranks[ranks], 160 / true
            self.assertAlmostEqual(case["step_ms"]["median"], step_ms, delta=1e-6)
            self.assertAlmostEqual(case["throughput"]["median"], 16 * ranks * 1024 / step_ms * 1000, delta=0.1)
            self.assertAlmostEqual(case["exposed_comm_ms"]["median"], step_ms / 20, delta=1e-6)
            self.assertEqual(case["between_bytes"], 1000)
            self.assertEqual(case["parts_ms"].keys(), {"compute", "communication", "data", "optimizer", "copy", "saving"})
            self.assertAlmostEqual(sum(case["parts_ms"].values()), step_ms, delta=1e-6)
            self.assertEqual(case["slowest"], [{"rank": ranks - 1, "host": "here", "share": 1, "ratio": 1.02}] * 6)
            own_ms = [round(0.93 * step_ms, 3)] * (ranks - 1) + [round(0.95 * step_ms, 3)]
            self.assertEqual(case["heat"], {"launch": 3, "first_step": 11, "own_ms": [own_ms] * 20})
            # 36 dollars a node and hour are a cent a second.
            usd = 0.01 * (2 if ranks == 8 else 1) * 1e9 / case["throughput"]["median"]
            self.assertAlmostEqual(case["usd"]["median"], usd, delta=1e-6)
            self.assertEqual(case["step_ms"]["confidence"], 1 - 2 / 64)
        self.assertEqual((results["fastest"], results["cheapest"], results["per"]), ("r8-b128", "r4-b64", "billion tokens"))
        self.assertEqual(self.efficiency("1 node"), {4: 1, 8: self.efficiency("1 node")[8]})
        self.assertAlmostEqual(self.efficiency("1 node")[8], 0.7 / 0.9, delta=1e-6)
        self.assertEqual([(row["base"], row["case"]) for row in results["efficiency"] if row["first_hop"]], [("r4-b64", "r8-b128")])
        self.assertEqual(os.listdir(self.study("runs", "r1-b16-l1")).count("checkpoints"), 0)

    def test_losses_that_differ(self):
        self.say_truth(loss={"r2-": 0.01})
        self.measure("--mode", "strong", "--launches", 1)
        findings = {case["ranks"]: case["verdict"]["finding"] for case in self.results()["cases"]}
        self.assertEqual(findings[2], "trains something else")
        self.assertNotEqual(findings[1], "trains something else")
        self.assertEqual(self.results()["fastest"], "r1-b16", "though 2 ranks took half the time")

    def test_a_gpu_whose_peak_is_not_known(self):
        """There is no MFU, and all else is as ever."""
        self.say_truth(mfu=None)
        self.measure("--launches", 2)
        self.assertEqual([record["measured"]["mfu"] for record in self.records().values()], [None] * 4)
        self.assertEqual([(case["mfu"], case["verdict"]["finding"]) for case in self.results()["cases"]], [(None, "a baseline"), (None, "scales well")])
        self.assertEqual(self.read("report.html").count('<td class="n">not known</td>'), 2)
        check_report(self, self.study())

    def test_islands(self):
        """A launch is the mean of steps 11 to 30, with the exchanges of steps 20 and 30, and without the last step."""
        self.measure("--launches", 1, "--keep", 25, "--dist.islands", 2, "--dist.sync_every", 10)
        for case in self.results()["cases"]:
            self.assertAlmostEqual(case["step_ms"]["median"], 160 + 10, delta=1e-6)
            self.assertAlmostEqual(case["exposed_comm_ms"]["median"], 170 / 20, delta=1e-6)
            self.assertAlmostEqual(sum(case["parts_ms"].values()), 170, delta=1e-6)
            self.assertEqual((case["wire_bytes"], case["between_bytes"]), (4100, 1100))
            self.assertEqual(case["units_a_step"], 1024 * case["global_batch"])

    def test_the_report_again(self):
        self.charts = True
        self.say_truth(noise=0.01)
        self.measure("--launches", 2, "--ranks", 1, 2, 4, "--node-size", 2)
        files = sorted(set(os.listdir(self.study())) - {"runs", "lock", "plan.json"})
        self.assertEqual(files, ["communication.svg", "efficiency-weak-1-node.svg", "efficiency-weak-1-rank.svg",
                                 "heat-r2-b32.svg", "heat-r4-b64.svg", "memory.svg", "parts.svg", "report.html", "results.csv", "results.json", "throughput-weak.svg",
                                 "traffic.svg"])
        before = {name: self.read(name) for name in files}
        for name in files:
            os.remove(self.study(name))
        subprocess.run([*SCALING, "report", self.study()], check=True, env=self.environment(), capture_output=True)
        self.assertEqual({name: self.read(name) for name in files}, before)
        check_report(self, self.study())

    def test_without_matplotlib(self):
        said = self.measure("--launches", 1)
        lack = "Charts were left out (No module named 'matplotlib'): pip install matplotlib"
        self.assertRegex(said, rf"\n{re.escape(lack)}\nreport +\S")
        self.assertEqual(sorted(set(os.listdir(self.study())) - {"runs", "lock", "plan.json"}), ["report.html", "results.csv", "results.json"])
        page = self.read("report.html")
        self.assertEqual((page.count(f"<p>{html.escape(lack)}</p>"), page.count("<svg"), page.count("<table>")), (1, 0, 5))
        check_report(self, self.study())


class GoingOn(Studies):
    def test_killed_at_random_and_repeated(self):
        pick = random.Random(17)
        words = ["--sweep", "dist.zero=0,2", "--launches", 3]
        self.say_truth(seconds=0.1)
        kept, kills = {}, 0
        while True:
            job = self.start(*words)
            try:
                output, errors = job.communicate(timeout=pick.uniform(0.3, 0.9) if kills < 6 else 120)
                self.assertEqual(job.returncode, 0, output + errors)
                break
            except subprocess.TimeoutExpired:
                job.send_signal(pick.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
                job.communicate()
                kills += 1
            now = self.records()
            self.assertEqual({name: now[name] for name in kept}, kept, "what was done is kept, and not measured again")
            kept = now
        self.assertGreaterEqual(kills, 2)
        names = {f"r{ranks}-b{16 * ranks}-dist.zero={zero}-l{launch}" for ranks in (1, 2) for zero in (0, 2)
                 for launch in (1, 2, 3)}
        self.assertEqual(set(self.records()), names)
        self.assertEqual({name: self.records()[name] for name in kept}, kept)
        self.assertEqual({case["step_ms"]["launches"] for case in self.results()["cases"]}, {3})
        before = self.started()
        self.assertLessEqual(len(before), len(names) + kills, "each kill costs at most the launch that ran")
        self.measure(*words)
        self.assertEqual(self.started(), before, "nothing is missing")
        self.measure(*words[:-1], 4)
        self.assertEqual(len(self.started()), len(before) + 4, "one launch more of each case")

    def test_a_signal_ends_it(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            self.say_truth(seconds=0.1)
            job = self.start("--launches", 3)
            before = len(self.records())
            while len(self.records()) == before:
                time.sleep(0.02)
            job.send_signal(number)
            output, errors = job.communicate(timeout=120)
            self.assertEqual(job.returncode, 85, output + errors)
            self.assertIn("launches missing; the same command goes on", output)
            self.assertTrue(os.path.exists(self.study("report.html")))
            self.assertEqual(sorted(os.listdir(self.study("runs"))), sorted(self.records()), "nothing of the launch that was stopped")
        processes = subprocess.run(["pgrep", "-f", self.folder], capture_output=True, text=True).stdout
        self.assertEqual(processes, "", "no launch is left")

    def test_failed_launches(self):
        self.say_truth(fail={"r1-b16-l2": 71, "r2-b32-l1": 64})
        said = self.measure("--launches", 3, code=71)
        self.assertIn("failed with 71: tandem: rank 1: the planted [1mfailure\n", said)
        self.assertIn("launch 2: 71, tandem: rank 1: the planted [1mfailure<", self.read("report.html"), "what it said")
        self.assertEqual(len(self.records()), 6, "the others went on")
        failed = {case["ranks"]: case["failed"] for case in self.results()["cases"]}
        self.assertEqual(failed[1], [{"launch": 2, "code": 71, "last_line": "tandem: rank 1: the planted [1mfailure"}])
        self.assertEqual(failed[2][0]["code"], 64)
        self.assertEqual(self.efficiency().keys(), {1, 2}, "block 3 has both")
        self.say_truth()
        self.measure("--launches", 3)
        failed = [name for name in self.started()[:6] if name in ("r1-b16-l2", "r2-b32-l1")]
        self.assertEqual(self.started()[6:], failed, "only these again")
        self.assertEqual({case["step_ms"]["launches"] for case in self.results()["cases"]}, {3})

    def test_all_launches_fail(self):
        self.say_truth(fail={"r1-b16-l1": 3, "r2-b32-l1": 71})
        self.measure("--launches", 1, code=71)
        self.assertEqual([case["verdict"]["finding"] for case in self.results()["cases"]], ["fails", "fails"])
        check_report(self, self.study())

    def test_damaged_files_of_launches(self):
        """A launch whose file was cut is launched again."""
        self.measure("--launches", 3)
        for name, text in [("r1-b16-l1", ""), ("r1-b16-l2", '{"case": "r1-b'), ("r2-b32-l3", "[]"), ("r2-b32-l1", "{}"),
                           ("r2-b32-l2", "[" * 200000)]:
            with open(self.study("runs", name, "launch.json"), "w") as out:
                out.write(text)
        before = self.started()
        self.measure("--launches", 3)
        self.assertEqual(sorted(self.started()[len(before):]), ["r1-b16-l1", "r1-b16-l2", "r2-b32-l1", "r2-b32-l2", "r2-b32-l3"])
        self.assertEqual({case["step_ms"]["launches"] for case in self.results()["cases"]}, {3})

    def test_a_damaged_plan(self):
        self.measure("--launches", 1)
        report = [*SCALING, "report", self.study()]
        for text in ["{}", "[]", "3", '{"cases": 3}', '{"cases": [{}], "request": 3}', "{", "[" * 200000, None]:
            os.remove(self.study("plan.json"))
            if text is None:
                os.mkfifo(self.study("plan.json"))
            else:
                with open(self.study("plan.json"), "w") as out:
                    out.write(text)
            for done in [subprocess.run(command, capture_output=True, text=True, cwd=self.folder, env=self.environment())
                         for command in [report, self.command("--launches", 2)]]:
                self.assertEqual((done.returncode, done.stdout), (3, ""), done.stderr)
                self.assertRegex(done.stderr, "^scaling: .*study.*\n$")

    def test_metrics_that_are_missing(self):
        said = self.measure("--launches", 1, "--launch", "env RANKS={ranks} true {command}", code=3)
        self.assertIn("metrics.jsonl", said)

    def test_another_number_of_ranks(self):
        said = self.measure("--launches", 1, "--launch", "env RANKS=2 ASKED={ranks} {command}", code=2)
        self.assertIn("  failed with 2: the run had 2 ranks, not 1: let the launcher start as many as {ranks} says\n", said)
        self.assertEqual([(case["ranks"], bool(case["step_ms"])) for case in self.results()["cases"]], [(1, False), (2, True)])

    def test_another_command_or_program(self):
        self.measure("--launches", 1)
        self.assertIn("keep was 20 and is 30", self.measure("--launches", 1, "--keep", 30, code=2))
        for width in (1, 2):
            with open(self.path("model.cfg"), "w") as out:
                out.write(f"[model]\nwidth = {width}\n")
            said = self.measure("--name", "third", "--launches", 1, "--config", "model.cfg", code=0 if width == 1 else 2)
        self.assertIn("runs/scaling/third holds a study of another command: config_digests was", said)
        write_program(self.path("program"), f'#!/bin/sh\nexec {shlex.quote(STAND_IN)} "$@"\n')
        self.measure("--name", "other", "--launches", 1, "--tandem", self.path("program"))
        with open(self.path("program"), "a") as out:
            out.write("# another build\n")
        said = self.measure("--name", "other", "--launches", 2, "--tandem", self.path("program"), code=2)
        self.assertIn("the program is another build than the one that runs/scaling/other was begun with", said)


class Training(Workspace):
    """The real program, started by launch/run.sh on 1 and 2 ranks of one thread."""

    def test_a_study(self):
        words = [*SCALING, "--name", "real", "--dir", self.path("studies"),
                 "--tandem", tandem_program.TANDEM, "--ranks", "1", "2", "--mode", "weak", "strong", "--launches", "1", "--keep", "20",
                 "--data.path", self.text, *SHAPES["gpt"], "--run.threads", "1", "--train.global_batch", "4"]
        done = self.check(subprocess.run(words, env=MPI_ENV, capture_output=True, text=True, timeout=300))
        folder = os.path.join(self.path("studies"), "real")
        with open(os.path.join(folder, "results.json")) as file:
            results = json.load(file)
        self.assertEqual([(case["ranks"], case["global_batch"], case["modes"]) for case in results["cases"]],
                         [(1, 4, ["weak", "strong"]), (2, 8, ["weak"]), (2, 4, ["strong"])], done.stdout)
        for case in results["cases"]:
            self.assertEqual(case["failed"], [])
            self.assertEqual(case["units_a_step"], 16 * case["global_batch"])
            for key in ("peak_bytes", "wire_bytes"):
                self.assertEqual(case[key], case["predicted"][key])
            self.assertFalse(case["loss_check"]["differs"], case["loss_check"])
            self.assertGreater(case["step_ms"]["median"], 0)
            self.assertTrue(any(line.startswith("machine ") for line in case["says"]))
        self.assertEqual(results["cases"][2]["loss_check"]["against"], results["cases"][0]["id"])
        check_report(self, folder)

    def test_a_plan_refuses_what_every_launch_would(self):
        """Launches have 60 steps and do not write to TensorBoard."""
        with open(self.path("views.cfg"), "w") as out:
            out.write("[log]\nhistograms = true\n")
        words = [*SCALING, "--plan", "--name", "refused", "--dir", self.path("studies"), "--tandem", tandem_program.TANDEM, "--ranks", "1",
                 "--data.path", self.text]
        views = ["--config", self.path("views.cfg")]
        for more, line in [(["--optim.schedule", "wsd", "--optim.decay_steps", "500"], "optim.decay_steps = 500 is above train.steps = 60"),
                           (views, "log.histograms = true writes to TensorBoard; set log.tensorboard = true")]:
            done = self.check(subprocess.run([*words, *more], capture_output=True, text=True), tandem_program.CONFIG)
            self.assertEqual(done.stderr, f"scaling: {line}\n")
        self.check(subprocess.run([*words, *views, "--log.tensorboard", "true"], capture_output=True, text=True))

    def test_tensor_parallelism_leaves_fewer_ranks_to_divide_a_batch(self):
        """Four ranks take the same samples: one such group has the batch of 2, and two have it, or twice of it."""
        words = [*SCALING, "--plan", "--name", "tensor", "--dir", self.path("studies"), "--tandem", tandem_program.TANDEM,
                 "--launch", "mpirun -np {ranks} {command}", "--ranks", "4", "8", "16", "--mode", "weak", "strong",
                 "--data.path", self.text, "--model.heads", "4", "--dist.tensor", "4", "--train.global_batch", "2"]
        said = self.check(subprocess.run(words, capture_output=True, text=True)).stdout
        self.assertEqual(re.findall(r"(?m)^(r\d+-b\d+): (.*?),", said),
                         [("r4-b2", "weak and strong"), ("r8-b4", "weak"), ("r16-b8", "weak"), ("r8-b2", "strong")])
        self.assertIn("\n  strong, 16 ranks: train.global_batch = 2 is not divisible by ranks / dist.tensor = 16 / 4 = 4; the least that is: 4\n", said)


if __name__ == "__main__":
    tandem_program.main()
