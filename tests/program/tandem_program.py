"""What the tests of the `tandem` program share: running it, reading what it wrote, and small datasets. Needs nothing but
Python's standard library, mpirun and the program.
"""
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TANDEM = ""
OK, CONFIG, DATA, NUMERICAL, OUT_OF_MEMORY, STOPPED = 0, 2, 3, 64, 71, 85
QUICK = ["--train.global_batch", "12", "--train.log_every", "1", "--optim.warmup_steps", "5", "--run.threads", "1",
         "--log.progress", "none", "--run.watch_spot", "off"]
# The settings of a small model of each kind; the dataset says how large images are.
SHAPES = {"mlp": ["--model.layers", "2", "--model.width", "32"], "resnet": []}
SHAPES["gpt"] = SHAPES["llama"] = [*SHAPES["mlp"], "--model.heads", "2", "--model.context", "16"]
TINY = [*SHAPES["gpt"], *QUICK]
MPI_ENV = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
               OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none",
               OMPI_MCA_mpi_yield_when_idle="1")
# Relative tolerance between rank counts. One f32 sum over the ranks' gradients is off by at most (ranks - 1) * 2^-24 of
# the sum of magnitudes, 2e-7 for 4 ranks; cancellation within a gradient costs about a factor of 10, and over 20 steps
# Adam, which divides by the gradient's own size, adds up one such error a step: 20 * 10 * 2e-7 = 4e-5 of a loss.
ACROSS_RANKS = 4e-5


def run(*arguments, ranks=None, environment={}, timeout=300, **options):
    command = [TANDEM, *map(str, arguments)]
    if ranks:
        command = ["timeout", "-k", "5", "120", "mpirun", "-np", str(ranks), *command]
    return subprocess.run(command, env=dict(MPI_ENV, **environment), capture_output=True, text=True, timeout=timeout, **options)


def kind_in(settings):
    """The kind of model that these arguments choose."""
    named = [value for key, value in zip(settings, settings[1:]) if key == "--model.kind"]
    return named[-1] if named else "gpt"


def whole_lines(path):
    """The lines of JSON in a file whose writer may have written half of the next one.

    All is read before it is cut: a loop over a file's lines gets half of one at the end, and its rest as another when that has grown.
    """
    with open(path) as file:
        return [json.loads(line) for line in file.read().split("\n")[:-1]]


def logged(folder):
    return whole_lines(os.path.join(folder, "metrics.jsonl"))


def metrics(folder):
    """The lines about steps and validations, without those about checkpoints."""
    return [line for line in logged(folder) if "checkpoint" not in line]


def saves(folder):
    return [line for line in logged(folder) if "checkpoint" in line]


def losses(folder):
    return {line["step"]: line["loss"] for line in metrics(folder) if "loss" in line}


def events(folder):
    """The bytes of the TensorBoard files."""
    return b"".join(path.read_bytes() for path in sorted(Path(folder).glob("events.out.tfevents.*")))


def tensors_in(folder):
    """Shape and content hash of every tensor in a run's newest checkpoint, by name."""
    shown = Workspace.check(run("inspect", folder, "--verify")).stdout
    found = re.findall(r"^  ((?:param|optim|stat)/\S+) +\[(.*)\]  ([0-9a-f]{32})$", shown, re.MULTILINE)
    return {tensor: ([int(size) for size in shape.split(",")], content) for tensor, shape, content in found}


def words(count, seed=1):
    pick = random.Random(seed)
    vocabulary = ["red", "green", "blue", "stone", "river", "walks", "sings", "under", "over", "the", "a", "old"]
    return " ".join(pick.choice(vocabulary) for _ in range(count)) + "\n"


def letters_of_bytes():
    """The letter that stands for each byte in GPT-2's files."""
    shown = {byte: chr(byte) for byte in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]}
    others = [byte for byte in range(256) if byte not in shown]
    return {**shown, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def write_idx(path, dimensions, values):
    with open(path, "wb") as out:
        out.write(struct.pack(">I", 0x800 + len(dimensions)))
        out.write(struct.pack(f">{len(dimensions)}I", *dimensions))
        out.write(bytes(values))


def write_program(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o755)
    return path


class Workspace(unittest.TestCase):
    """A folder with a small text dataset and a small image dataset, made once for a class of tests."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="tandem-test-")
        cls.text_file = cls.path("words.txt")
        with open(cls.text_file, "w") as out:
            out.write(words(3000))
        cls.text = cls.path("words.h5")
        cls.check(run("prepare", "text", "--input", cls.text_file, "--output", cls.text, "--tokenizer", "char"))
        images = cls.path("cifar")
        os.makedirs(images)
        pick = random.Random(5)
        for name, count in [(f"data_batch_{i}.bin", 16) for i in range(1, 6)] + [("test_batch.bin", 24)]:
            with open(os.path.join(images, name), "wb") as out:
                for _ in range(count):
                    label = pick.randrange(10)
                    out.write(bytes([label]) + bytes((pick.randrange(40) + 20 * label) % 256 for _ in range(3072)))
        cls.images = cls.path("cifar.h5")
        cls.check(run("prepare", "images", "--input", images, "--output", cls.images))

    @classmethod
    def prepare_images(cls, name, splits):
        """Makes a dataset of 8 x 8 images, because larger ones would take long; splits: name -> (labels, all pixels)."""
        folder, dataset = cls.path(name), cls.path(name + ".h5")
        os.makedirs(folder)
        for split, (labels, pixels) in splits.items():
            write_idx(os.path.join(folder, f"{split}-images-idx3-ubyte"), [len(labels), 8, 8], pixels)
            write_idx(os.path.join(folder, f"{split}-labels-idx1-ubyte"), [len(labels)], labels)
        cls.check(run("prepare", "images", "--input", folder, "--output", dataset))
        return dataset

    @classmethod
    def make_digits(cls):
        pick, splits = random.Random(3), {}
        for split, count in [("train", 48), ("t10k", 12)]:
            labels = [pick.randrange(4) for _ in range(count)]
            splits[split] = labels, [(60 * label + pick.randrange(40)) % 256 for label in labels for _ in range(64)]
        cls.digits = cls.prepare_images("digits", splits)

    @classmethod
    def make_stories(cls, count):
        """A text of `count` documents, of a word to many windows of them."""
        pick = random.Random(7)
        with open(cls.path("stories.jsonl"), "w") as out:
            out.writelines(json.dumps({"text": words(pick.choice([1, 1, 2, 3, 9]), seed)}) + "\n" for seed in range(count))
        cls.stories = cls.path("stories.h5")
        cls.check(run("prepare", "text", "--input", cls.path("stories.jsonl"), "--field", "text", "--output", cls.stories,
                      "--tokenizer", "char", "--val-fraction", "0.1"))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder, name)

    @staticmethod
    def check(result, code=OK):
        if result.returncode != code:
            raise AssertionError(f"exit code {result.returncode}, not {code}\n{result.stdout}\n{result.stderr}")
        return result

    def train(self, name, *settings, ranks=None, code=OK, data=None, **options):
        arguments = ["train", "--data.path", data or self.text, "--run.dir", self.path("runs"), "--run.name", name,
                     "--train.steps", "20", *SHAPES[kind_in(settings)], *QUICK, *settings]
        return self.check(run(*arguments, ranks=ranks, **options), code)

    @staticmethod
    def processes_of(name):
        """The processes of a run's ranks that are alive now."""
        found = []
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{process}/cmdline", errors="replace") as file, open(f"/proc/{process}/stat") as stat:
                    words = file.read().split("\0")
                    if words[0] == TANDEM and name in words and ") Z " not in stat.read():
                        found.append(int(process))
            except OSError:
                pass  # it ended meanwhile
        return found

    def run_folder(self, name):
        return os.path.join(self.path("runs"), name)

    def tensors(self, name):
        return tensors_in(self.run_folder(name))

    def assert_same_bits(self, one, other):
        """Compares all figures of two runs, and every byte of their weights, optimizer states and statistics."""
        def figures(name):
            return [[line.get(key) for key in ["step", "loss", "grad_norm", "val_loss"]] for line in metrics(self.run_folder(name))]
        self.assertEqual(figures(one), figures(other), f"{one} and {other}")
        self.assertGreater(len(self.tensors(one)), 0)
        self.assertEqual(self.tensors(one), self.tensors(other), f"{one} and {other}")

    def assert_one_line(self, result, pattern):
        """The program wrote exactly one line to standard error (mpirun adds its own), which matches the pattern."""
        ours = [line for line in result.stderr.splitlines()
                if line.startswith("tandem:") and "stop requested" not in line  # mpirun signals the other ranks
                and "not recorded" not in line]  # a file that the flight log could not write
        self.assertEqual(len(ours), 1, result.stderr)
        self.assertRegex(ours[0], pattern)

    def assert_curves_agree(self, one, other, tolerance=ACROSS_RANKS):
        self.assertEqual(one.keys(), other.keys())
        for step in one:
            self.assertLessEqual(abs(one[step] - other[step]), tolerance * abs(one[step]), f"step {step}")


def main():
    """The first argument is the program, the others are unittest's. Ends with 77 where every test was skipped."""
    global TANDEM
    for number in (signal.SIGHUP, signal.SIGINT):  # ignored below nohup and in the background, and programs inherit that
        signal.signal(number, signal.SIG_DFL if number == signal.SIGHUP else signal.default_int_handler)
    TANDEM = os.path.abspath(sys.argv.pop(1))
    result = unittest.main(module="__main__", verbosity=2, exit=False).result
    sys.exit(1 if not result.wasSuccessful() else 0 if result.testsRun else 77)
