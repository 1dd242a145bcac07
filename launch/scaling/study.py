"""The folder of a study, runs/scaling/NAME: the plan, a folder for each launch, results and report."""
import contextlib
import fcntl
import json
import os
import shutil
import time

from errors import CONFIG, DATA, Failure
from files import regular, write

from .environment import digest
from .prices import price_of

# What may differ when the same study goes on: it changes no launch that is already there.
MAY_CHANGE = {"launches", "price", "usd_per_node_hour", "max_dollars", "plan", "dir"}
LOCK_S = 30  # a launch whose driver was killed ends within this time


def write_json(path, value):
    write(path, json.dumps(value, indent=1) + "\n")


def read_json(path):
    try:
        with open(path, opener=regular) as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise Failure(DATA, f"{path}: {error}")


class Study:
    def __init__(self, folder):
        self.folder = folder
        self.plan_path = self.path("plan.json")
        self.runs = self.path("runs")

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def run_folder(self, case, launch):
        return os.path.join(self.runs, run_name(case, launch))

    def log(self, case, launch):
        """What a launch says, until it has ended. It is not in the launch's folder, because `tandem train`
        makes that."""
        return self.run_folder(case, launch) + ".log"

    def lock(self):
        """One job at a time. Launches inherit the lock, so that it also holds while one outlives its driver."""
        os.makedirs(self.folder, exist_ok=True)
        lock = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Failure(CONFIG, f"{self.folder} is measured by another process; wait for it, or choose another --name")
                time.sleep(0.1)

    def plan_of(self, request, make):
        """The plan of an earlier start of the same command, with its estimates, or a new one."""
        asked = {**vars(request), "config_digests": [digest(path) for path in request.configs]}
        if not os.path.exists(self.plan_path):
            return {**make(request), "request": asked}
        with self.damage_is_a_failure():
            plan = read_json(self.plan_path)
            changed = [key for key in asked if key not in MAY_CHANGE and asked[key] != plan["request"].get(key)]
        if changed:
            was = ", ".join(f"{key} was {plan['request'].get(key)!r} and is {asked[key]!r}" for key in changed)
            raise Failure(CONFIG, f"{self.folder} holds a study of another command: {was}; choose another --name")
        return {**plan, "request": asked, "price": price_of(request)}

    @contextlib.contextmanager
    def damage_is_a_failure(self):
        try:
            yield
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise Failure(DATA, f"{self.folder}: plan.json or a launch.json is not as it was written ({error!r}); choose another --name, "
                                "or remove the folder to measure anew")

    def record(self, case, launch):
        """What is known of a launch, or None when it did not end, or its file is cut: it is then launched again."""
        try:
            record = read_json(os.path.join(self.run_folder(case, launch), "launch.json"))
        except Failure:
            return None
        return record if isinstance(record, dict) and {"case", "launch", "code", "seconds"} <= record.keys() else None

    def records(self, plan):
        found = (self.record(case, launch) for case in plan["cases"] for launch in range(1, plan["request"]["launches"] + 1))
        return [record for record in found if record]

    def measured(self, plan):
        """(case, launch) of all that need not be launched again. A launch that failed is tried again."""
        return {(record["case"], record["launch"]) for record in self.records(plan) if record["code"] == 0}

    def remove_run(self, case, launch):
        """Removes a launch that did not end, or failed."""
        shutil.rmtree(self.run_folder(case, launch), ignore_errors=True)
        if os.path.exists(self.log(case, launch)):
            os.remove(self.log(case, launch))


def run_name(case, launch):
    return f"{case['id']}-l{launch}"
