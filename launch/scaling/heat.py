"""A heat map of ranks and steps: which rank was slow, and when."""
from statistics import median

from .charts import WIDTH, svg, text

LEVELS = [1.05, 1.1, 1.25, 1.5, 2]  # times the median of all; a cell's colour is that of the first it is below
LIGHT = ["#edf2f9", "#f6d9a8", "#efa968", "#dd6b3c", "#b3341f", "#6d1212"]
DARK = ["#1d2530", "#5a4526", "#94612f", "#cf7f3a", "#f0a85c", "#ffe1a6"]
STYLE = "<style>" + "".join(f".h{level}{{fill:{colour}}}" for level, colour in enumerate(LIGHT)) + (
    "@media(prefers-color-scheme:dark){" + "".join(f".h{level}{{fill:{colour}}}" for level, colour in enumerate(DARK)) + "}</style>")


def heat_map(case):
    """`case["heat"]`: see results.py."""
    steps, first = case["heat"]["own_ms"], case["heat"]["first_step"]
    ranks = len(steps[0])
    middle = median([ms for step in steps for ms in step])
    left, top = 60, 84
    width, height = round((WIDTH - left - 20) / len(steps), 2), max(5, min(18, 240 // ranks))
    parts = [STYLE, text(16, 44, f"own time, times the median of {middle:.4g} ms", css="muted")]
    for level, label in enumerate([f"below {LEVELS[0]}", *(f"from {low}" for low in LEVELS)]):
        x = left + 86 * level
        parts += [f'<rect x="{x}" y="54" width="12" height="12" class="h{level}"/>', text(x + 18, 65, label, css="muted", size=11)]
    parts.append(f'<rect x="{left}" y="{top}" width="{width * len(steps):.1f}" height="{height * ranks}" class="h0"/>')
    for level in range(1, len(LIGHT)):
        cells = [f"M{left + width * column:.1f} {top + height * rank}h{width:g}v{height}h-{width:g}z"
                 for rank in range(ranks) for column, step in enumerate(steps) if level_of(step[rank] / middle) == level]
        if cells:
            parts.append(f'<path class="h{level}" d="{"".join(cells)}"/>')
    every = -(-12 // height)  # lines of text need 12
    parts += [text(left - 8, top + height * rank + height / 2 + 4, rank, "end", "muted", 11) for rank in range(0, ranks, every)]
    bottom = top + height * ranks + 16
    parts += [text(left, bottom, first, css="muted"), text(WIDTH - 20, bottom, first + len(steps) - 1, "end", "muted"),
              text(left - 8, top - 6, "rank", "end", "muted", 11), text(WIDTH / 2, bottom, "step", "middle", "muted")]
    return svg(bottom + 12, f"{case['id']}, launch {case['heat']['launch']}", parts)


def level_of(ratio):
    return sum(ratio >= low for low in LEVELS)
