"""What the tests of launch/scaling.py share: studies with a stand-in for the program, and a check of reports."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

FOLDER = os.path.dirname(os.path.abspath(__file__))
LAUNCH = os.path.realpath(os.path.join(FOLDER, "..", "..", "..", "launch"))
STAND_IN = os.path.join(FOLDER, "stand_in.py")
SCALING = [sys.executable, os.path.join(LAUNCH, "scaling.py")]  # the interpreter that has matplotlib
WITH_RANKS = "env RANKS={ranks} {command}"


class Studies(unittest.TestCase):
    """With the stand-in, in a folder of its own. Reports have no charts, which take seconds, unless a test sets `charts`."""
    charts = False

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
        return [*SCALING, *usual, *map(str, words)]

    def environment(self):
        hidden = {} if self.charts else {"PYTHONPATH": os.path.join(FOLDER, "without_matplotlib")}
        return {**os.environ, **hidden, "STAND_IN": self.path("truth.json")}

    def start(self, *words):
        job = subprocess.Popen(self.command(*words), cwd=self.folder, env=self.environment(), text=True,
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


def check_report(test, folder):
    """The report holds the results, well-formed plots, and no address of anything else."""
    with open(os.path.join(folder, "report.html")) as file:
        page = file.read()
    with open(os.path.join(folder, "results.json")) as file:
        results = json.load(file)
    data = page.split('<script type="application/json" id="results">')[1].split("</script>")[0]
    test.assertEqual(json.loads(data.replace("<\\/", "</")), results)
    shown = re.sub(r'xmlns(:xlink)?="http://www.w3.org/[^"]*"|href="(#|data:image/png;)[^"]*"|url\(#\w+\)', "", page.replace(data, ""))
    test.assertEqual(re.findall(r"http|src=|href=|url\(|@import", shown), [])
    test.assertLess(len(page), 3 << 20)
    plots = [name for name in os.listdir(folder) if name.endswith(".svg")]
    for name in plots:
        with open(os.path.join(folder, name)) as file:
            plot = file.read()
        xml.etree.ElementTree.fromstring(plot)
        test.assertTrue(plot in page, name)
    for case in results["cases"]:
        test.assertIn(case["id"], shown)
