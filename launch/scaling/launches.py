"""One launch: its command, its process, and what it measured."""
import ctypes
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from statistics import mean, median

from command_line import SHOWN, printable
from errors import CONFIG, DATA, NUMERICAL, Failure
from files import regular
from hosts import OWN_HOSTS, Platform
from settings import read_file

from .options import ROOT, assignments
from .study import run_name, write_json

# Chosen for every launch, unless the command line of the study sets them: nothing but steps.
QUIET = {"train.eval_every": "0", "checkpoint.every_steps": "0", "checkpoint.every_minutes": "0", "checkpoint.at_end": "false",
         "log.tensorboard": "false", "log.progress": "plain"}
PARTS = ["compute", "communication", "data", "optimizer", "copy", "saving"]  # parts of the slowest rank's time
GRACE_S = 120  # a launch has this time to end after SIGTERM


def hosts_of(request):
    """The names of all hosts, in the platform's order; empty with --launch, which has its own way."""
    if request.launch:
        return []
    platform = Platform(request.platform or "auto", request.hosts, request.hostfile)
    if platform.name in OWN_HOSTS:
        raise Failure(CONFIG, "a case takes the first nodes only, and the platform here starts a job on all of its hosts: say how to start one, as "
                              "--launch 'mpirun -np {ranks} {command}'")
    return [host.name for host in platform.hosts()]


def command_of(request, case, launch, hosts, node_size):
    """The words that start a launch."""
    settings = {**QUIET, **equal_threads(request, case, hosts), **request.settings, **case["sweep"], "train.global_batch": case["global_batch"],
                "train.steps": request.steps, "train.log_every": 1,
                "run.dir": os.path.join(request.folder, "runs"), "run.name": run_name(case, launch)}
    train = ["train", *request.config_words, *assignments(settings)]
    if request.launch:
        return from_template(request.launch, case, [request.tandem, *train])
    if case["nodes"] > len(hosts):
        there = "there is 1 host" if len(hosts) == 1 else f"there are {len(hosts)} hosts"
        raise Failure(CONFIG, f"{case['ranks']} ranks need {case['nodes']} nodes of {node_size}, and {there}")
    slots = min(case["ranks"], node_size)
    words = [os.path.join(ROOT, "launch", "run.sh"), "--tandem", request.tandem]
    words += ["--platform", request.platform] if request.platform else []
    return [*words, "--hosts", ",".join(f"{host}:{slots}" for host in hosts[:case["nodes"]]), "--", *train]


def equal_threads(request, case, hosts):
    """On one machine the ranks share the cores. Without this the threads of a rank, and so its speed, depend on how many they are."""
    here = len(hosts) == 1 and hosts[0] in (socket.gethostname(), "localhost") and not request.gpu and not request.instance
    return {"run.threads": max(1, len(os.sched_getaffinity(0)) // request.ranks[-1])} if here and case.get("threads") == "0" else {}


def from_template(template, case, command):
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise Failure(CONFIG, f"--launch '{template}': {error}")
    if "{command}" not in words:
        raise Failure(CONFIG, f"--launch '{template}' must have {{command}} as a word of its own, such as 'mpirun -np {{ranks}} {{command}}'")
    if "{ranks}" not in template:
        raise Failure(CONFIG, f"--launch '{template[:SHOWN]}' must say {{ranks}}, or every case would have the same number, such as "
                              "'mpirun -np {ranks} {command}'")
    words = [word.replace("{ranks}", str(case["ranks"])).replace("{nodes}", str(case["nodes"])) for word in words]
    at = words.index("{command}")
    return [*words[:at], *command, *words[at + 1:]]


def end_with_driver():
    """In the child: a launch ends when the driver dies."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


class Launch:
    """A process that runs one launch."""

    def __init__(self, command, folder, log_path, lock):
        self.command, self.folder, self.log = command, folder, log_path
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        self.started = time.time()
        try:
            with open(log_path, "w") as log:
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[lock],
                                                preexec_fn=end_with_driver, start_new_session=True)
        except OSError as error:
            raise Failure(CONFIG, f"{command[0]}: {error.strerror}")

    def wait(self, stop):
        """The exit code. `stop.signals` counts requests to stop: the first ends the launch, the second kills it."""
        deadline = None
        while True:
            try:
                code = self.process.wait(timeout=0.1)
                self.kill()  # ends what the launcher left, which would disturb the next launch
                return code if code >= 0 else 128 - code
            except subprocess.TimeoutExpired:
                pass
            if stop.signals and deadline is None:
                self.process.terminate()
                deadline = time.monotonic() + GRACE_S
            if stop.signals > 1 or (deadline and time.monotonic() > deadline):
                self.kill()

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # no process is left

    def record(self, request, case, launch, code):
        """Keeps what the launch measured, or how it failed, in its folder."""
        record = {"case": case["id"], "launch": launch, "code": code, "command": self.command,
                  "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
                  "seconds": round(time.time() - self.started, 3)}
        said = read_lines(self.log)
        try:
            if code == 0:
                record["measured"], record["settings"] = measure(self.folder, request, case["ranks"])
                record["says"] = [line for line in said if line.startswith(("machine ", "ranks ", "model "))]
            else:
                record["last_line"] = last_line(said)
        except Failure as failure:
            record.update(code=failure.code, last_line=str(failure))
        os.makedirs(self.folder, exist_ok=True)
        os.replace(self.log, os.path.join(self.folder, "launch.log"))
        if not any(key.startswith("checkpoint.") for key in request.settings):  # a validation that was asked for saves the best
            shutil.rmtree(os.path.join(self.folder, "checkpoints"), ignore_errors=True)
        write_json(os.path.join(self.folder, "launch.json"), record)
        return record


def read_lines(path):
    with open(path, errors="replace") as file:
        return [line.rstrip() for line in file if line.strip()]


def last_line(said):
    """The program's own last line, or that of run.sh, or else the last one. mpirun adds many lines."""
    for start in ("tandem: ", "run: ", ""):
        own = [line for line in said if line.startswith(start)]
        if own:
            return printable(own[-1])
    return "no output"


def slowest(lines):
    """The rank that made the others wait in most of the steps, or saves."""
    ranks = [line["rank"] for line in lines]
    rank = max(sorted(set(ranks)), key=ranks.count)
    own = [line for line in lines if line["rank"] == rank]
    return {"rank": rank, "host": own[0]["host"], "share": len(own) / len(lines),
            "ratio": median([line["ratio"] for line in own])}


def between_bytes(wire):
    """The bytes that a rank sent to other nodes in a step. Messages of control are no payload."""
    return sum(sent["between"] for traffic, sent in wire.items() if traffic != "control")


def sync_period(settings):
    """The steps from one exchange of islands to the next; 0: there are no islands."""
    return 0 if settings["dist.islands"] == "1" else int(settings["dist.sync_every"])


def measure(folder, request, ranks):
    """What the steps after the warm-up measured, and all settings with their defaults.

    `step_ms` is rank 0's. Every step needs the gradients of all ranks, so no rank gets a step ahead, and in the median it is the
    time of the slowest rank. Islands exchange in few steps, which a median drops: theirs is the mean of whole periods, without the
    last step, which ends with a full exchange."""
    path = os.path.join(folder, "metrics.jsonl")
    steps, saves = {}, []
    try:
        with open(path, opener=regular) as lines:
            for line in map(json.loads, lines):
                if "loss" in line:
                    steps[line["step"]] = line
                elif "checkpoint" in line and line["step"] > request.warmup:
                    saves.append(line["checkpoint"]["slowest"])
        settings = read_file(os.path.join(folder, "config.cfg"))
        with open(os.path.join(folder, "report.json"), opener=regular) as file:
            started = json.load(file)["starts"][-1]["ranks"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError, Failure) as error:
        raise Failure(DATA, f"the run wrote no metrics: {error}; do all hosts share its folder?")
    if started != ranks:
        raise Failure(CONFIG, f"the run had {started} ranks, not {ranks}: let the launcher start as many as {{ranks}} says")
    kept = [steps[step] for step in range(request.warmup + 1, request.steps + 1) if step in steps]
    if len(kept) != request.keep:
        raise Failure(DATA, f"{path} has {len(kept)} of the {request.keep} steps to be kept")
    if kept[-1]["loss"] is None:
        raise Failure(NUMERICAL, f"{path}: the loss of step {request.steps} is not finite")
    period = sync_period(settings)
    timed, middle = (kept[:(len(kept) - 1) // period * period], mean) if period else (kept, median)
    [rate] = [key for key in kept[-1] if key in ("tokens_per_s", "images_per_s")]
    figures = {
        "step_ms": middle([line["step_ms"] for line in timed]),
        "exposed_comm_ms": middle([line["exposed_comm_ms"] for line in timed]),
        "wire_bytes": round(middle([line["wire_bytes"] for line in timed])),
        "between_bytes": round(middle([between_bytes(line["wire"]) for line in timed])),
        "peak_bytes": max(line["peak_bytes"] for line in kept),
        "parts_ms": {part: sum(line["slowest"][part + "_ms"] for line in timed) / len(timed) for part in PARTS},
        "slowest": slowest([line["slowest"] for line in kept]),
        "slow_save": slowest(saves) if saves else None,
        "own_ms": [line["own_ms"] for line in kept] if "own_ms" in kept[0] else None,
        "mfu": None if kept[-1]["mfu"] is None else middle([line["mfu"] for line in timed]),  # None: the GPU's peak is not known
        "unit": rate.split("_")[0], "units_a_step": round(kept[-1][rate] * kept[-1]["step_ms"] / 1000),
        "loss": kept[-1]["loss"]}
    return figures, settings
