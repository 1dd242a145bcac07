"""The command launch/recommend.py: a row for each machine type and number of nodes, and the one to rent."""
import argparse
import concurrent.futures
import json
import math
import os
import shlex

from command_line import SHOWN, Parser, whole
from errors import CONFIG, Failure
from instances import MARKETS, doubts, estimated_gpu, machine_type, machine_types, words_of

from . import goodput, program
from .amounts import size
from .options import ROOT, Request, assignments, settings_of

NEVER = 1e6  # a run that interruptions make so many times as long never ends
MOST_UNITS = 1e18  # tokens or images of a run


def number(text):
    """An option's type: a number that is not negative."""
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1e30:
        raise argparse.ArgumentTypeError(f"{text[:SHOWN]!r} must be a number such as 10e9")
    return value


def amount(text):
    """An option's type: a number above 0."""
    if number(text) == 0:
        raise argparse.ArgumentTypeError(f"{text[:SHOWN]!r} must be more than 0")
    return number(text)


def parse(words):
    p = Parser(prog="launch/recommend.py", allow_abbrev=False, description="Says what to rent for a run, how long, and what it costs.",
               epilog="Other --section.key VALUE are settings of `tandem train`.")
    p.add_argument("--config", dest="configs", action="append", default=[], metavar="FILE", help="settings; may repeat")
    p.add_argument("--tokens", type=amount, metavar="N", help="to train on, such as 10e9")
    p.add_argument("--epochs", type=amount, metavar="N", help="in place of --tokens; needs the dataset")
    p.add_argument("--deadline-hours", type=amount, default=math.inf, metavar="H", help="the run must end within them; the cheapest such is taken")
    p.add_argument("--budget", type=amount, default=math.inf, metavar="USD", help="the run must cost no more; without a deadline the fastest such is taken")
    p.add_argument("--nodes", type=whole(1, 8192), nargs="+", default=[1, 2, 4, 8, 16], metavar="N", help="numbers to try (1 2 4 8 16)")
    p.add_argument("--instances", nargs="+", default=list(machine_types()), metavar="TYPE", help="machine types to try (all)")
    p.add_argument("--market", choices=MARKETS, default="on_demand", help="which prices (%(default)s)")
    p.add_argument("--interruptions-a-day", type=number, metavar="X", help="of a node: counts what they and saves cost")
    p.add_argument("--stall-s", type=number, default=2, metavar="S", help="that training waits for a save (%(default)s)")
    p.add_argument("--save-s", type=number, default=60, metavar="S", help="until a save is on storage (%(default)s)")
    p.add_argument("--restart-s", type=number, default=600, metavar="S", help="until a run that was interrupted trains again (%(default)s)")
    p.add_argument("--tandem", default=os.path.join(ROOT, "build", "tandem"), metavar="PATH", help="the program (build/tandem)")
    p.add_argument("--json", action="store_true", help="one JSON object instead of text")
    chosen, rest = p.parse_known_args(words, Request())
    chosen.settings = settings_of(rest)
    for is_wrong, line in [
        (bool(chosen.tokens) == bool(chosen.epochs), "how long is the run? Give --tokens or --epochs, one of them"),
        (chosen.market == "spot" and chosen.interruptions_a_day is None,
         "--market spot needs --interruptions-a-day: spot machines are taken back, and what that costs depends on how often"),
        (not os.access(chosen.tandem, os.X_OK), f"no program {chosen.tandem}; build it with launch/build.sh, or name it with --tandem"),
    ]:
        if is_wrong:
            raise Failure(CONFIG, line)
    return chosen


def units_of(chosen, answer):
    """Tokens or images to train on."""
    if chosen.tokens and answer["unit"] != "tokens":
        raise Failure(CONFIG, f"--tokens: the model trains on {answer['unit']}; give --epochs")
    if chosen.epochs and not answer["train_count"]:
        raise Failure(CONFIG, f"--epochs needs the dataset: {answer['data']}; make it with `tandem prepare`, or give --tokens")
    units = chosen.tokens or chosen.epochs * answer["train_count"]
    if not 1 <= units <= MOST_UNITS:
        option = "--tokens" if chosen.tokens else "--epochs"
        raise Failure(CONFIG, f"{option}: the run has {units:g} {answer['unit']}; give it 1 to {MOST_UNITS:g}")
    return units


def unranked(chosen, machine):
    """Why a machine type cannot be ranked, or ""."""
    if not estimated_gpu(machine):
        return f"`tandem estimate` does not know {machine['gpu']}"
    return "" if machine["usd_per_hour"][chosen.market] else f"launch/instances.json has no {words_of(chosen.market)} price"


def row_of(chosen, name, nodes):
    """The fastest settings on these nodes, or `why` there are none."""
    machine = machine_type(name)
    row = {"instance": name, "nodes": nodes, "gpus": nodes * machine["gpus"], "price": machine["usd_per_hour"][chosen.market]}
    answer, problems = program.ask(chosen, f"--ranks={row['gpus']}", f"--node-size={machine['gpus']}", f"--gpu={estimated_gpu(machine)}",
                                   f"--between-gb-s={machine['between_gb_s'] or 0}", "--train.micro_batch=0", "--largest-batch")
    if not answer:
        return {**row, "why": problems}
    on_gpus = [each for each in answer["rows"] if each["fits"]]
    if not on_gpus:
        return {**row, "why": "does not fit: " + answer["verdict"]}
    host_bytes = machine["host_memory_gib"] << 30
    def on_host(each):
        return machine["gpus"] * (each["host_bytes"] + each["checkpoint_bytes"])
    fitting = [each for each in on_gpus if on_host(each) <= host_bytes]
    if not fitting:
        return {**row, "why": f"does not fit: needs {size(min(map(on_host, on_gpus)))} of a host's memory, for saves and train.offload, "
                              f"and it has {size(host_bytes)}"}
    unit = answer["unit"]
    best = max(fitting, key=lambda each: each[f"{unit}_per_s"])
    units, rate = units_of(chosen, answer), best[f"{unit}_per_s"]
    row |= {"unit": unit, "units": units, f"{unit}_per_s": rate, "peak_bytes": best["peak_bytes"], "hours": units / rate / 3600,
            "settings": {"dist.zero": best["zero"], "dist.tensor": best["tensor"], "train.recompute": best["recompute"],
                         "train.micro_batch": best["micro_batch"], "train.steps": math.ceil(units / answer["units_per_step"])}}
    return priced(chosen, machine, row)


def priced(chosen, machine, row):
    """The row with dollars, and with what interruptions and saves do to its hours; or `why` it has neither."""
    if chosen.interruptions_a_day is not None:
        work_s, saves = row["hours"] * 3600, (chosen.stall_s, chosen.save_s, chosen.restart_s)
        per_s = goodput.interruptions_per_s(row["nodes"], chosen.interruptions_a_day)
        interval_s = goodput.best_interval(work_s, per_s, *saves)
        expected_s = goodput.expected_seconds(work_s, interval_s, per_s, *saves)
        if expected_s > NEVER * goodput.expected_seconds(work_s, work_s, 0, *saves):
            del row["hours"]
            return {**row, "why": "never ends: it is interrupted faster than it saves"}
        row |= {"goodput": work_s / expected_s, "save_every_minutes": interval_s / 60, "hours": expected_s / 3600}
        spot, firm = machine["usd_per_hour"]["spot"], machine["usd_per_hour"]["on_demand"]
        if spot and firm:
            row["spot_pays_up_to"] = goodput.break_even_rate(spot["usd"], firm["usd"], row["nodes"], work_s, *saves)
    row["usd"] = row["hours"] * row["nodes"] * row["price"]["usd"]
    many = "1e9" if row["unit"] == "tokens" else "1e6"
    row[f"usd_per_{many}_{row['unit']}"] = row["usd"] / row["units"] * float(many)
    return row


def excess(chosen, row):
    """How far the row is over the limits: 1 or less is within them."""
    return max(row["hours"] / chosen.deadline_hours, row["usd"] / chosen.budget)


def by(*keys):
    return lambda row: [row[key] for key in keys]


def mark(rows):
    """Says which of the rows are the cheapest, the fastest, and on the Pareto front: no other is both cheaper and faster."""
    front, least = [], math.inf
    for row in sorted(rows, key=by("usd", "hours")):
        if row["hours"] < least:
            front.append(row)
            least = row["hours"]
    for row in rows:
        row["marks"] = ["front"] * (row in front)
    front[0]["marks"].append("cheapest")
    front[-1]["marks"].append("fastest")


def advice(chosen, row):
    """What to rent, in a sentence, and the command."""
    price, save = row["price"], ""
    settings = {**chosen.settings, **row["settings"]}
    if "goodput" in row:
        settings["checkpoint.every_minutes"] = max(1, round(row["save_every_minutes"]))
        save = f", of which {100 - 100 * row['goodput']:.1f} % go to interruptions and saves"
    sentence = (f"Rent {row['nodes']} x {row['instance']} for {row['hours']:.4g} hours{save}: {row['usd']:.2f} dollars, at {price['usd']} "
                f"a node and hour ({words_of(chosen.market)}, {price['date']}: {price['source']}).")
    if "spot_pays_up_to" in row:
        sentence += f" Spot costs less than on demand up to {row['spot_pays_up_to']:.3g} interruptions of a node a day."
    if chosen.market == "sagemaker":  # its containers have the data and the run in folders of their own
        settings = {key: value for key, value in settings.items() if key not in ("data.path", "run.dir")}
        storage = "--data S3 --checkpoints S3" if row["nodes"] == 1 else "--fsx FSX --subnet SUBNET --security-group GROUP --output S3"
        start = f"launch/sagemaker/submit.py --instance ml.{row['instance']} --nodes {row['nodes']} --image URI --role ARN {storage}"
    else:
        hosts = "--hostfile hosts" if row["nodes"] > 1 else f"--hosts localhost:{row['gpus']}"
        start = f"launch/run.sh {hosts}" + f" --market {chosen.market}" * (chosen.market != "on_demand")
    return sentence, f"{start} -- {shlex.join(['train', *chosen.config_words, *assignments(settings)])}"


def table(rows):
    """Those that can be ranked, the cheapest first; then the others, with reasons."""
    ranked = sorted((row for row in rows if "usd" in row), key=by("usd", "hours"))
    rate, price = ("tokens/s", "usd/1e9") if ranked and ranked[0]["unit"] == "tokens" else ("images/s", "usd/1e6")
    lines = [f"{'nodes x type':22} {rate:>10} {'hours':>9} {'usd':>10} {price:>9}  zero tensor recompute micro-batch"] * bool(ranked)
    for row in ranked:
        settings, unit = row["settings"], row["unit"]
        each = row.get("usd_per_1e9_tokens", row.get("usd_per_1e6_images"))
        lines.append(f"{row['nodes']:>3} x {row['instance']:16} {row[unit + '_per_s']:10.4g} {row['hours']:9.4g} {row['usd']:10.2f} {each:9.2f}  "
                     f"{settings['dist.zero']:4} {settings['dist.tensor']:6} {settings['train.recompute']:>9} {settings['train.micro_batch']:11}"
                     f"  {', '.join(row['marks'])}".rstrip())
    lines += [f"{row.get('nodes', 'any'):>3} x {row['instance']:16} {row['why']}" for row in rows if "why" in row]
    return "\n".join(lines)


def main(words):
    chosen = parse(words)
    why = {name: unranked(chosen, machine_type(name, "--instances")) for name in chosen.instances}
    cases = [(name, nodes) for name in why if not why[name] for nodes in sorted(set(chosen.nodes))]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(lambda case: row_of(chosen, *case), cases))
    rows += [{"instance": name, "why": why[name]} for name in why if why[name]]
    ranked = [row for row in rows if "usd" in row]
    if not ranked:
        raise Failure(CONFIG, "nothing to recommend: " + "; ".join(dict.fromkeys(row["why"] for row in rows[:len(cases)] or rows)))
    mark(ranked)
    within = [row for row in ranked if excess(chosen, row) <= 1]
    wants_speed = chosen.budget < math.inf and chosen.deadline_hours == math.inf
    best = min(within, key=by("hours", "usd") if wants_speed else by("usd", "hours"), default=None)
    warnings = dict.fromkeys(f"{row['instance']}: {doubts(row['price'])}" for row in ranked if doubts(row["price"]))
    sentence, command = advice(chosen, best) if best else ("", "")
    if chosen.json:
        print(json.dumps({"advice": sentence, "command": command, "best": best, "warnings": list(warnings), "rows": rows}, indent=1))
    else:
        print("\n".join([*([sentence, f"    {command}", ""] if best else []), table(rows), *(f"warning: {line}" for line in warnings)]))
    if best:
        return 0
    near = min(ranked, key=lambda row: excess(chosen, row))
    limits = [f"{chosen.deadline_hours:.4g} hours"] * (chosen.deadline_hours < math.inf) + [f"{chosen.budget:.2f} dollars"] * (chosen.budget < math.inf)
    raise Failure(CONFIG, f"nothing is within {' and '.join(limits)}; the nearest is {near['nodes']} x {near['instance']}, which takes "
                          f"{near['hours']:.4g} hours and {near['usd']:.2f} dollars")
