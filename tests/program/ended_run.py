"""For the table of test_settings.py: what it reads from a run that has ended, and the checks that compare two runs."""
import functools
import json
import os
import re
import shlex

import tandem_program


class Run:
    """A run that has ended: its exit code, its output and its files."""

    def __init__(self, folder, code=tandem_program.OK, stdout="", stderr=""):
        self.folder, self.code, self.stdout, self.stderr = folder, code, stdout, stderr

    def path(self, name):
        return os.path.join(self.folder, name)

    @functools.cached_property
    def lines(self):
        return tandem_program.metrics(self.folder)

    @functools.cached_property
    def tensors(self):
        return tandem_program.tensors_in(self.folder)

    @functools.cached_property
    def report(self):
        with open(self.path("report.json")) as file:
            return json.load(file)

    @functools.cached_property
    def manifest(self):
        with open(self.path(f"checkpoints/step-{max(checkpoints(self)):08d}/manifest.json")) as file:
            return json.load(file)


# What is read from a run.

def steps(run):
    return [line["step"] for line in run.lines if "loss" in line]


def losses(run):
    return [line["loss"] for line in run.lines if "loss" in line]


def validations(run):
    return [line["step"] for line in run.lines if "val_loss" in line]


def val_losses(run):
    return [line["val_loss"] for line in run.lines if "val_loss" in line]


def rates(unit):
    """The learning rate of each step, divided by `unit`."""
    return lambda run: [round(line["lr"] / unit, 6) for line in run.lines if "lr" in line]


def figure(key):
    """A figure of the last training step."""
    return lambda run: [line for line in run.lines if "loss" in line][-1].get(key)


def memory(name):
    """The peak of a class of memory: 0 when it is not used."""
    return lambda run: figure("memory")(run).get(name, 0)


def sent(where):
    """Payload bytes of the last training step, inside nodes or between them."""
    return lambda run: sum(traffic[where] for name, traffic in figure("wire")(run).items() if name != "control")


def places_sent_to(run):
    return [where for where in ["inside", "between"] if sent(where)(run) > 0]


def printed(pattern):
    """The groups of each match of the pattern in the program's output."""
    return lambda run: re.findall(pattern, run.stdout, re.MULTILINE)


def buckets(run):
    return int(printed(r"gradients in (\d+) bucket")(run)[0])


def of_rank_0(*keys):
    """A value of report.json about rank 0."""
    return lambda run: functools.reduce(lambda value, key: value[key], keys, run.report["ranks"][0])


def names(run):
    return {name.removeprefix("param/") for name in run.tensors if name.startswith("param/")}


def roots(run):
    """The first components of the parameters' names."""
    return {name.split(".")[0] for name in names(run)}


def numbered(prefix):
    """How many modules of the model are called prefix0, prefix1, ..."""
    return lambda run: len({name.removeprefix(prefix).split(".")[0] for name in names(run) if name.startswith(prefix)})


def shape(name):
    return lambda run: run.tensors["param/" + name][0]


def biases(run):
    """The linear layers of the first block's attention that have one."""
    return {name.split(".")[-2] for name in names(run) if name.startswith("blocks.0.attn.") and name.endswith(".bias")}


def shapes(run):
    return {name: shape for name, (shape, _) in run.tensors.items()}


def moments(run):
    """The kinds of optimizer state."""
    return {name.split("/")[1] for name in run.tensors if name.startswith("optim/")}


def weights(run):
    return {name: content for name, (_, content) in run.tensors.items() if name.startswith("param/")}


def checkpoints(run):
    """The steps of the checkpoints that were kept."""
    return sorted(int(name[5:]) for name in os.listdir(run.path("checkpoints")) if name.startswith("step-"))


def saves_beside_steps(run):
    """(step, whether training went on while its checkpoint was written) for each save."""
    return [(line["step"], line["checkpoint"]["steps"] > 0) for line in tandem_program.saves(run.folder)]


def exists(name):
    return lambda run: os.path.exists(run.path(name))


def has_events(*texts):
    return lambda run: [text.encode() in tandem_program.events(run.folder) for text in texts]


def texts_shown(run):
    """How many samples of text are in TensorBoard's files."""
    return tandem_program.events(run.folder).count(b"samples/text")


# What must be true of two runs. Each function returns check(test, one, other).

def differs(*seen):
    def check(test, one, other):
        for see in seen:
            test.assertNotEqual(see(one), see(other))
    return check


def same(*seen):
    def check(test, one, other):
        for see in seen:
            test.assertEqual(see(one), see(other))
    return check


def gives(see, of_one, of_other):
    def check(test, one, other):
        test.assertEqual(see(one), of_one)
        test.assertEqual(see(other), of_other)
    return check


def scales(see, factor, within=0):
    def check(test, one, other):
        test.assertGreater(see(one), within)
        test.assertLessEqual(abs(see(other) - factor * see(one)), within)
    return check


def lowers(see):
    return lambda test, one, other: test.assertLess(see(other), see(one))


def changes_only(*kinds, least_dimensions=1, among=""):
    """Of the tensors whose names begin with `among`, those of these kinds and `least_dimensions` differ, and no others."""
    def check(test, one, other):
        test.assertEqual(shapes(one), shapes(other))
        expected = {name for name, shape in shapes(one).items() for kind in kinds
                    if name.startswith(kind) and len(shape) >= least_dimensions}
        changed = {name for name in one.tensors if name.startswith(among) and one.tensors[name] != other.tensors[name]}
        test.assertEqual(changed, expected)
        test.assertEqual(bool(changed), bool(kinds))
    return check


def settings_of(text):
    return dict(word.split("=", 1) for word in shlex.split(text))


class Row:
    """Two runs on `ranks` ranks that differ in one setting (None: not given), and what must be true of them. `ends`: the
    exit code and the error line of the second run, if it must fail."""

    def __init__(self, one, other, *checks, given="", ranks=None, ends=(tandem_program.OK, None)):
        self.values, self.checks, self.given, self.ranks, self.ends = (one, other), checks, settings_of(given), ranks, ends

    def test(self, test, key):
        settings = [{} if value is None else {key: str(value)} for value in self.values]
        pair = [test.run_of({**self.given, **setting}, self.ranks) for setting in settings]
        for done, (code, line) in zip(pair, [(tandem_program.OK, None), self.ends]):
            test.assertEqual(done.code, code, done.stderr)
            if line:
                test.assert_one_line(done, line)
        for check in self.checks:
            check(test, *pair)
