"""The tables of the report, as HTML."""
from html import escape

from .amounts import short, size
from .losses import loss_text
from .verdicts import EFFICIENCY_ABOVE, MFU_ABOVE

STYLE = """
:root{--surface:#fff;--page:#f6f8fa;--ink:#1f2328;--muted:#59636e;--rule:#d8dee4;--mark:#dff3e6;--markink:#0b5c2a;--bad:#b42318}
@media(prefers-color-scheme:dark){:root{--surface:#14181d;--page:#0b0e12;--ink:#e6eaee;--muted:#9aa4ae;--rule:#2e353d;
--mark:#123d25;--markink:#8ce0ad;--bad:#ff8a80}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1240px;margin:0 auto;padding:24px 16px}h1{font-size:26px;margin:8px 0}h2{font-size:18px;margin:0 0 8px}
.lead{font-size:16px}p{margin:4px 0 12px;color:var(--muted)}.lead b,.lead{color:var(--ink)}
section{background:var(--surface);border:1px solid var(--rule);border-radius:8px;padding:16px;margin:16px 0;overflow-x:auto}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr));gap:12px;margin-bottom:12px}figure{margin:0}
figure svg{width:100%;max-width:600px;height:auto}
@media(prefers-color-scheme:dark){figure svg{filter:invert(.92) hue-rotate(180deg)}}
table{border-collapse:collapse;font-size:13px;width:100%}
th,td{text-align:left;padding:6px 8px;border-bottom:1px solid var(--rule);vertical-align:top}
th{color:var(--muted);font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
small{color:var(--muted)}.tag{background:var(--mark);color:var(--markink);border-radius:4px;padding:0 6px;margin-left:6px;
font-size:12px}
.bad{color:var(--bad)}code{font-size:12px;overflow-wrap:anywhere}
"""


def table(heads, rows):
    """Heads that begin with # are of numbers. Cells are HTML."""
    if not rows:
        return ""
    css = [' class="n"' if head.startswith("#") else "" for head in heads]
    head = "".join(f"<th{c}>{escape(h.lstrip('#'))}</th>" for h, c in zip(heads, css))
    body = "".join("<tr>" + "".join(f"<td{c}>{cell}</td>" for cell, c in zip(row, css)) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def with_interval(interval, show):
    return f"{show(interval['median'])} <small>[{show(interval['low'])}, {show(interval['high'])}]</small>"


def figure(value):
    return f"{value:.4g}"


def percent(value):
    return f"{value:.1%}"


def name_cell(case, results):
    tags = [word for word in ("fastest", "cheapest") if results[word] == case["id"]]
    return escape(case["id"]) + "".join(f'<span class="tag">{tag}</span>' for tag in tags)


def sweep_cell(sweep):
    return escape(", ".join(f"{key} = {value}" for key, value in sweep.items()))


def interval_note(intervals, noun):
    """What the brackets are."""
    kinds = []
    if any(each["confidence"] for each in intervals):
        kinds.append("the 95 % interval of the median by order statistics")
    if any(not each["confidence"] for each in intervals):
        kinds.append(f"the range where there are fewer than 6 {noun}, which an interval of 95 % needs")
    return f"<p>In brackets: {'; '.join(kinds)}.</p>" if kinds else ""


def doubt(intervals, why):
    """A note where a share is above 100 %."""
    return f'<p class="bad">Above 100 %: {escape(why)}.</p>' if any(each["median"] > 1 for each in intervals) else ""


def case_table(results):
    rows = []
    for case in results["cases"]:
        row = [name_cell(case, results), " and ".join(case["modes"]), case["ranks"], case["nodes"], case["global_batch"]]
        if case["step_ms"]:
            row += [case["step_ms"]["launches"], with_interval(case["step_ms"], figure), with_interval(case["throughput"], short),
                    percent(case["mfu"]["median"]) if case["mfu"] else "not known", with_interval(case["usd"], figure) if results["price"] else ""]
        else:
            row += [0, "", "", "", ""]
        rows.append(row + ["<br>".join(escape(f"launch {each['launch']}: {each['code']}, {each['last_line']}") for each in case["failed"])])
    dollars = f"#$ per {results['per']}" if results["price"] else "#$ (no price given)"
    heads = ["case", "scaling", "#ranks", "#nodes", "#global batch", "#launches", "#step ms", "#a second", "#MFU", dollars,
             "failed"]
    measured = [case for case in results["cases"] if case["step_ms"]]
    known = [case["mfu"] for case in measured if case["mfu"]]
    return interval_note([case["step_ms"] for case in measured], "launches") + doubt(known, MFU_ABOVE) + table(heads, rows)


def efficiency_table(results):
    rows, shown = [], [row for row in results["efficiency"] if row["base"] != row["case"]]
    for row in shown:
        hop = '<span class="tag">first hop between nodes</span>' if row["first_hop"] else ""
        rows.append([row["mode"], sweep_cell(row["sweep"]), row["ranks"], row["against"] + hop,
                     with_interval(row["efficiency"], percent), row["efficiency"]["launches"]])
    heads = ["scaling", "settings", "#ranks", "against", "#efficiency", "#blocks"]
    efficiencies = [row["efficiency"] for row in shown]
    return interval_note(efficiencies, "blocks") + doubt(efficiencies, EFFICIENCY_ABOVE) + table(heads, rows)


def verdict_table(results):
    keys = ["finding", "evidence", "next"]
    rows = [[name_cell(case, results), *(escape(case["verdict"][key]) for key in keys)] for case in results["cases"]]
    return table(["case", "finding", "evidence", "try next"], rows)


def traffic_table(results):
    rows = []
    for case in results["cases"]:
        if not case["step_ms"]:
            continue
        predicted = case["predicted"]
        rows.append([escape(case["id"]), figure(case["step_ms"]["median"]), figure(predicted["step_ms"]),
                     with_interval(case["exposed_comm_ms"], figure), figure(predicted["exposed_comm_ms"]),
                     *map(size, (case["wire_bytes"], predicted["wire_bytes"], case["peak_bytes"], predicted["peak_bytes"]))])
    heads = [head for name in ("#step ms", "#exposed ms", "#sent in all", "#peak memory") for head in (name, "#predicted")]
    return table(["case", *heads], rows)


def left_out_table(results):
    return table(["scaling", "#ranks", "settings", "why"],
                 [[case["mode"], case["ranks"], sweep_cell(case["sweep"]), escape(case["reason"])] for case in results["left_out"]])


def facts(results):
    """Everything that a reader needs to measure it again."""
    request, where = results["request"], results["environment"]
    price = results["price"]
    says = list(dict.fromkeys(line for case in results["cases"] for line in case.get("says", [])))
    measured = [case for case in results["cases"] if "loss_check" in case]
    losses = [f"{case['id']}: {case['loss']:.6g}, {loss_text(case['loss_check'])}" for case in measured]
    settings = [("config", path) for path in request["configs"]] + list(request["settings"].items())
    rows = [
        ("date", where["date"]), ("commit", f"{where['commit']}; program {where['tandem_sha256'][:16]}"),
        ("versions", ", ".join(f"{key} {value}" for key, value in where["versions"].items())), ("hosts", ", ".join(where["hosts"])),
        ("devices", "\n".join([where["cpu"], *where["devices"]])), ("a launch says", "\n".join(says)), 
        ("settings", " ".join(f"--{key} {value}" for key, value in settings)),
        ("launches", f"{request['launches']} of each case, in blocks that hold every case once; the order of a block is random "
                     f"(seed {request['seed']}), and that of every second block the reverse of the one before"),
        ("a launch", f"the median of {request['keep']} steps after {request['warmup']}; the ranks wait for each other in every "
                     "step, so this is the slowest rank's; of islands the mean of whole periods from one exchange to the next"),
        ("efficiency", "throughput of a rank relative to that of the smaller job, the median of the ratios within the blocks"),
        ("price", f"{price['usd_per_node_hour']} dollars a node and hour: {price['basis']}; nodes are paid whole" if price else ""),
        ("predictions", next((case["predicted"]["assumed"] for case in results["cases"]), "")),
        ("losses", "\n".join(losses)),
    ]
    return table(["", ""], [[f"<b>{name}</b>", escape(value).replace("\n", "<br>")] for name, value in rows if value])
