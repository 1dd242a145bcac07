#!/usr/bin/env python3
"""gpu.sh from its pack alone, in a folder without the sources, on the emulated GPU: what it measures, what it keeps when it is
killed, and what it says where tools of the GPU's maker do not work.

    test_gpu_pack.py BUILD_FOLDER [unittest arguments]

BUILD_FOLDER holds the programs of a build for the emulated GPU. The tools are stand-ins, which run the program that they are
given or refuse it.
"""
import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import unittest

BUILD = os.path.abspath(sys.argv.pop(1))
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu.sh")
HAS_TORCH = all(importlib.util.find_spec(name) for name in ["torch", "numpy", "h5py"])
KERNELS = ["flash_forward", "flash_dq", "flash_dkv", "cross_entropy_gradient", "norm_backward"]
# The command comes after the tool's own options.
RUNS_IT = '#!/bin/bash\necho "$@"; while [[ $1 != env ]]; do shift; done; exec "$@"\n'
REFUSES_DEVICE = "#!/bin/bash\necho 'Error: Device not supported. Please refer to the documentation'; exit 9\n"
REFUSES_COUNTERS = "#!/bin/bash\necho '==ERROR== ERR_NVGPUCTRPERM - no permission'; exit 1\n"
FINDS_NOTHING = RUNS_IT.replace("exec ", "echo '==WARNING== No kernels were profiled.'; exec ")
FINDS_ERROR = "#!/bin/bash\necho '========= Invalid __global__ write'; exit 9\n"


def executable(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o755)


def kill_session(session):
    """Ends all of its processes, also those that are born meanwhile."""
    living = True
    while living:
        living = False
        for process in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                with open(f"/proc/{process}/stat") as file:
                    state, _, _, its_session = file.read().rsplit(")", 1)[1].split()[:4]
                if int(its_session) == session and state != "Z":
                    living = True
                    os.kill(int(process), signal.SIGKILL)


class GpuPack(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        pack = cls.path("pack.tar.xz")
        result = subprocess.run([SCRIPT, "--pack", pack, "--from", BUILD], capture_output=True, text=True,
                                env=dict(os.environ, XZ_OPT="-0"))  # the program that packs has better things to do
        assert result.returncode == 0, result.stdout + result.stderr
        cls.said = result.stdout
        subprocess.run(["tar", "-xf", pack, "-C", cls.folder.name], check=True)

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    def command(self, *arguments, **tools):
        """The command, and its environment: the pack's own libraries, this interpreter, and the tools."""
        bin_folder = self.path(f"tools of {self.id()}")
        for tool, text in tools.items():
            executable(os.path.join(bin_folder, tool.replace("_", "-")), text)
        executable(os.path.join(bin_folder, "python3"), f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        environment = dict(os.environ, PATH=f"{bin_folder}:{os.environ['PATH']}", LD_LIBRARY_PATH=self.path("tandem-gpu/lib"))
        return [self.path("tandem-gpu/gpu.sh"), "--run", *arguments], environment

    def run_pack(self, *arguments, **tools):
        words, environment = self.command(*arguments, **tools)
        return subprocess.run(words, env=environment, capture_output=True, text=True, cwd=self.folder.name)

    def results(self, folder):
        """Name -> text, of all files in the archive."""
        with tarfile.open(os.path.join(folder, "tandem-results.tar.gz")) as archive:
            return {os.path.basename(member.name): archive.extractfile(member).read().decode()
                    for member in archive.getmembers() if member.isfile()}

    def test_everything(self):
        out = self.path("out")
        result = self.run_pack("--out", out, compute_sanitizer=RUNS_IT, ncu=RUNS_IT)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr)
        self.assertEqual(os.listdir(out), ["tandem-results.tar.gz"])
        found = self.results(out)
        lines = dict(line.split(": ", 1) for line in found["summary.txt"].splitlines()[1:-1])
        expected = ["machine", "check_1", "check_2", "same_bits", "choices", "step", "torch_step", "losses", "torch_losses", "nccl",
                    "resumed", "eager", "step_graph", "check_all_1", "check_all_2", "same_bits_all", "gemm_50304", "kernels", "attention"]
        self.assertEqual(list(lines)[:len(expected)], expected)
        here = {"torch_step", "torch_step_tuned", "torch_attention", "cudnn"} | (set() if HAS_TORCH else {"torch_losses"})
        for name, said in lines.items():
            left_out = name in here or name.startswith("torch_tiny")
            self.assertRegex(said, "^left out, " if left_out else r"^good \(\d+ s\)$", name)
        # Only the pack was used.
        self.assertRegex(found["machine.txt"], rf"libhdf5\S* => {re.escape(self.path('tandem-gpu/lib'))}/")
        self.assertIn('"cublas_lt": "cuBLASLt ', found["choices.choices.json"])
        self.assertIn("tensors had the same bits twice", found["same_bits.txt"])
        self.assertRegex(found["choices.txt"], r"tokens/s")
        self.assertRegex(found["nccl.txt"], r"machine .*, nccl")
        for name in ["nccl", "resumed", "eager"]:
            self.assertIn("20 steps had the same losses, bit for bit", found[name + ".txt"])
        if HAS_TORCH:
            self.assertEqual(len(re.findall(r"(?m)^ +\d+ +\d\.\d{5} +\d\.\d{5} +\d\.\d{5}$", found["torch_losses.txt"])), 24)
        for kernel in KERNELS:
            self.assertIn(f"--clock-control none --kernel-name {kernel}_kernel ", found[f"ncu_{kernel}.txt"])
        self.assertIn("--tool racecheck --target-processes all", found["racecheck_tiny_gpt.txt"])
        self.assertIn("--tool memcheck --target-processes all", found["memcheck_attention_8.txt"])
        self.what_differs_is_a_failure()

    def what_differs_is_a_failure(self):
        """After a whole run, whose losses are now made larger by 0.01."""
        path = self.path("tandem-gpu/runs/losses/metrics.jsonl")
        with open(path) as file:
            text = re.sub(r'"loss":([\d.]+)', lambda loss: f'"loss":{float(loss[1]) + 0.01}', file.read())
        with open(path, "w") as file:
            file.write(text)
        names = ["same_bits", "nccl", *(["torch_losses"] if HAS_TORCH else [])]
        result = self.run_pack("--only", f"^({'|'.join(names)})$")
        self.assertEqual(result.returncode, 1, result.stderr)
        lines = self.results(self.path("tandem-gpu"))["summary.txt"].splitlines()
        for name in names:
            self.assertRegex("\n".join(lines), rf"(?m)^{name}: FAILED: exit code 1 ")
        self.assertEqual(lines[-1], f"{len(names)} failed")

    def test_the_size_is_said_and_the_items_are_named(self):
        self.assertRegex(self.said, r"pack.tar.xz has \d+ MiB; unpacked: \d+")
        result = self.run_pack("--minutes", "0")
        self.assertEqual(result.returncode, 0, result.stderr)
        found = self.results(self.path("tandem-gpu"))
        for name in ["check_1", "step", "torch_losses", "step_50257"]:
            self.assertIn(name + ": left out, no time", found["summary.txt"].splitlines())

    def test_what_was_measured_outlives_a_kill(self):
        out = self.path("killed")
        words, environment = self.command("--out", out)
        with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            for line in process.stdout:
                if line.startswith("--- choices"):
                    kill_session(process.pid)
                    break
        found = self.results(out)
        self.assertRegex(found["summary.txt"], r"same_bits: good \(\d+ s\)\n$")
        self.assertIn("suites passed", found["check_1.txt"])

    def summary(self, **tools):
        """Exit code, and the lines about the tools."""
        result = self.run_pack("--only", "ncu|sanitizer|memcheck|racecheck", **tools)
        return result.returncode, self.results(self.path("tandem-gpu"))["summary.txt"].splitlines()[1:-1]

    def test_tools_that_are_not_there_or_cannot_reach_the_gpu(self):
        self.assertEqual(self.summary(), (0, ["ncu: left out, no ncu here", "sanitizers: left out, no compute-sanitizer here"]))
        self.assertEqual(self.summary(compute_sanitizer=REFUSES_DEVICE, ncu=REFUSES_COUNTERS),
                         (0, [*(f"ncu_{kernel}: left out, ncu cannot read the counters of the GPU here" for kernel in KERNELS),
                              *(f"{tool}_{work}: left out, compute-sanitizer cannot reach the GPU here"
                                for tool in ["memcheck", "racecheck"] for work in ["tiny_gpt", "attention_8", "offload"])]))

    def test_what_tools_find_is_a_failure(self):
        code, lines = self.summary(compute_sanitizer=FINDS_ERROR, ncu=FINDS_NOTHING)
        self.assertEqual(code, 1)
        self.assertRegex("\n".join(lines), r"^ncu_flash_forward: FAILED: exit code 1 \(\d+ s\)\n(ncu_.*\n){4}"
                         r"memcheck_tiny_gpt: FAILED: exit code 9 \(\d+ s\)\n")

    def test_wrong_options_are_one_line(self):
        for words in [[], ["--fly"], ["--run", "--minutes", "ten"], ["--run", "--part", "1"], ["--pack"], ["--run", "--out"]]:
            result = subprocess.run([SCRIPT, *words], capture_output=True, text=True)
            self.assertEqual((result.returncode, result.stdout), (2, ""), words)
            self.assertRegex(result.stderr, r"^gpu.sh: usage: .*\n$")


if __name__ == "__main__":
    unittest.main()
