"""Line charts, bar charts and heat maps, drawn by matplotlib 3.5 or later. Without it this module cannot be imported."""
import io
import textwrap
from statistics import median

import matplotlib
from matplotlib import colormaps
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure

from .amounts import short

MARKERS = "osD^vPX*"
LEVELS = [1.05, 1.1, 1.25, 1.5, 2]  # at these multiples of the median the colour of a heat map changes
# What a user has chosen for matplotlib changes nothing. The salt gives the same results the same bytes.
matplotlib.rcdefaults()
matplotlib.rcParams.update({
    "svg.hashsalt": "tandem", "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"], "image.composite_image": False, "figure.constrained_layout.use": True,
    "font.size": 9, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "grid.color": "#d8dee4", "legend.frameon": False})


def svg(figure):
    """An element that loads nothing and may stand in a page."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata=dict.fromkeys(["Creator", "Date", "Format", "Type"]))
    return out.getvalue()[out.getvalue().index("<svg"):]


def new_axes(height, **properties):
    return Figure(figsize=(6.2, height)).add_subplot(**properties)


def shades(count):
    """Colours from dark to light, which also differ in grey."""
    return [colormaps["viridis"](0.85 * index / max(count - 1, 1)) for index in range(count)]


def add_legend(axes, names):
    """A legend below the axes, in as many columns as the longest name leaves room for."""
    columns = max(1, 80 // (max(map(len, names)) + 7))
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.6 / axes.figure.get_figheight()), ncol=columns)


def line_chart(title, series, label, percent=False):
    """Lines over the number of ranks. `series`: {"name", "points": [(ranks, interval)], "ideal": [(ranks, value)]}. Throughput has
    logarithmic axes, where the ideal is a straight line; a percentage begins at 0."""
    axes = new_axes(3.6 + 0.1 * len(series), title=title, xlabel="ranks", ylabel=label, xscale="log",
                    yscale="linear" if percent else "log", autoscale_on=False)
    show = "{:.1%}".format if percent else short
    for index, (each, colour) in enumerate(zip(series, shades(len(series)))):
        axes.plot(*zip(*each["ideal"]), "--", color=colour, linewidth=1)
        draw_intervals(axes, each, 1.02 ** (index - (len(series) - 1) / 2), color=colour, marker=MARKERS[index % len(MARKERS)])
        for ranks, interval in each["points"] if len(series) == 1 else []:
            axes.annotate(show(interval["median"]), (ranks, interval["median"]), (7, 7 if percent else -14), textcoords="offset points")
    axes.plot([], [], "--", color="grey", linewidth=1, label="ideal")
    ranks = sorted({ranks for each in series for ranks, _ in each["points"]})
    (left, right), (low, high) = axes.dataLim.intervalx, axes.dataLim.intervaly
    edge = 1.1 * (right / left) ** 0.05
    axes.set(xlim=(left / edge, right * edge), ylim=(0, max(1.1, high * 1.05)) if percent else (low / 1.2, high * 1.15),
             xticks=ranks, xticklabels=ranks)
    axes.minorticks_off()
    if not percent:
        axes.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}" if percent else short(value))
    axes.grid(axis="y")
    add_legend(axes, [each["name"] for each in series])
    return axes.figure


def draw_intervals(axes, series, shift, **look):
    """Medians with their intervals. `shift` keeps those of several series apart, which have one number of ranks."""
    ranks, intervals = zip(*series["points"])
    medians, lows, highs = ([interval[key] for interval in intervals] for key in ("median", "low", "high"))
    reach = [[middle - low for middle, low in zip(medians, lows)], [high - middle for middle, high in zip(medians, highs)]]
    axes.errorbar([count * shift for count in ranks], medians, reach, capsize=4, markersize=5,
                  label=textwrap.fill(series["name"], 70), **look)


def bar_chart(title, label, show, names, kinds, stacked=False):
    """Horizontal bars. `kinds`: name -> a value for each of `names`. `show`: value -> text. `stacked`: the values of all kinds
    are pieces of one bar."""
    rows = range(len(names))
    axes = new_axes(1.5 + 0.36 * len(names), title=title, xlabel=label)
    highest = max(map(sum, zip(*kinds.values())) if stacked else (value for values in kinds.values() for value in values))
    begin, width = [0] * len(names), 0.8 if stacked else 0.4
    for index, ((kind, values), colour) in enumerate(zip(kinds.items(), shades(len(kinds)))):
        places = [row if stacked else row + width * (index - 0.5) for row in rows]
        bars = axes.barh(places, values, width, begin, color=colour, label=kind)
        if stacked:
            begin = [sum(pair) for pair in zip(begin, values)]
            inside = [show(value) if value > highest / 12 else "" for value in values]
            axes.bar_label(bars, inside, label_type="center", color="white" if index < len(kinds) / 2 else "black", fontsize=8)
        if not stacked or kind == list(kinds)[-1]:
            axes.bar_label(bars, map(show, begin if stacked else values), padding=3, fontsize=8)
    axes.set(yticks=rows, yticklabels=[textwrap.fill(name, 32) for name in names], xlim=(0, 1.15 * highest or 1),
             ylim=(len(names) - 0.5, -0.5))
    axes.xaxis.set_major_formatter(lambda value, _: show(value))
    add_legend(axes, kinds)
    return axes.figure


def heat_map(case):
    """A cell for each rank and step, which shows what rank was slow, and when. `case["heat"]`: see results.py."""
    steps, first = case["heat"]["own_ms"], case["heat"]["first_step"]
    middle = median(ms for step in steps for ms in step)
    ratios = [[ms / middle for ms in rank] for rank in zip(*steps)]
    axes = new_axes(1.9 + min(0.2 * len(ratios), 3), title=f"{case['id']}, launch {case['heat']['launch']}", xlabel="step",
                    ylabel="rank")
    edges = (first - 0.5, first + len(steps) - 0.5, len(ratios) - 0.5, -0.5)
    image = axes.imshow(ratios, "YlOrRd", BoundaryNorm([0, *LEVELS], 256, extend="max"), aspect="auto", interpolation="none",
                        extent=edges)
    axes.locator_params(integer=True)
    axes.figure.colorbar(image, ax=axes, location="bottom", aspect=40, ticks=LEVELS, label=f"own time / median of {middle:.4g} ms")
    return axes.figure
