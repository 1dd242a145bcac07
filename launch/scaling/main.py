"""The commands of launch/scaling.py."""
import os

from errors import CONFIG, DATA, STOPPED, Failure

from . import launches, options, plan_text
from .environment import environment
from .plan import blocks, cost, make_plan
from .report import write_report
from .results import results_of
from .running import run_missing
from .study import Study, read_json, write_json


def main(words):
    if words[:1] == ["report"] and "--help" not in words:
        return report(words[1:])
    return measure(options.parse(words))


def measure(request):
    study = Study(request.folder)
    hosts = launches.hosts_of(request)
    plan = study.plan_of(request, make_plan)
    # Also fails now, rather than hours later, when there are too few hosts for a case.
    text = plan_text.plan_text(request, plan, study.measured(plan), hosts)
    if request.plan:
        print(text)
        return 0
    refuse_dear(request, plan, study.measured(plan))
    lock = study.lock()
    plan = study.plan_of(request, lambda _: plan)  # another process may have begun the study meanwhile
    done = study.measured(plan)
    plan["blocks"] = blocks(plan["cases"], request.launches, request.seed)
    plan["environment"] = same_program(plan.get("environment"), environment(request, hosts), study)
    write_json(study.plan_path, plan)
    print("\n".join(plan_text.cost_lines(request, plan, done)), flush=True)
    worst, complete = run_missing(request, plan, study, hosts, lock)
    if study.records(plan):
        report([study.folder])
    return worst if complete else max(worst, STOPPED)


def same_program(before, now, study):
    """The environment of the study's first start."""
    if before and before["tandem_sha256"] != now["tandem_sha256"]:
        raise Failure(CONFIG, f"the program is another build than the one that {study.folder} was begun with; choose another --name")
    return before or now


def refuse_dear(request, plan, done):
    expected = cost(request, plan, done)["usd"]
    if request.max_dollars is not None and expected > request.max_dollars:
        raise Failure(CONFIG, f"{expected:.2f} dollars are expected, more than --max-dollars {request.max_dollars:.2f}; "
                              "--plan shows where they go")


def report(words):
    if len(words) != 1 or words[0].startswith("-"):
        raise Failure(CONFIG, "report wants one folder, such as launch/scaling.py report runs/scaling/NAME")
    study = Study(words[0])
    if not os.path.exists(study.plan_path):
        raise Failure(DATA, f"{words[0]} holds no study: there is no plan.json")
    with study.damage_is_a_failure():
        plan = read_json(study.plan_path)
        records = study.records(plan)
        if not records:
            raise Failure(DATA, f"{words[0]} holds no launch that ended yet")
        print(f"report     {write_report(study, results_of(plan, records))}")
    return 0
