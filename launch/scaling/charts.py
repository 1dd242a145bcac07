"""Line and bar charts as SVG, each a file of its own: light and dark, and nothing loaded from elsewhere."""
import math
import re
from html import escape

WIDTH = 600
COLOURS = 8
STYLE = """<style>
.chart{--surface:#fff;--ink:#1f2328;--muted:#59636e;--grid:#d8dee4;--c0:#2266c8;--c1:#c2560a;--c2:#12806a;--c3:#8b46c4;--c4:#b8285a;
--c5:#8a6d00;--c6:#0a7ea4;--c7:#5c6670;font:12px system-ui,sans-serif}
@media(prefers-color-scheme:dark){.chart{--surface:#14181d;--ink:#e6eaee;--muted:#9aa4ae;--grid:#2e353d;--c0:#6ea8fe;--c1:#f0944d;
--c2:#4cc3a5;--c3:#c19bf2;--c4:#f27aa0;--c5:#d9b93b;--c6:#58c4e8;--c7:#a9b3bd}}
.chart text{fill:var(--ink)}.chart .muted{fill:var(--muted)}.chart .grid{stroke:var(--grid);stroke-width:1}
.chart .ideal{stroke-dasharray:5 4;opacity:.65;stroke-width:1.5}.chart .line{stroke-width:2;fill:none}
</style>"""


def svg(height, title, parts):
    return (f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" role="img" aria-label="{escape(title)}">{STYLE}'
            f'<rect width="100%" height="100%" fill="var(--surface)"/>'
            f'<text x="16" y="22" font-weight="600" font-size="14">{escape(title)}</text>{"".join(parts)}</svg>')


def text(x, y, value, anchor="start", css="", size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}" font-size="{size}">{escape(str(value))}</text>'


def line(x1, y1, x2, y2, css="grid", stroke=None):
    colour = f' stroke="{stroke}"' if stroke else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"{colour}/>'


def short(number):
    """1234567 -> 1.23M."""
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor:
            return f"{number / factor:.3g}{suffix}"
    return f"{number:.3g}"


def size(count):
    """1234567 -> 1.23 MB."""
    return re.sub(r"([kMGT]?)$", r" \1B", short(count), count=1)


def log_ticks(low, high):
    """1, 2, 5 in each decade; over a small range, multiples of a round number."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**e for e in decades for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    if len(ticks) > 2:
        return ticks
    steps = [m * 10.0**e for e in range(decades[0] - 2, decades[-1] + 1) for m in (1, 2, 5)]
    step = min(steps, key=lambda step: abs((high - low) / step - 4))
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


class Scale:
    """From values to positions."""

    def __init__(self, low, high, start, end, log):
        self.f = math.log if log else float
        self.low, self.high = self.f(low), self.f(high)
        self.start, self.end = start, end

    def __call__(self, value):
        share = (self.f(value) - self.low) / ((self.high - self.low) or 1)
        return self.start + share * (self.end - self.start)


def line_chart(title, series, y_label, percent=False):
    """Over the number of ranks. `series`: {"name", "points": [(ranks, interval)], "ideal": [(ranks, value)]}. Throughput has
    logarithmic axes, where the ideal is a straight line; a percentage begins at 0."""
    legend = [*((each["name"], index % COLOURS) for index, each in enumerate(series)), ("ideal", None)]
    rows, bottom = legend_rows(legend), 300
    ranks = sorted({x for each in series for x, _ in each["points"]})
    values = [value for each in series for _, interval in each["points"] for value in (interval["low"], interval["high"])]
    values += [value for each in series for _, value in each["ideal"]]
    x = Scale(ranks[0], ranks[-1], 100, WIDTH - 50, True) if len(ranks) > 1 else lambda _: WIDTH / 2
    low, high = (0, max(1.1, max(values) * 1.05)) if percent else (min(values) / 1.15, max(values) * 1.15)
    y = Scale(low, high, bottom, 66, not percent)
    ticks = [tick / 5 for tick in range(int(high * 5) + 1)] if percent else log_ticks(low, high)
    parts = [text(16, 46, y_label, css="muted")]
    for tick in ticks:
        label = f"{tick:.0%}" if percent else short(tick)
        parts += [line(70, y(tick), WIDTH - 20, y(tick)), text(62, y(tick) + 4, label, "end", "muted")]
    parts += [text(x(each), bottom + 20, each, "middle", "muted") for each in ranks]
    parts.append(text(WIDTH - 20, bottom + 38, "ranks", "end", "muted"))
    for index, each in enumerate(series):
        parts += draw_series(each, index, len(series), x, y, percent)
    return svg(bottom + 50 + 20 * len(rows), title, [*parts, *draw_legend(rows, bottom + 62)])


def draw_series(series, index, count, x, y, percent):
    colour = f"var(--c{index % COLOURS})"
    shift = (index - (count - 1) / 2) * 4  # so that intervals at one place stay apart
    ideal = " ".join(f"{x(ranks):.1f},{y(value):.1f}" for ranks, value in series["ideal"])
    places = [(x(ranks) + shift, interval, ranks) for ranks, interval in series["points"]]
    medians = " ".join(f"{px:.1f},{y(interval['median']):.1f}" for px, interval, _ in places)
    parts = [f'<polyline points="{ideal}" class="line ideal" stroke="{colour}"/>',
             f'<polyline points="{medians}" class="line" stroke="{colour}"/>']
    for px, interval, ranks in places:
        low, high = y(interval["low"]), y(interval["high"])
        value = f"{interval['median']:.1%}" if percent else short(interval["median"])
        parts += [line(px, low, px, high, "line", colour),
                  *(line(px - 4, end, px + 4, end, "line", colour) for end in (low, high)),
                  f'<circle cx="{px:.1f}" cy="{y(interval["median"]):.1f}" r="4" fill="{colour}">'
                  f'<title>{escape(series["name"])}, ranks {ranks}: {value}</title></circle>']
        if count == 1:
            end = px > WIDTH - 90  # of the plot: the text goes to the left
            parts.append(text(px - 8 if end else px + 8, y(interval["median"]) - 8, value, "end" if end else "start"))
    return parts


def legend_rows(entries):
    """Entries in rows that are not too wide; each entry has its x."""
    rows, x = [[]], 70
    for name, colour in entries:
        width = 40 + 7 * len(name)
        if x + width > WIDTH and rows[-1]:
            rows.append([])
            x = 70
        rows[-1].append((x, name, colour))
        x += width
    return rows


def draw_legend(rows, y):
    parts = []
    for number, row in enumerate(rows):
        for x, name, colour in row:
            stroke = "var(--muted)" if colour is None else f"var(--c{colour})"
            parts += [line(x, y + 20 * number - 4, x + 20, y + 20 * number - 4, "line ideal" if colour is None else "line", stroke),
                      text(x + 26, y + 20 * number, name)]
    return parts


def bar_chart(title, rows, kinds, unit, stacked=False):
    """Horizontal bars. `rows`: [(name, [value, ...])] with a value for each of `kinds`; None: no bar. `unit`: value -> text.
    `stacked`: each row is one bar, of a piece for each value."""
    highest = max((sum(values) if stacked else max(value or 0 for value in values) for _, values in rows), default=0) or 1
    left, right, parts, x, y = 240, WIDTH - 70, [], 16, 64
    colours = range(COLOURS) if stacked else (0, COLOURS - 1)
    for colour, kind in zip(colours, kinds):
        parts += [f'<rect x="{x}" y="34" width="12" height="12" fill="var(--c{colour})"/>', text(x + 18, 45, kind)]
        x += 40 + 7 * len(kind)
    for name, values in rows:
        bars = 1 if stacked else len(values)
        parts.append(text(left - 10, y + 8 * bars + 2, name if len(name) <= 36 else name[:35] + "…", "end"))
        x = left
        for index, value in enumerate(values):
            if value is not None:
                width, top = (right - left) * value / highest, y if stacked else y + 15 * index
                parts.append(f'<rect x="{x:.1f}" y="{top}" width="{max(width, 0 if stacked else 1):.1f}" height="12" '
                             f'fill="var(--c{colours[index]})"><title>{escape(name)}, {kinds[index]}: {escape(unit(value))}</title></rect>')
                x = x + width if stacked else left
                if not stacked or index == len(values) - 1:
                    shown = unit(sum(values)) if stacked else unit(value)
                    parts.append(text((x if stacked else left + width) + 6, top + 10, shown, css="muted", size=11))
        y += 15 * bars + 10
    return svg(y + 10, title, parts)
