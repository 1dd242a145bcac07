"""The results as files: results.json, results.csv, plots, and report.html, which holds everything and loads nothing."""
import csv
import io
import json
from html import escape

from files import write

from .amounts import short
from .study import write_json
from .tables import STYLE, case_table, efficiency_table, facts, left_out_table, traffic_table, verdict_table


def write_report(study, results):
    """The path of the report."""
    write_json(study.path("results.json"), results)
    write(study.path("results.csv"), csv_of(results))
    plots, lack = drawn(results)
    for name, plot in plots.items():
        write(study.path(name + ".svg"), plot)
    write(study.path("report.html"), html_of(results, plots, lack))
    if lack:
        print(lack)
    return study.path("report.html")


def csv_of(results):
    """A line for each case, and a column for each figure."""
    out = io.StringIO()
    settings = list(results["request"]["sweep"])
    intervals = ["step_ms", "throughput", "exposed_comm_ms", "mfu", "usd"]
    columns = ["case", "modes", "ranks", "nodes", "global_batch", *settings, "launches", "failed",
               *(f"{name}{end}" for name in intervals for end in ("", "_low", "_high")), "wire_bytes", "peak_bytes", "loss",
               "predicted_step_ms", "predicted_exposed_comm_ms", "predicted_wire_bytes", "predicted_peak_bytes", "finding"]
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for case in results["cases"]:
        row = {"case": case["id"], "modes": " ".join(case["modes"]), **case["sweep"], "failed": len(case["failed"]),
               "launches": case["step_ms"]["launches"] if case["step_ms"] else 0, "finding": case["verdict"]["finding"],
               **{f"predicted_{key}": case["predicted"][key] for key in ("step_ms", "exposed_comm_ms", "wire_bytes", "peak_bytes")}}
        row.update({key: case.get(key) for key in ("ranks", "nodes", "global_batch", "wire_bytes", "peak_bytes", "loss")})
        for name in intervals:
            for end, key in (("", "median"), ("_low", "low"), ("_high", "high")):
                row[name + end] = case[name][key] if case.get(name) else None
        writer.writerow(row)
    return out.getvalue()


def drawn(results):
    """The plots as SVG by name, and why there are none."""
    try:
        from .plots import plots_of
    except Exception as error:  # a damaged installation fails in many ways
        return {}, f"Charts were left out ({error}): pip install matplotlib"
    return plots_of(results), ""


def html_of(results, plots, lack):
    data = json.dumps(results).replace("</", "<\\/")
    name = escape(results["name"])
    lack = f"<p>{escape(lack)}</p>" if lack else ""
    sections = [
        ("Throughput and efficiency", "Dashed: the ideal. Vertical bars: the intervals of the table.", "throughput- efficiency-",
         efficiency_table(results)),
        ("Cases", "", "", case_table(results)),
        ("Verdicts", "By what a run measures: the parts of a step, its slowest rank, memory and loss.", "parts", verdict_table(results)),
        ("Ranks and steps", "A rank's own time in each step of the launch with the median step: computing, waiting for data or copies, "
         "the optimizer. A coloured row is a slow rank, a coloured column what slowed all. Jobs of more than 64 ranks have none.", "heat-", ""),
        ("Communication, in all and exposed, and memory", "Beside what `tandem estimate` predicted.", "communication traffic memory",
         traffic_table(results)),
        ("Left out", "", "", left_out_table(results)),
        ("How it was measured", "", "", facts(results)),
    ]
    body = []
    for title, note, prefixes, table in sections:
        shown = "".join(f"<figure>{plot}</figure>" for key, plot in plots.items() if key.startswith(tuple(prefixes.split())))
        if table or shown:
            note = f"<p>{escape(note)}</p>" if note else ""
            body.append(f'<section><h2>{title}</h2>{note}<div class="plots">{shown}</div>{table}</section>')
    return ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
            f"<title>Scaling of {name}</title><style>{STYLE}</style></head><body><main>"
            f"<h1>Scaling of {name}</h1>{summary_line(results)}{lack}{''.join(body)}</main>"
            f'<script type="application/json" id="results">{data}</script></body></html>\n')


def summary_line(results):
    words = []
    by_id = {case["id"]: case for case in results["cases"]}
    if results["fastest"]:
        case = by_id[results["fastest"]]
        words.append(f"Fastest: <b>{escape(case['id'])}</b>, {short(case['throughput']['median'])} {case['unit']} a second.")
    if results["cheapest"]:
        case = by_id[results["cheapest"]]
        words.append(f"Cheapest: <b>{escape(case['id'])}</b>, ${case['usd']['median']:.4g} per {results['per']}.")
    flagged = [case["id"] for case in results["cases"] if case.get("loss_check", {}).get("differs")]
    if flagged:
        words.append(f'<span class="bad">Losses differ: {escape(", ".join(flagged))}.</span>')
    return f"<p class=\"lead\">{' '.join(words)}</p>"
