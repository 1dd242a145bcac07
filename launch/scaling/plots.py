"""Which charts show the results."""
from . import charts
from .amounts import size


def plots_of(results):
    """The charts as SVG, by name."""
    measured = [case for case in results["cases"] if case["step_ms"]]
    figures = lines(results, measured)
    if measured:
        figures.update(bars(measured))
    figures.update({f"heat-{case['id']}": charts.heat_map(case) for case in measured if case["ranks"] > 1 and case["heat"]})
    return {name: charts.svg(figure) for name, figure in figures.items()}


def lines(results, measured):
    figures = {}
    for mode in results["request"]["modes"]:
        # The ideal begins at the smallest job and grows with the ranks.
        series = series_of([case for case in measured if mode in case["modes"]], "throughput",
                           lambda first, ranks: first[1]["median"] * ranks / first[0])
        if series:
            figures[f"throughput-{mode}"] = charts.line_chart(f"Throughput, {mode} scaling", series, f"{measured[0]['unit']} a second")
        for against in ("1 rank", "1 node"):
            rows = [row for row in results["efficiency"] if row["mode"] == mode and row["against"] == against]
            series = [each for each in series_of(rows, "efficiency", lambda *_: 1) if len(each["points"]) > 1]
            if series:
                figures[f"efficiency-{mode}-{against.replace(' ', '-')}"] = charts.line_chart(
                    f"Efficiency, {mode} scaling", series, f"throughput of a rank, against {against}", percent=True)
    return figures


def series_of(rows, key, ideal):
    """A line for each combination of swept settings; `ideal` gives its ideal from the first point and a number of ranks."""
    points = {}
    for row in sorted(rows, key=lambda row: row["ranks"]):
        name = ", ".join(f"{setting} = {value}" for setting, value in row["sweep"].items()) or "measured"
        points.setdefault(name, []).append((row["ranks"], row[key]))
    return [{"name": name, "points": each, "ideal": [(ranks, ideal(each[0], ranks)) for ranks, _ in each]}
            for name, each in points.items()]


def bars(cases):
    def beside_estimate(title, label, show, key, measured):
        kinds = {"measured": list(map(measured, cases)), "tandem estimate": [case["predicted"][key] for case in cases]}
        return charts.bar_chart(title, label, show, names, kinds)

    names, ms = [case["id"] for case in cases], "{:.4g}".format
    parts = {part: [case["parts_ms"][part] for case in cases] for part in cases[0]["parts_ms"]}
    return {
        "communication": beside_estimate("Exposed communication", "ms a step", ms, "exposed_comm_ms",
                                         lambda case: case["exposed_comm_ms"]["median"]),
        "traffic": beside_estimate("Sent in a step, in all", "bytes", size, "wire_bytes", lambda case: case["wire_bytes"]),
        "parts": charts.bar_chart("A step of the slowest rank", "ms", ms, names, parts, stacked=True),
        "memory": beside_estimate("Peak memory of the largest rank", "bytes", size, "peak_bytes", lambda case: case["peak_bytes"])}
