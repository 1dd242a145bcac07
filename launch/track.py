#!/usr/bin/env python3
"""Feeds a run's metrics.jsonl and settings to Weights & Biases or MLflow, through their own Python clients.

    launch/track.py wandb runs/NAME                                  # what is there now
    launch/track.py mlflow runs/NAME --follow                        # and what comes, until the run ends
    WANDB_MODE=offline launch/track.py wandb runs/NAME               # into ./wandb; `wandb sync` sends it later
    MLFLOW_TRACKING_URI=sqlite:///mlflow.db launch/track.py mlflow runs/NAME

It may be called again at any time, and sends nothing twice: RUN/track.json says what was sent where. Exit codes: 0 all was
sent; 2 wrong arguments, no client, or one that refuses; 3 no run; 75 another one tracks this run, or the client failed.
"""
import fcntl
import importlib
import json
import os
import struct
import sys
import time
import uuid

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "run"))
from command_line import Parser, run_script
from errors import CONFIG, DATA, Failure, TEMPORARY
from files import regular
from settings import read_file

POLL_S = 1
MOST_FIGURES = 1000  # figures in one message; MLflow takes no more
KINDS = ["loss", "val_loss", "checkpoint", "skipped_batch"]  # the key by which lines of a kind are known


def typed(text):
    """A setting as a number or a truth value, where it is one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, (bool, int, float)) else text


def figures(line, prefix=""):
    """The numbers of a line by name; those of nested objects as OUTER/INNER. `step` and `time` say when; null is nothing."""
    found = {}
    for key, value in line.items():
        if isinstance(value, dict):
            found.update(figures(value, f"{prefix}{key}/"))
        elif isinstance(value, (bool, int, float)) and f"{prefix}{key}" not in ("step", "time"):
            found[prefix + key] = value + 0  # a truth value becomes 0 or 1
    return found


class Run:
    """The folder of a run."""

    def __init__(self, folder):
        self.folder, self.name = folder, os.path.basename(os.path.abspath(folder))
        if not os.path.exists(self.path("metrics.jsonl")) or not os.path.exists(self.path("config.cfg")):
            raise Failure(DATA, f"{folder}: no metrics.jsonl and config.cfg; name the folder of a run, such as runs/NAME")
        try:
            self.settings = {key: typed(value) for key, value in read_file(self.path("config.cfg")).items() if value}
        except UnicodeDecodeError:
            raise Failure(DATA, f"{self.path('config.cfg')}: is no text; the run writes it anew when it is started again")
        self.file = None

    def path(self, name):
        return os.path.join(self.folder, name)

    def last_start(self):
        """The last start in report.json; {} if there is none."""
        try:
            with open(self.path("report.json"), encoding="utf-8", opener=regular) as file:
                return dict(json.load(file)["starts"][-1])
        except (Failure, OSError, ValueError, LookupError, TypeError, RecursionError):
            return {}

    def is_alive(self):
        """A run holds the lock of its folder. Where the file system has no locks, its report decides."""
        try:
            with open(self.path("lock"), "rb", opener=regular) as file:
                asked = struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                return struct.unpack_from("h", fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK
        except FileNotFoundError:
            return False
        except OSError:
            return self.last_start().get("state") == "running"

    def state(self):
        """"running", or how the last start ended."""
        if self.is_alive():
            return "running"
        state = self.last_start().get("state")
        return "died" if state in ("running", "died") else "stopped" if state == "stopped" else "finished"

    def fresh_lines(self):
        """The whole lines since the last call. A run that goes on from a checkpoint writes a new file: then all its lines."""
        path = self.path("metrics.jsonl")
        try:
            if self.file is None or os.stat(path).st_ino != os.fstat(self.file.fileno()).st_ino:
                file = open(path, "rb", opener=regular)
                if self.file:
                    self.file.close()
                self.file, self.rest = file, b""
        except FileNotFoundError:  # it was removed, and its run begins another one
            if self.file is None:
                return
        *whole, self.rest = (self.rest + self.file.read()).split(b"\n")
        for text in whole:
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                yield line


class Sent:
    """RUN/track.json: for each place where the run is tracked, its number there and the last step of each kind of line. Locked,
    so that no second process sends the same."""

    def __init__(self, run, place):
        self.file = open(run.path("track.json"), "r+", encoding="utf-8", opener=lambda path, flags: regular(path, flags | os.O_CREAT))
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(TEMPORARY, f"{run.folder}: another launch/track.py sends this run; wait until it ends")
        self.file.seek(0)
        try:
            self.places = json.loads(self.file.read() or "{}")
            self.here = self.places.setdefault(place, {"id": None, "rows": 0, "steps": {}})
            numbers = [self.here["rows"], *self.here["steps"].values()]
            if not isinstance(self.here["id"], (str, type(None))) or not all(isinstance(number, int) for number in numbers):
                raise ValueError
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise Failure(DATA, f"{run.path('track.json')}: damaged; remove it, and the run is sent anew under a new number")

    def is_new(self, line):
        """Steps that were done again after a restart were sent before it."""
        return line["step"] > self.here["steps"].get(self.kind(line), -1)

    @staticmethod
    def kind(line):
        return next((kind for kind in KINDS if kind in line), "other")

    def add(self, lines):
        for line in lines:
            self.here["steps"][self.kind(line)] = line["step"]
        self.here["rows"] += len(lines)
        self.save()

    def save(self):
        """In place, which a full disk allows: a file that lost its number would be sent anew under another."""
        self.file.seek(0)
        self.file.write(json.dumps(self.places))
        self.file.flush()
        self.file.truncate()


class Wandb:
    """A line is a row. Rows are numbered by this program, so a row that is sent again after a crash replaces itself; the axis
    of charts is the step."""

    def __init__(self, client, run, sent, project):
        if not sent.here["id"]:
            sent.here["id"] = uuid.uuid4().hex[:8]
            sent.save()
        sections = {}
        for key, value in run.settings.items():
            section, _, name = key.partition(".")
            sections.setdefault(section, {})[name] = value
        self.sent = sent
        self.run = client.init(project=project, name=run.name, id=sent.here["id"], resume="allow", config=sections,
                               allow_val_change=True, settings=client.Settings(console="off"))
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def send(self, lines):
        for number, line in enumerate(lines, self.sent.here["rows"]):
            self.run.log({"step": line["step"], **figures(line)}, step=number)

    def end(self, run):
        self.run.summary.update({f"start/{key}": value for key, value in run.last_start().items()})
        self.run.finish(exit_code=1 if run.state() == "died" else 0)


class Mlflow:
    """Settings become parameters, which MLflow keeps as they were at first."""

    STATUS = {"running": "RUNNING", "finished": "FINISHED", "stopped": "KILLED", "died": "FAILED"}

    def __init__(self, client, run, sent, project):
        self.entities = importlib.import_module("mlflow.entities")
        self.client = client.MlflowClient()
        if not sent.here["id"]:
            experiment = self.client.get_experiment_by_name(project)
            number = experiment.experiment_id if experiment else self.client.create_experiment(project)
            sent.here.update(id=self.client.create_run(number, run_name=run.name).info.run_id, params=False)
            sent.save()
        if not sent.here.get("params", True):  # an earlier call may have failed here
            settings = [self.entities.Param(key, str(value)) for key, value in run.settings.items()]
            for first in range(0, len(settings), 100):  # MLflow takes no more at once
                self.client.log_batch(sent.here["id"], params=settings[first:first + 100])
            sent.here["params"] = True
            sent.save()
        self.id = sent.here["id"]

    def send(self, lines):
        values = [self.entities.Metric(name, float(value), int(1000 * line.get("time", time.time())), line["step"])
                  for line in lines for name, value in figures(line).items()]
        self.client.log_batch(self.id, metrics=values)

    def end(self, run):
        for key, value in run.last_start().items():
            self.client.set_tag(self.id, f"start.{key}", ", ".join(value) if isinstance(value, list) else str(value))
        status = self.STATUS[run.state()]
        if status == "RUNNING":
            self.client.update_run(self.id, status=status)
        else:
            self.client.set_terminated(self.id, status=status)


def messages(lines):
    """Lists of lines with at most MOST_FIGURES figures together."""
    taken, count = [], 0
    for line in lines:
        size = len(figures(line))
        if taken and count + size > MOST_FIGURES:
            yield taken
            taken, count = [], 0
        taken.append(line)
        count += size
    if taken:
        yield taken


def track(arguments):
    run = Run(arguments.run)
    try:
        client = importlib.import_module(arguments.client)
    except ModuleNotFoundError as error:
        raise Failure(CONFIG, f"Python has no {error.name}: {sys.executable} -m pip install {arguments.client}")
    except (Exception, SystemExit) as error:  # a damaged installation fails in many ways
        raise Failure(CONFIG, f"{arguments.client} cannot be imported: {error}")
    place = os.environ.get("WANDB_MODE", "online") if arguments.client == "wandb" else told(CONFIG, lambda: client.get_tracking_uri())
    sent = Sent(run, f"{arguments.client} {arguments.project} {place}")
    tracker = told(CONFIG, {"wandb": Wandb, "mlflow": Mlflow}[arguments.client], client, run, sent, arguments.project)
    rows = 0
    while True:
        is_alive = run.is_alive()  # asked first: what it logged before its end is then read
        for lines in messages(filter(sent.is_new, run.fresh_lines())):
            told(TEMPORARY, tracker.send, lines)
            sent.add(lines)
            rows += len(lines)
        if not (is_alive and arguments.follow):
            break
        time.sleep(POLL_S)
    told(TEMPORARY, tracker.end, run)
    print(f"track: {rows} {'line' if rows == 1 else 'lines'} of {run.folder} sent to {arguments.client}, "
          f"{arguments.project}, as {sent.here['id']}")


def told(code, call, *words):
    """Calls a client. Its own failures have no common base."""
    try:
        return call(*words)
    except Exception as error:
        raise Failure(code, f"{type(error).__module__.partition('.')[0]}: {error}")


def main(words):
    parser = Parser(prog="launch/track.py", description="Feeds a run's metrics and settings to Weights & Biases or MLflow.")
    parser.add_argument("client", choices=["wandb", "mlflow"])
    parser.add_argument("run", metavar="RUN", help="the folder of a run, such as runs/NAME")
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--project", default="tandem", help="the project of W&B, or the experiment of MLflow (tandem)")
    track(parser.parse_args(words))


if __name__ == "__main__":
    run_script("track", main)
