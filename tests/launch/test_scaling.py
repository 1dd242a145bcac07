#!/usr/bin/env python3
"""launch/scaling.py: with a stand-in for the program whose times are known, and one small study with the real one.

    test_scaling.py PATH_TO_TANDEM [unittest arguments]
"""
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program"))
import tandem_program
from tandem_program import MPI_ENV, SHAPES, Workspace

FOLDER = os.path.dirname(os.path.abspath(__file__))
LAUNCH = os.path.join(os.path.dirname(os.path.dirname(FOLDER)), "launch")
STAND_IN = os.path.join(FOLDER, "studies", "stand_in.py")
GOLDEN = os.path.join(FOLDER, "studies", "plan.txt")
sys.path.insert(0, LAUNCH)
import scaling.main
from scaling import prices

WITH_RANKS = "env RANKS={ranks} {command}"


class Studies(unittest.TestCase):
    """With the stand-in, in a folder of its own."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tandem test ")  # with spaces
        self.addCleanup(shutil.rmtree, self.folder)
        self.say_truth()

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def say_truth(self, **truth):
        with open(self.path("truth.json"), "w") as out:
            json.dump(truth, out)

    def command(self, *words):
        """Later words win over these."""
        usual = ["--name", "study", "--tandem", STAND_IN, "--launch", WITH_RANKS, "--ranks", "1", "2", "--keep", "20"]
        return [os.path.join(LAUNCH, "scaling.py"), *usual, *map(str, words)]

    def start(self, *words):
        environment = dict(os.environ, STAND_IN=self.path("truth.json"))
        job = subprocess.Popen(self.command(*words), cwd=self.folder, env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (job.kill(), job.communicate()))
        return job

    def measure(self, *words, code=0):
        """What it said."""
        job = self.start(*words)
        output, errors = job.communicate(timeout=120)
        self.assertEqual(job.returncode, code, output + errors)
        return output + errors

    def study(self, *names):
        return self.path("runs", "scaling", "study", *names)

    def read(self, *names):
        with open(self.study(*names)) as file:
            return file.read()

    def results(self):
        return json.loads(self.read("results.json"))

    def records(self):
        found = {}
        for name in os.listdir(self.study("runs")) if os.path.isdir(self.study("runs")) else []:
            if os.path.exists(self.study("runs", name, "launch.json")):
                found[name] = json.loads(self.read("runs", name, "launch.json"))
        return found

    def started(self):
        with open(self.path("started")) as file:
            return file.read().split()

    def efficiency(self, against="1 rank"):
        return {row["ranks"]: row["efficiency"]["median"] for row in self.results()["efficiency"] if row["against"] == against}


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
            self.assertEqual(case["parts_ms"].keys(), {"compute", "communication", "data", "optimizer", "saving"})
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

    def test_the_report_again(self):
        self.say_truth(noise=0.01)
        self.measure("--launches", 2, "--ranks", 1, 2, 4, "--node-size", 2)
        files = sorted(set(os.listdir(self.study())) - {"runs", "lock", "plan.json"})
        self.assertEqual(files, ["communication.svg", "efficiency-weak-1-node.svg", "efficiency-weak-1-rank.svg",
                                 "heat-r2-b32.svg", "heat-r4-b64.svg", "memory.svg", "parts.svg", "report.html", "results.csv", "results.json", "throughput-weak.svg",
                                 "traffic.svg"])
        before = {name: self.read(name) for name in files}
        for name in files:
            os.remove(self.study(name))
        subprocess.run([os.path.join(LAUNCH, "scaling.py"), "report", self.study()], check=True, capture_output=True)
        self.assertEqual({name: self.read(name) for name in files}, before)
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
        self.assertIn("failed with 71: tandem: rank 1: the planted failure", said)
        self.assertEqual(len(self.records()), 6, "the others went on")
        failed = {case["ranks"]: case["failed"] for case in self.results()["cases"]}
        self.assertEqual(failed[1], [{"launch": 2, "code": 71, "last_line": "tandem: rank 1: the planted failure"}])
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

    def test_metrics_that_are_missing(self):
        said = self.measure("--launches", 1, "--launch", "env RANKS={ranks} true {command}", code=3)
        self.assertIn("metrics.jsonl", said)

    def test_another_command_or_program(self):
        self.measure("--launches", 1)
        self.assertIn("keep was 20 and is 30", self.measure("--launches", 1, "--keep", 30, code=2))
        for width in (1, 2):
            with open(self.path("model.cfg"), "w") as out:
                out.write(f"[model]\nwidth = {width}\n")
            said = self.measure("--name", "third", "--launches", 1, "--config", "model.cfg", code=0 if width == 1 else 2)
        self.assertIn("runs/scaling/third holds a study of another command: config_digests was", said)
        with open(STAND_IN) as file, open(self.path("program"), "w") as out:
            out.write(file.read())
        os.chmod(self.path("program"), 0o755)
        self.measure("--name", "other", "--launches", 1, "--tandem", self.path("program"))
        with open(self.path("program"), "a") as out:
            out.write("# another build\n")
        said = self.measure("--name", "other", "--launches", 2, "--tandem", self.path("program"), code=2)
        self.assertIn("the program is another build than the one that runs/scaling/other was begun with", said)


class Plans(Studies):
    def test_golden_plan(self):
        """studies/plan.txt is what the plan looks like; TANDEM_WRITE_GOLDEN=1 writes it anew."""
        with open(self.path("small.cfg"), "w") as out:
            out.write("[train]\nglobal_batch = 80  # samples\n")
        said = self.measure("--config", "small.cfg", "--data.path", "my data.h5", "--ranks", 2, 8, 32, "--node-size", 8,
                            "--mode", "weak", "strong", "--sweep", "dist.zero=0,2", "--usd-per-node-hour", "21.957642", "--plan")
        said = said.replace(STAND_IN, "TANDEM")
        if os.environ.get("TANDEM_WRITE_GOLDEN"):
            with open(GOLDEN, "w") as out:
                out.write(said)
        with open(GOLDEN) as file:
            self.assertEqual(said, file.read())
        self.assertEqual(os.listdir(self.folder).count("runs"), 0, "nothing is started or written")

    def test_what_is_refused(self):
        table = [
            (["--ranks", 8, 12, "--node-size", 8], "--ranks 12 is over one node of 8 and no multiple of it; use 8 or 16"),
            (["--ranks", 0], "argument --ranks: '0' must be a whole number of 1 or more; --help lists all options"),
            (["--ranks", "x"], "argument --ranks: 'x' must be a whole number of 1 or more; --help lists all options"),
            (["--model.widht", 3], "command line: unknown setting model.widht; --help lists all"),
            (["--sweep", "dist.zerro=0,2"], "command line: unknown setting dist.zerro; --help lists all"),
            (["--nodesize", 3], "unknown argument '--nodesize'; --help lists all options"),
            (["--data.path"], "--data.path has no value; one that begins with -- is given as --data.path=VALUE"),
            (["--sweep", "dist.zero"], "argument --sweep: 'dist.zero' must be SECTION.KEY=VALUE,VALUE such as dist.zero=0,2; "
                                       "--help lists all options"),
            (["--sweep", "dist.zero=0", "dist.zero=2"], "--sweep: a setting stands twice; list all of its values once"),
            (["--sweep", "dist.zero=0,0"], "--sweep dist.zero: a value stands twice"),
            (["--sweep", "dist.zero=0", "--dist.zero", 2], "dist.zero stands in --sweep and alone; remove one"),
            (["--train.steps", 9], "--train.steps cannot be set: use --warmup and --keep"),
            (["--run.name", "x"], "--run.name cannot be set: each launch is a run with a name of its own"),
            (["--name", "a/b"], "--name 'a/b' must be letters, digits, '.', '_' and '-', and begin with a letter or digit"),
            (["--config", "none.cfg"], "--config none.cfg: no such file"),
            (["--tandem", "none"], "no program none; build it with launch/build.sh, or name it with --tandem"),
            (["--launch", "mpirun -np {ranks}"], "--launch 'mpirun -np {ranks}' must have {command} as a word of its own, "
                                                 "such as 'mpirun -np {ranks} {command}'"),
            (["--hosts", "a,b"], "--launch replaces launch/run.sh, so --platform, --hostfile and --hosts mean nothing with it; "
                                 "write them into the template"),
            (["--launch", "", "--hosts", "a,b"], "how many ranks has a node? Say --node-size N or --instance TYPE"),
            (["--launch", "", "--hosts", "a", "--node-size", 1], "2 ranks need 2 nodes of 1, and there is 1 host"),
            (["--launch", "", "--hosts", "a", "--hostfile", "b"], "--hosts and --hostfile cannot be given together"),
            (["--max-dollars", 5], "--max-dollars needs a price: give --instance or --usd-per-node-hour"),
            (["--max-dollars", "much"], "argument --max-dollars: 'much' must be a number of dollars; --help lists all options"),
            (["--usd-per-node-hour", 3600, "--max-dollars", 5],
             "297.60 dollars are expected, more than --max-dollars 5.00; --plan shows where they go"),
            (["--ranks", 3, 5, "--train.global_batch", 32, "--mode", "strong"],
             "no case can run: the global batch of 32 is not divisible by 3 ranks; "
             "the global batch of 32 is not divisible by 5 ranks"),
            (["--dist.shard", "node"], "no case can run: dist.shard = node needs a dist.zero above 0"),
            (["--train.global_batch", 70], "no case can run: dist.zero = 0 does not fit in 64000 B: needs 140000 B"),
        ]
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        for words, message in table:
            with self.subTest(words=words):
                errors = io.StringIO()
                with contextlib.redirect_stderr(errors):
                    code = scaling.main.main(self.command(*words)[1:])
                self.assertEqual((code, errors.getvalue()), (2, f"scaling: {message}\n"))
        self.assertEqual(os.listdir(self.folder), ["truth.json"], "before any start")

    def test_hosts(self):
        """A case takes the first nodes of the list, and as many ranks on each as it needs."""
        with open(self.path("hosts"), "w") as out:
            out.write("a slots=2  # the first\nb slots=2\nc slots=2\n")
        for where in (["--hosts", "a,b,c"], ["--hosts", "a:2,b:2,c:2", "--platform", "ssh"], ["--hostfile", "hosts"]):
            said = self.measure("--launch", "", *where, "--node-size", 2, "--ranks", 1, 2, 4, "--plan")
            self.assertEqual(re.findall(r"--hosts (\S+) -- train", said), ["a:1", "a:2", "a:2,b:2"])

    def test_machine_types(self):
        """Prices are those of launch/instances.json."""
        entry = prices.instance("p4d.24xlarge")
        said = self.measure("--ranks", 8, 16, "--train.global_batch", 64, "--instance", "p4d.24xlarge", "--plan")
        self.assertIn(f"2 nodes for the whole time, at {entry['usd_per_hour']['on_demand']} an hour "
                      f"(p4d.24xlarge, on demand, prices of {entry['updated']})", said)
        refused = [(["p9"], "--instance p9 is not in launch/instances.json, which has "),
                   (["p4d.24xlarge", "--price", "spot"], "launch/instances.json has no spot price of p4d.24xlarge"),
                   (["g6.48xlarge"], "--instance g6.48xlarge: `tandem estimate` knows no L4 with 22888 MiB")]
        for words, message in refused:
            self.assertIn(message, self.measure("--instance", *words, code=2))

    def test_reports_that_cannot_be(self):
        for words, code, message in [([], 2, "report wants one folder, such as launch/scaling.py report runs/scaling/NAME"),
                                     ([self.folder], 3, f"{self.folder} holds no study: there is no plan.json")]:
            done = subprocess.run([os.path.join(LAUNCH, "scaling.py"), "report", *words], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (code, f"scaling: {message}\n"))

    def test_two_at_once(self):
        self.say_truth(seconds=0.1)
        jobs = [self.start("--launches", 2) for _ in range(2)]
        for job in jobs:
            output, errors = job.communicate(timeout=120)
            self.assertEqual(job.returncode, 0, output + errors)
        self.assertEqual(len(self.started()), 4, "one measures, the other waits and finds all done")


class Training(Workspace):
    """The real program, started by launch/run.sh on 1 and 2 ranks of one thread."""

    def test_a_study(self):
        words = [os.path.join(LAUNCH, "scaling.py"), "--name", "real", "--dir", self.path("studies"),
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


def check_report(test, folder):
    """The report holds the results, well-formed plots, and no address of anything else."""
    with open(os.path.join(folder, "report.html")) as file:
        page = file.read()
    with open(os.path.join(folder, "results.json")) as file:
        results = json.load(file)
    data = page.split('<script type="application/json" id="results">')[1].split("</script>")[0]
    test.assertEqual(json.loads(data.replace("<\\/", "</")), results)
    shown = page.replace('xmlns="http://www.w3.org/2000/svg"', "").replace(data, "")
    for loads in ("http", "src=", "href=", "url(", "@import"):
        test.assertNotIn(loads, shown)
    test.assertLess(len(page), 3 << 20)
    plots = [name for name in os.listdir(folder) if name.endswith(".svg")]
    for name in plots:
        with open(os.path.join(folder, name)) as file:
            plot = file.read()
        xml.etree.ElementTree.fromstring(plot)
        test.assertIn(plot, page)
    for case in results["cases"]:
        test.assertIn(case["id"], shown)


if __name__ == "__main__":
    tandem_program.main()
