"""The plan as a text: cases with their commands, what is left out, duration and dollars."""
import shlex

from .launches import command_of
from .plan import START_S, cost, expected_s


def duration(seconds):
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{max(0, round(seconds))} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def count(number, noun):
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def describe(case):
    sweep = "".join(f", {key} = {value}" for key, value in case["sweep"].items())
    return f"{' and '.join(case['modes'])}, {count(case['ranks'], 'rank')}, global batch {case['global_batch']}{sweep}"


def plan_text(request, plan, done, hosts):
    cases = plan["cases"]
    lines = [f"{request.name}: {count(len(cases), 'case')}, each launched {count(request.launches, 'time')} "
             f"for {request.warmup} + {request.keep} steps"]
    for case in cases:
        lines += ["", f"{case['id']}: {describe(case)}; {count(case['nodes'], 'node')}",
                  f"  a step of {case['predicted']['step_ms']:.4g} ms, a launch of {duration(expected_s(request, case))}",
                  f"  {shlex.join(command_of(request, case, 1, hosts, plan['node_size']))}"]
    if plan["left_out"]:
        lines += ["", "left out:"]
    for case in plan["left_out"]:
        sweep = "".join(f", {key} = {value}" for key, value in case["sweep"].items())
        lines.append(f"  {case['mode']}, {count(case['ranks'], 'rank')}{sweep}: {case['reason']}")
    return "\n".join([*lines, "", *cost_lines(request, plan, done)])


def cost_lines(request, plan, done):
    total = cost(request, plan, done)
    all_launches = len(plan["cases"]) * request.launches
    lines = [f"launches   {all_launches}, of which {len(done)} done",
             f"duration   {duration(total['seconds'])} expected: steps as `tandem estimate` predicts, and {START_S} s a launch"]
    if total["usd"] is not None:
        lines.append(f"dollars    {total['usd']:.2f} expected: {count(total['nodes'], 'node')} for the whole time, at "
                     f"{plan['price']['usd_per_node_hour']} an hour ({plan['price']['basis']})")
    return lines
