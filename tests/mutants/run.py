#!/usr/bin/env python3
"""Makes small mistakes in a copy of the sources, one after the other, and checks that the tests notice each.

    run.py [--only PATTERN] [--folder DIR]      all mutants, or those whose "area: name" matches the pattern
    run.py --list                               shows the table
    run.py --check [--build DIR]                checks only that every mutant's text and tests exist

The copy and its builds stay in DIR (build-mutants), so that a later run compiles little. The exit code is 0 when every
mutant was noticed: a test failed, or took ten times as long as it should. A mutant that does not compile is an error of the
table.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from suite import FAILED, HUNG, PASSED, Suite
from table import AREAS, ROOT, all_mutants, problems_of_texts

# By kind: what launch/build.sh is called with, $BUILD for it, and the folder that it then builds in. nvcc would take most of the
# time, and few tests read its output, so only one kind has it.
BUILDS = {"release": (["release", "-DTANDEM_CUDA=OFF"], "build", "build"), "simt": (["simt"], "build", "build-simt"),
          "cuda": (["release", "-DTANDEM_CUDA=REQUIRED"], "build-cuda", "build-cuda")}


def copy_tree(to):
    """Copies the files that git knows or would add. Files that are the same are not written, so they are not compiled again."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {name for name in listed.split("\0") if name and os.path.isfile(os.path.join(ROOT, name))}
    for folder, folders, files in os.walk(to):
        if folder == to:
            folders[:] = [name for name in folders if not name.startswith("build")]
        for file in files:
            if os.path.relpath(os.path.join(folder, file), to) not in names:
                os.remove(os.path.join(folder, file))
    for name in names:
        source, copy = os.path.join(ROOT, name), os.path.join(to, name)
        if not os.path.exists(copy) or Path(source).read_bytes() != Path(copy).read_bytes():
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copy(source, copy)


class Mutation:
    """A copy of the tree with a build folder for each configuration. Warnings are not errors, because a replacement
    may leave something unused."""

    def __init__(self, folder, mutants):
        self.folder = os.path.realpath(folder)
        is_copy = Path(self.folder, "tests/mutants/run.py").exists() and not Path(self.folder, ".git").exists()
        if os.path.isdir(self.folder) and os.listdir(self.folder) and not is_copy:
            sys.exit(f"mutants: {folder} is no earlier copy, and what it holds would be deleted; name a folder that is empty or new")
        self.seconds = {}  # the time of each test without a mutant
        copy_tree(self.folder)
        self.suites = {}
        for kind in sorted({mutant.build for mutant in mutants}):
            words, prefix, build = BUILDS[kind]
            own = {"BUILD": os.path.join(self.folder, prefix), "CONFIGURE_ONLY": "1", "TANDEM_WERROR": "OFF"}
            subprocess.run(["launch/build.sh", *words], cwd=self.folder, env={**os.environ, **own}, check=True,
                           stdout=subprocess.DEVNULL)
            self.suites[kind] = Suite(os.path.join(self.folder, build))

    def compile(self, kind, tests):
        """Returns what the compiler prints if it fails, otherwise an empty text."""
        suite = self.suites[kind]
        targets = suite.targets(tests)
        if not targets:  # scripts alone
            return ""
        command = ["cmake", "--build", suite.build, "--parallel", str(os.cpu_count()), "--target", *targets]
        result = subprocess.run(command, capture_output=True, text=True)
        return result.stdout + result.stderr if result.returncode != 0 else ""

    def try_unmutated(self, mutants):
        for kind, suite in self.suites.items():
            tests = sorted({test for mutant in mutants if mutant.build == kind for test in mutant.tests})
            if said := self.compile(kind, tests):
                sys.exit(f"{said}\nmutants: the {kind} build fails without a mutant")
            suite.read()
            for test in tests:
                start = time.monotonic()
                result = suite.run(test)
                self.seconds[kind, test] = time.monotonic() - start
                ran_nothing = "[==========] Running 0 tests" in result.output
                if result.outcome != PASSED or ran_nothing:
                    sys.exit(f"{result.output}\nmutants: {test} of the {kind} build does not pass without a mutant")
                print(f"passes   {self.seconds[kind, test]:4.0f} s  {kind:7} {test}", flush=True)

    def try_mutant(self, mutant):
        """Returns the outcome, and which test noticed the mutant, or why none did."""
        path = Path(self.folder, mutant.file)
        source = path.read_text()
        try:
            path.write_text(mutant.mutated(source))
            if said := self.compile(mutant.build, mutant.tests):
                return "ERROR", "does not compile\n" + "\n".join(line for line in said.splitlines() if "error" in line)
            for test in mutant.tests:
                result = self.suites[mutant.build].run(test, 60 + 10 * self.seconds[mutant.build, test])
                if result.outcome in (FAILED, HUNG):
                    return "killed", test + (" hung" if result.outcome == HUNG else "")
            return "LIVES", "unnoticed by " + ", ".join(mutant.tests)
        finally:
            path.write_text(source)


def report(results):
    """Prints the score of each area and in total. Returns whether all mutants were noticed."""
    print()
    for area in [*AREAS, ""]:
        of_area = [outcome for mutant, outcome in results if area in ("", mutant.area)]
        if of_area:
            print(f"{area or 'all':12} {of_area.count('killed'):3} of {len(of_area):3} noticed")
    return all(outcome == "killed" for _, outcome in results)


def check(mutants, build):
    kinds = ["simt"] if "TANDEM_SIMT:BOOL=ON" in Path(build, "CMakeCache.txt").read_text() else ["release", "cuda"]
    problems = problems_of_texts(mutants) + Suite(build).problems([mutant for mutant in mutants if mutant.build in kinds])
    print("\n".join(problems) or f"{len(mutants)} mutants")
    return not problems


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    for option in ["--list", "--check"]:
        parser.add_argument(option, action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", default=os.path.join(ROOT, "build-mutants"))
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    options = parser.parse_args()
    mutants = [mutant for mutant in all_mutants() if re.search(options.only, f"{mutant.area}: {mutant.name}")]
    if not mutants:
        sys.exit(f"mutants: none has a name like {options.only}")
    if options.list:
        for mutant in mutants:
            print(f"{mutant.area}: {mutant.name}  ({mutant.file}; {', '.join(mutant.tests)})")
        return
    if options.check:
        sys.exit(0 if check(mutants, options.build) else 1)
    if problems := problems_of_texts(mutants):
        sys.exit("\n".join(problems))
    if not shutil.which("nvcc"):
        print(f"left out, there is no nvcc: {sum(mutant.build == 'cuda' for mutant in mutants)}")
        mutants = [mutant for mutant in mutants if mutant.build != "cuda"]
    mutation = Mutation(options.folder, mutants)
    problems = [problem for kind, suite in mutation.suites.items()
                for problem in suite.problems([mutant for mutant in mutants if mutant.build == kind])]
    if problems:
        sys.exit("\n".join(problems))
    mutation.try_unmutated(mutants)
    results = []
    for mutant in mutants:
        start = time.monotonic()
        outcome, why = mutation.try_mutant(mutant)
        results.append((mutant, outcome))
        print(f"{outcome:7} {time.monotonic() - start:5.0f} s  {mutant.area}: {mutant.name}  ({why})", flush=True)
    sys.exit(0 if report(results) else 1)


if __name__ == "__main__":
    main()
