"""From launches to the figures of each case, as results.json has them."""
from statistics import median

from . import losses, verdicts
from .intervals import summary
from .launches import PARTS

UNITS = {"tokens": (1e9, "billion tokens"), "images": (1e6, "million images")}


def results_of(plan, records):
    cases = [figures(case, [record for record in records if record["case"] == case["id"]], plan) for case in plan["cases"]]
    request = plan["request"]
    by_launch = {(record["case"], record["launch"]): record["measured"] for record in records if record["code"] == 0}
    losses.compare(cases, request["warmup"] + request["keep"])
    rows = [row for mode in request["modes"] for row in efficiencies(mode, cases, by_launch, plan)]
    for case in cases:
        case["verdict"] = verdicts.verdict(case, rows, request)
    measured = [case for case in cases if case["step_ms"]]
    results = {"name": request["name"], "request": request, "environment": plan["environment"], "node_size": plan["node_size"],
               "price": plan["price"], "per": UNITS[measured[0]["unit"]][1] if measured else None,
               "cases": cases, "efficiency": rows, "left_out": plan["left_out"], "fastest": None, "cheapest": None}
    trusted = [case for case in measured if not case["loss_check"]["differs"]]
    if trusted:
        results["fastest"] = max(trusted, key=lambda case: case["throughput"]["median"])["id"]
        if plan["price"]:
            results["cheapest"] = min(trusted, key=lambda case: case["usd"]["median"])["id"]
    return results


def figures(case, records, plan):
    good = [record for record in records if record["code"] == 0]
    failed = [{key: record[key] for key in ("launch", "code", "last_line")} for record in records if record["code"] != 0]
    row = {**case, "failed": failed, "step_ms": None, "loss": None}
    if not good:
        return row
    measured = [record["measured"] for record in good]
    units = measured[0]["units_a_step"]
    row.update({key: summary([each[key] for each in measured if each[key] is not None]) for key in ("step_ms", "exposed_comm_ms", "mfu")})
    row.update(unit=measured[0]["unit"], units_a_step=units, settings=good[0]["settings"], says=good[0]["says"],
               # A study from before copies were a part counted them nowhere.
               parts_ms={part: median([each["parts_ms"].get(part, 0) for each in measured]) for part in PARTS},
               slowest=[each["slowest"] for each in measured],
               slow_saves=[each["slow_save"] for each in measured if each["slow_save"]], heat=heat(good, plan["request"]["warmup"]),
               wire_bytes=measured[0]["wire_bytes"], between_bytes=measured[0]["between_bytes"],
               peak_bytes=max(each["peak_bytes"] for each in measured),
               loss=median([each["loss"] for each in measured]),
               throughput=inverse(row["step_ms"], 1000 * units))
    if plan["price"]:
        amount = UNITS[row["unit"]][0]
        usd_per_ms = case["nodes"] * plan["price"]["usd_per_node_hour"] / 3.6e6
        row["usd"] = scaled(row["step_ms"], usd_per_ms / units * amount)
    return row


def heat(good, warmup):
    """Own times by step and rank, of the launch whose step is the median, or the nearest below it. None: its metrics have none."""
    record = sorted(good, key=lambda record: record["measured"]["step_ms"])[(len(good) - 1) // 2]
    own_ms = record["measured"]["own_ms"]
    return own_ms and {"launch": record["launch"], "first_step": warmup + 1, "own_ms": own_ms}


def scaled(interval, factor):
    return {**interval, **{key: interval[key] * factor for key in ("median", "low", "high")}}


def inverse(interval, numerator):
    """The interval of numerator / value, whose ends change places."""
    ends = {"low": numerator / interval["high"], "high": numerator / interval["low"]}
    return {**interval, "median": numerator / interval["median"], **ends}


def efficiencies(mode, cases, by_launch, plan):
    """A row for each case and baseline: throughput of a rank relative to the baseline's, from ratios within a block."""
    of_mode = [case for case in cases if mode in case["modes"] and case["step_ms"]]
    rows = []
    for case in of_mode:
        same = [other for other in of_mode if other["sweep"] == case["sweep"]]
        beyond = [other["ranks"] for other in same if other["nodes"] > 1]
        baselines = {"1 rank": 1, "1 node": plan["node_size"]}
        for against, ranks in baselines.items():
            base = next((other for other in same if other["ranks"] == ranks), None)
            if base is None or base["ranks"] > case["ranks"]:
                continue
            ratios = block_ratios(case, base, by_launch)
            if ratios:
                rows.append({"mode": mode, "case": case["id"], "ranks": case["ranks"], "sweep": case["sweep"], "against": against,
                             "base": base["id"], "base_exposed_ms": base["exposed_comm_ms"]["median"], "efficiency": summary(ratios),
                             "first_hop": against == "1 node" and case["ranks"] == min(beyond, default=0)})
    return rows


def block_ratios(case, base, by_launch):
    ratios = []
    for (name, launch), measured in by_launch.items():
        other = by_launch.get((base["id"], launch))
        if name == case["id"] and other:
            rate = measured["units_a_step"] / measured["step_ms"] / case["ranks"]
            ratios.append(rate / (other["units_a_step"] / other["step_ms"] / base["ranks"]))
    return ratios
