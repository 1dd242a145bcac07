"""The tests of a build folder, as CTest knows them, and one run of a test with a time limit."""
import functools
import json
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from table import ROOT

PASSED, FAILED, HUNG = "passed", "failed", "hung"


class Run(NamedTuple):
    outcome: str
    output: str


def environment():
    """The environment of launch/mpi_env.sh, for tests that start mpirun. Ranks that wait yield their core."""
    command = ". launch/mpi_env.sh; export OMPI_MCA_mpi_yield_when_idle=1; env -0"
    text = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return dict(line.split("=", 1) for line in text.split("\0") if line)


def end_session(session):
    """Kills all processes of a test: mpirun and timeout make process groups of their own, but stay in its session."""
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.getsid(int(entry)) == session:
                os.kill(int(entry), signal.SIGKILL)
        except ProcessLookupError:
            pass


@functools.cache
def cases_of_programs():
    """Suite.Name of each GoogleTest case in the sources."""
    names = set()
    for folder, _, files in os.walk(os.path.join(ROOT, "tests")):
        for file in files:
            if file.endswith(".cpp"):
                source = Path(folder, file).read_text()
                names |= {".".join(name) for name in re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", source, re.MULTILINE)}
    return names


@functools.cache
def cases_of_script(script):
    """Class.name of each unittest case, also of those that the script makes when it is loaded."""
    show = ("import sys, unittest\nfor group in unittest.defaultTestLoader.loadTestsFromName(sys.argv[1]):\n"
            "    for test in group:\n        print(test.id().partition('.')[2])")
    folder, file = os.path.split(script)
    command = ["/usr/bin/python3", "-c", show, file.removesuffix(".py")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.split()


class Suite:
    def __init__(self, build):
        self.build = os.path.realpath(build)
        self.environment = environment()
        self.read()

    def read(self):
        """To be called again after building: CTest shows no command for a program that does not exist yet."""
        command = ["ctest", "--test-dir", self.build, "--show-only=json-v1"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        self.tests = {test["name"]: test for test in json.loads(shown.stdout)["tests"]}

    def problems(self, mutants):
        problems = []
        for mutant in mutants:
            for test in mutant.tests:
                if problem := self.problem(*test.partition(" ")[::2]):
                    problems.append(f"{mutant.area}: {mutant.name}: {problem}")
        return problems

    def problem(self, name, case):
        if name not in self.tests:
            return f"there is no test {name} in {self.build}"
        if case:
            script = self.script(name)
            if case not in (cases_of_script(script) if script else cases_of_programs()):
                return f"{name} has no case {case}"
        return ""

    def script(self, name):
        return next((word for word in self.tests[name].get("command", []) if word.endswith(".py")), None)

    def targets(self, tests):
        """The programs that these tests start, which are targets of the build."""
        lines = []
        for folder, _, files in os.walk(self.build):
            if "CTestTestfile.cmake" in files:
                lines += Path(folder, "CTestTestfile.cmake").read_text().splitlines()
        targets = set()
        for name in {test.split(" ")[0] for test in tests}:
            for line in lines:
                if line.startswith(f"add_test([=[{name}]=]"):
                    targets |= set(re.findall(f'"{re.escape(self.build)}/(?:[^"]*/)?([^"/]+)"', line))
        return sorted(targets)

    def run(self, test, limit=600):
        name, _, case = test.partition(" ")
        known = self.tests[name]
        properties = {entry["name"]: entry["value"] for entry in known["properties"]}
        command = list(known["command"])
        if case:
            command.append(case if self.script(name) else f"--gtest_filter={case}:*/{case}/*")
        with tempfile.TemporaryDirectory(prefix="tandem-mutants-", ignore_cleanup_errors=True) as scratch:
            own = dict(entry.split("=", 1) for entry in properties.get("ENVIRONMENT", []) if entry)
            with open(os.path.join(scratch, "output"), "w+b") as output:
                process = subprocess.Popen(
                    command, cwd=properties["WORKING_DIRECTORY"], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    env={**self.environment, **own, "TMPDIR": scratch}, start_new_session=True)
                try:
                    outcome = PASSED if process.wait(limit) == 0 else FAILED
                except subprocess.TimeoutExpired:
                    outcome = HUNG
                end_session(process.pid)
                process.wait()
                output.seek(0)
                return Run(outcome, output.read().decode(errors="replace"))
