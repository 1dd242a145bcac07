"""Launches everything that is missing, block by block."""
import signal
from statistics import median

from .launches import Launch, command_of
from .plan import expected_s
from .plan_text import duration

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


class Stop:
    """Counts the signals that ask to stop."""

    def __init__(self):
        self.signals = 0
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup lets it ignore SIGHUP
                signal.signal(number, self.ask)

    def ask(self, *_):
        self.signals += 1


def run_missing(request, plan, study, hosts, lock):
    """The worst exit code, and whether all was done. What is done is kept at any time."""
    stop, worst = Stop(), 0
    cases = {case["id"]: case for case in plan["cases"]}
    order = [(cases[name], launch) for launch, names in enumerate(plan["blocks"], 1) for name in names]
    measured = study.measured(plan)
    missing = [(case, launch) for case, launch in order if (case["id"], launch) not in measured]
    for position, (case, launch) in enumerate(missing):
        left = time_left(request, plan, study, missing[position:])
        print(f"[{len(order) - len(missing) + position + 1}/{len(order)}] {case['id']}, launch {launch} of {request.launches}; "
              f"{duration(left)} left", flush=True)
        study.remove_run(case, launch)
        command = command_of(request, case, launch, hosts, plan["node_size"])
        started = Launch(command, study.run_folder(case, launch), study.log(case, launch), lock)
        code = started.wait(stop)
        if stop.signals:
            study.remove_run(case, launch)
            print(f"stopped with {len(missing) - position} of {len(order)} launches missing; the same command goes on", flush=True)
            return worst, False
        record = started.record(request, case, launch, code)
        if record["code"] != 0:
            worst = max(worst, record["code"])
            print(f"  failed with {record['code']}: {record['last_line']}", flush=True)
    return worst, True


def time_left(request, plan, study, missing):
    """Seconds: as long as the case's launches took so far; before the first one, what the plan expects."""
    took = {}
    for record in study.records(plan):
        took.setdefault(record["case"], []).append(record["seconds"])
    return sum(median(took[case["id"]]) if case["id"] in took else expected_s(request, case) for case, _ in missing)
