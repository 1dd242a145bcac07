#!/usr/bin/env python3
"""What tandem_gpu_check says and returns when a GPU is missing or a suite goes wrong, on the emulated GPU.

    test_gpu_check.py PATH_TO_TANDEM_GPU_CHECK [unittest arguments]
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)


def check(*arguments, **environment):
    return subprocess.run([PROGRAM, *arguments], env=dict(os.environ, **environment), capture_output=True, text=True)


class GpuCheck(unittest.TestCase):
    def test_no_gpu_is_an_error(self):
        for arguments in [[], ["--device"]]:
            result = check(*arguments, TANDEM_SIMT_DEVICES="0")
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertRegex(result.stderr, "^tandem_gpu_check: no GPU here: no CUDA-capable device is detected\n$")

    def test_it_says_what_it_runs_on(self):
        result = check("--device")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout, r"^emulated GPU, driver for CUDA \d+\.\d, built with \d+\.\d\n$")

    # A suite may pass even within this limit: a busy machine lets it run while the clock is not read.
    def test_products_come_first_and_odd_addresses_last(self):
        with tempfile.TemporaryDirectory() as folder:
            results = os.path.join(folder, "results")
            with open(results, "w") as file:
                file.write("kept\n")
            printed = check("--only", "r", "--limit", "0.001", "--results", results).stdout
            lines = re.findall(r"(?m)^(?:emulated|(?:passed|FAILED) +[\d.]+ s|\d+ of \d+ suites) .*$", printed)
            with open(results) as file:
                self.assertEqual(["kept", *lines], file.read().splitlines())
        suites = re.findall(r"(?m)^(?:passed|FAILED) +[\d.]+ s  (\w+)", printed)
        self.assertEqual((suites[0], suites[-1]), ("Product", "ProductMisaligned"))
        self.assertIn("DryMemory", suites)
        self.assertRegex(printed, r"(?m)^FAILED +[\d.]+ s  \w+: not finished after 0\.001 s$")

    # Each suite has its own process, so the second runs although the first has failed.
    def test_what_goes_wrong_is_named_and_the_rest_goes_on(self):
        result = check("--only", "Add", TANDEM_SIMT_MEMORY="1000")
        self.assertEqual(result.returncode, 1)
        failed = r"FAILED +[\d.]+ s  %s: exit code 1\n(.*\n)*.*out of cuda memory(.*\n)*"
        self.assertRegex(result.stdout, failed % "Add" + failed % "AddNorm" + r"0 of 2 suites passed\n$")
        result = check("--only", "Shortcut", TANDEM_SIMT_COVERAGE="/")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"Shortcut: exit code 99\n(.*\n)*simt: cannot write the executed kernels")

    # Each suite ends by writing the kernels that it ran to a pipe, which nobody reads before both have begun.
    def test_suites_at_a_time(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = os.path.join(folder, "pipe")
            os.mkfifo(pipe)
            with subprocess.Popen([PROGRAM, "--only", "Shortcut,Lion", "--jobs", "2", "--limit", "60"], stdout=subprocess.PIPE,
                                  text=True, env=dict(os.environ, TANDEM_SIMT_COVERAGE=pipe)) as process:
                children = ""
                while len(children.split()) < 2 and process.poll() is None:
                    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
                        children = file.read()
                reader = os.open(pipe, os.O_RDWR)
                printed, _ = process.communicate()
                os.close(reader)
        self.assertEqual(process.returncode, 0, printed)
        self.assertEqual(set(re.findall(r"(?m)^passed .*  (\w+)$", printed)), {"Shortcut", "Lion"})

    def test_what_passes_is_one_line(self):
        result = check("--only", "Shortcut")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertRegex(result.stdout, r"^emulated GPU.*\npassed +[\d.]+ s  Shortcut\n1 of 1 suites passed\n$")

    def test_nothing_to_run_is_an_error(self):
        self.assertEqual(check("--only", "Nonsense").returncode, 1)

    def test_wrong_options_are_named(self):
        for arguments, words in [(["--onyl", "Sgd"], "there is no option --onyl; there are .*--only TEXT"),
                                 (["--only"], "--only has no value"), (["--limit", "soon"], "--limit soon is no number"),
                                 (["--jobs", "0"], "--jobs 0 is no number")]:
            result = check(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertRegex(result.stderr, f"^tandem_gpu_check: {words}")


if __name__ == "__main__":
    unittest.main()
