"""The cases of a study, those that are left out, and the order of launches.

A case is a job: a number of ranks, a global batch and one value of each swept setting. Weak scaling keeps the samples of a
rank and step: the global batch grows with the ranks, from the configured one at the smallest number of ranks. Strong scaling
keeps the configured global batch. A job that belongs to both is one case.
"""
import itertools
import random
import re

from errors import CONFIG, Failure
from settings import read_settings

from . import prices, program
from .launches import QUIET, sync_period
from .options import assignments

START_S = 20  # seconds assumed for a launch before its first step and after its last one, where nothing was measured yet


def make_plan(request):
    node_size = prices.node_size_of(request)
    price = prices.price_of(request)
    gpu = prices.gpu_of(request)
    cases, left_out = {}, []
    for sweep in combinations(request.sweep):
        of_launches = {**QUIET, **request.settings, **sweep, "train.steps": request.steps}
        settings = read_settings(request.tandem, [*request.config_words, *assignments(of_launches)])
        if sync_period(settings) >= request.keep:
            raise Failure(CONFIG, f"islands meet every dist.sync_every = {sync_period(settings)} steps, and a launch is the mean of whole periods "
                                  f"before its last step: use --keep {sync_period(settings) + 1} or more")
        base = int(settings["train.global_batch"])
        for mode, ranks in itertools.product(request.modes, request.ranks):
            batch, reason = batch_of(mode, ranks, base, request.ranks[0])
            key = ranks, batch, *sweep.values()
            if not reason and key in cases:
                cases[key]["modes"].append(mode)
                continue
            predicted = None
            if not reason:
                predicted, reason = program.estimate(request, node_size, gpu, ranks, {**sweep, "train.global_batch": batch})
            if reason:
                left_out.append({"mode": mode, "ranks": ranks, "sweep": sweep, "reason": reason})
                continue
            cases[key] = {"id": name_of(ranks, batch, sweep), "modes": [mode], "ranks": ranks, "nodes": -(-ranks // node_size),
                          "global_batch": batch, "sweep": sweep, "threads": settings["run.threads"], "predicted": predicted}
    if not cases:
        reasons = dict.fromkeys(case["reason"] for case in left_out)
        raise Failure(CONFIG, "no case can run: " + "; ".join(reasons))
    return {"cases": number(list(cases.values())), "left_out": left_out, "node_size": node_size, "price": price}


def combinations(sweep):
    for values in itertools.product(*sweep.values()):
        yield dict(zip(sweep, values))


def batch_of(mode, ranks, base, smallest):
    """The global batch, or why there is none. `tandem estimate` says whether the ranks can divide it."""
    if mode == "strong":
        return base, ""
    if base * ranks % smallest != 0:
        return None, f"the global batch of {base} on {smallest} ranks, the smallest number, would be {base * ranks / smallest:g} on {ranks}"
    return base * ranks // smallest, ""


def name_of(ranks, batch, sweep):
    """A folder name that says what the case is."""
    words = [f"r{ranks}", f"b{batch}", *(f"{key}={value}" for key, value in sweep.items())]
    return re.sub(r"[^A-Za-z0-9._=-]", "_", "-".join(words))


def number(cases):
    """Values such as a/b and a_b give the same folder name; a number tells them apart."""
    seen = {}
    for case in cases:
        seen[case["id"]] = seen.get(case["id"], 0) + 1
        if seen[case["id"]] > 1:
            case["id"] += f"-{seen[case['id']]}"
    return cases


def blocks(cases, launches, seed):
    """Block n holds launch n of every case once. Every other block is the reverse of the one before, whose order is random:
    when the machine changes evenly, what a case loses in one block it gains in the next."""
    order = []
    for block in range(launches):
        ids = [case["id"] for case in cases]
        random.Random(f"{seed}/{block // 2}").shuffle(ids)
        order.append(ids if block % 2 == 0 else ids[::-1])
    return order


def expected_s(request, case):
    """Seconds of one launch."""
    return START_S + request.steps * case["predicted"]["step_ms"] / 1000


def cost(request, plan, done=()):
    """Seconds and dollars of the launches that are not in `done`, which holds (case, launch). All nodes of the largest case
    are paid for the whole time."""
    seconds = sum(expected_s(request, case) for case in plan["cases"] for launch in range(1, request.launches + 1)
                  if (case["id"], launch) not in done)
    nodes = max(case["nodes"] for case in plan["cases"])
    usd = seconds / 3600 * nodes * plan["price"]["usd_per_node_hour"] if plan["price"] else None
    return {"seconds": seconds, "nodes": nodes, "usd": usd}
