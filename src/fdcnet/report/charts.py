"""Line charts as inline SVG. Colours come from CSS variables, so that a chart follows the page into dark mode."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fdcnet.report.markup import Markup, tag

# Okabe and Ito's colours, told apart by every common kind of colour vision; dash and marker tell them apart in print.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#a4508b", "#b8860b", "#56a0d3", "#555b66", "#8a4b20")
DASHES = (None, "6 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2", "1 2", "14 3 3 3")
MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",  # circle
    "M-3.6 -3.6h7.2v7.2h-7.2z",  # square
    "M0 -4.8L4.6 3.6H-4.6z",  # triangle
    "M0 -5L5 0L0 5L-5 0z",  # diamond
    "M0 4.8L4.6 -3.6H-4.6z",  # triangle on its tip
    "M-4 -1.3h2.7v-2.7h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7z",  # plus
    "M-4.2 -4.2L0 -1.6L4.2 -4.2L1.6 0L4.2 4.2L0 1.6L-4.2 4.2L-1.6 0z",  # star
    "M-4.6 -2.2h9.2v4.4h-9.2z",  # bar
)
LETTER = 6.6  # width of a letter at the chart's font size: SVG cannot measure text
LEGEND_ROW = 20


@dataclass(frozen=True)
class Series:
    label: str
    points: Sequence[tuple[float, float | None]]  # None interrupts the line
    style: int = 0  # index of colour, dash and marker


@dataclass(frozen=True)
class _Frame:
    """Where the plot area lies in the picture, and what it spans."""

    x: tuple[float, float]
    y: tuple[float, float]
    left: float
    right: float
    top: float
    bottom: float

    def px(self, x: float) -> float:
        return round(self.left + (x - self.x[0]) / (self.x[1] - self.x[0]) * (self.right - self.left), 1)

    def py(self, y: float) -> float:
        return round(self.bottom - (y - self.y[0]) / (self.y[1] - self.y[0]) * (self.bottom - self.top), 1)


def line_chart(
    series: Sequence[Series],
    title: str,
    *,
    x_label: str = "",
    y_label: str = "",
    x_ticks: Sequence[tuple[float, str]] | None = None,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    bands: Sequence[tuple[float, float]] = (),
    dividers: Sequence[float] = (),
    markers: bool = True,
    end_values: bool = False,
    legend: bool = True,
    width: int = 440,
    height: int = 280,
) -> Markup:
    """A chart with axes, ticks and legend.

    `bands` shade spans of x, `dividers` are upright lines, `end_values` writes the last number beside each line.
    """
    points = [(x, y) for line in series for x, y in line.points if y is not None and math.isfinite(y)]
    if not points:
        return Markup("")
    keys = _legend(series, width) if legend and len(series) > 1 else []
    about = height // 55
    y_ticks = _ticks_around(*(y_range or _span([0.0, *(y for _, y in points)])), about)
    frame = _Frame(
        x=x_range or _span([x for x, _ in points]),
        y=(y_ticks[0], y_ticks[-1]),
        left=16 + LETTER * max(3, *(len(number(y)) for y in y_ticks)),
        right=width - (40 if end_values else 10),
        top=10 + (18 if y_label else 0) + LEGEND_ROW * (1 + max((row for row, _ in keys), default=-1)),
        bottom=height - (42 if x_label else 24),
    )
    return tag(
        "svg",
        tag("title", title),
        [shape for _, shape in keys],
        _grid(frame, x_ticks or [(x, number(x)) for x in ticks(*frame.x)], y_ticks, bands, dividers),
        tag("text", y_label, x=2, y=frame.top - 9, class_="axis-name") if y_label else None,
        tag("text", x_label, x=(frame.left + frame.right) / 2, y=height - 6, text_anchor="middle", class_="axis-name")
        if x_label
        else None,
        [_line(line, frame, markers) for line in series],
        _end_values(series, frame) if end_values else None,
        class_="chart",
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=title,
    )


STANDALONE = """text{font:12px system-ui,"Segoe UI",Roboto,"Liberation Sans",Arial,sans-serif;fill:#61656e}
.key{fill:#1d1f24}.end{font-weight:600}.line{fill:none;stroke-width:2;stroke-linejoin:round}
.grid{stroke:#e3e1dc}.axis{stroke:#61656e}.divider{stroke:#e3e1dc}.band{fill:#f0eee9}"""


def standalone(chart: Markup) -> str:
    """The chart as a file of its own, on white."""
    ground = tag("rect", width="100%", height="100%", fill="#fff")
    opening, rest = chart.split(">", 1)
    width, height = opening.partition('viewBox="0 0 ')[2].split('"')[0].split()
    outside = f'xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    return f"{opening} {outside}>{tag('style', Markup(STANDALONE))}{ground}{rest}\n"


def swatch(style: int) -> Markup:
    """The key of a series, to stand beside its name in text."""
    return tag("svg", *_key(style, 0, 7), class_="swatch", viewBox="0 0 26 14", aria_hidden="true")


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) from low to high."""
    assert high > low
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = min((factor * power for factor in (1, 2, 5, 10)), key=lambda size: abs(math.log(size / rough)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def number(value: float) -> str:
    """Short, without needless zeros: 0.05, 2.5, 80, 12k."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.4g}".replace("-", "−")


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks_around(low: float, high: float, about: int) -> list[float]:
    """Round numbers that enclose both."""
    inner = ticks(low, high, about)
    step = inner[1] - inner[0]
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def _colour(style: int) -> str:
    i = style % len(COLOURS)
    return f"var(--series-{i}, {COLOURS[i]})"


def _pattern(style: int) -> tuple[str | None, str]:
    """Dash and marker; where colours begin again, another pair for each."""
    i = style + style // len(COLOURS)
    return DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)]


def _grid(
    frame: _Frame,
    x_ticks: Sequence[tuple[float, str]],
    y_ticks: Sequence[float],
    bands: Sequence[tuple[float, float]],
    dividers: Sequence[float],
) -> list[Markup]:
    left, right, top, bottom = frame.left, frame.right, frame.top, frame.bottom
    shapes = []
    for start, end in bands:
        x, width = frame.px(start), round(frame.px(end) - frame.px(start), 1)
        shapes.append(tag("rect", x=x, y=top, width=width, height=bottom - top, class_="band"))
    for value in y_ticks:
        y = frame.py(value)
        shapes.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="axis" if value == 0 else "grid"))
        shapes.append(tag("text", number(value), x=left - 8, y=y + 4, text_anchor="end"))
    shapes += [tag("line", x1=frame.px(x), x2=frame.px(x), y1=top, y2=bottom, class_="divider") for x in dividers]
    shapes += [tag("text", label, x=frame.px(x), y=bottom + 17, text_anchor="middle") for x, label in x_ticks]
    return shapes


def _line(line: Series, frame: _Frame, markers: bool) -> Markup:
    steps, pen_up = [], True
    for x, y in line.points:
        if y is None or not math.isfinite(y):
            pen_up = True
            continue
        steps.append(f"{'M' if pen_up else 'L'}{frame.px(x)} {frame.py(y)}")
        pen_up = False
    dash, marker = _pattern(line.style)
    drawn = [tag("path", d="".join(steps), class_="line", stroke_dasharray=dash, style=f"stroke:{_colour(line.style)}")]
    shown = line.points if markers else _alone(line.points)
    drawn += [
        tag(
            "path",
            tag("title", f"{line.label}: {y:.1f}" if markers else f"{line.label}: {y:.4g}"),
            d=marker,
            transform=f"translate({frame.px(x)} {frame.py(y)})",
            style=f"fill:{_colour(line.style)}",
        )
        for x, y in shown
        if y is not None and math.isfinite(y)
    ]
    return tag("g", drawn)


def _alone(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """Points without a neighbour, which a line alone would not show."""
    heights = [None, *(y for _, y in points), None]
    return [point for i, point in enumerate(points) if heights[i] is None and heights[i + 2] is None]


def _end_values(series: Sequence[Series], frame: _Frame) -> list[Markup]:
    """The last number of each line, to its right, moved apart where they would overlap."""
    ends = []
    for line in series:
        known = [(x, y) for x, y in line.points if y is not None and math.isfinite(y)]
        if known:
            x, y = known[-1]
            ends.append([frame.py(y) + 4, frame.px(x) + 9, y, line.style])
    ends.sort()
    for upper, lower in pairwise(ends):
        lower[0] = max(lower[0], upper[0] + 14)
    lowest = frame.bottom + 4
    for end in reversed(ends):
        end[0] = min(end[0], lowest)
        lowest = end[0] - 14
    return [
        tag(
            "text",
            f"{value:z.1f}".replace("-", "−"),
            x=x,
            y=round(y, 1),
            class_="end",
            style=f"fill:{_colour(int(style))}",
        )
        for y, x, value, style in ends
    ]


def _legend(series: Sequence[Series], width: int) -> list[tuple[int, Markup]]:
    """Keys from left to right, in as many rows as they need: (row, shape)."""
    shapes, row, x = [], 0, 2.0
    for line in series:
        label = line.label if len(line.label) <= 40 else line.label[:39] + "…"
        needed = 32 + LETTER * len(label)
        if x > 2 and x + needed > width:
            row, x = row + 1, 2.0
        y = 10 + LEGEND_ROW * row
        shapes.append((row, tag("g", *_key(line.style, x, y), tag("text", label, x=x + 32, y=y + 4, class_="key"))))
        x += needed + 14
    return shapes


def _key(style: int, x: float, y: float) -> list[Markup]:
    dash, marker = _pattern(style)
    return [
        tag("path", d=f"M{x} {y}h26", class_="line", stroke_dasharray=dash, style=f"stroke:{_colour(style)}"),
        tag("path", d=marker, transform=f"translate({x + 13} {y})", style=f"fill:{_colour(style)}"),
    ]
