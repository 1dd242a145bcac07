"""The table of mutants: small mistakes, each of which some test must notice. Every area is a file beside this one."""
import importlib
import os
from pathlib import Path
from typing import NamedTuple

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
AREAS = ["settings", "life", "dollars", "files", "data", "interop", "adapters", "serve", "telemetry", "engine", "collectives", "traffic", "tensor", "device", "offload", "kernels", "hostile", "launch", "machine_code"]


class Mutant(NamedTuple):
    """`text` occurs once in the file; `replacement` in its place is a mistake.

    A test is CTest's name, alone or with one case to run: "layers.norm Norm.SameBitsEachTime" (GoogleTest's name) or
    "program.settings Settings.test_run_seed" (unittest's). They run in this order until one fails.
    """
    name: str
    file: str
    text: str
    replacement: str
    tests: list
    area: str = ""
    build: str = ""  # whose tests notice it: "release", "simt" for what the emulated GPU executes, "cuda" for what nvcc makes

    def mutated(self, source):
        return source.replace(self.text, self.replacement)


def all_mutants():
    """Mutants of one file follow each other, so that little is compiled twice."""
    mutants = []
    for area in AREAS:
        module = importlib.import_module(area)
        mutants += [mutant._replace(area=area, build=module.BUILD) for mutant in module.MUTANTS]
    return sorted(mutants, key=lambda mutant: (mutant.build, mutant.file))


def problems_of_texts(mutants, root=ROOT):
    problems = []
    for mutant in mutants:
        path = os.path.join(root, mutant.file)
        count = Path(path).read_text().count(mutant.text) if os.path.exists(path) else 0
        if count != 1:
            what = "its text is gone from" if count == 0 else f"its text stands {count} times in"
            problems.append(f"{mutant.area}: {mutant.name}: {what} {mutant.file}")
        if mutant.text == mutant.replacement:
            problems.append(f"{mutant.area}: {mutant.name}: changes nothing")
    return problems
