"""Line charts as inline SVG. Colours come from CSS variables, so charts follow the page into dark mode."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeGuard

from markupsafe import Markup

from fdcnet.report.rendering import render

# Okabe and Ito's colours: distinct for every common kind of colour vision. Dashes and markers are distinct in print.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#a4508b", "#b8860b", "#56a0d3", "#555b66", "#8a4b20")
DASHES = (None, "6 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2", "1 2", "14 3 3 3")
MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",  # circle
    "M-3.6 -3.6h7.2v7.2h-7.2z",  # square
    "M0 -4.8L4.6 3.6H-4.6z",  # triangle
    "M0 -5L5 0L0 5L-5 0z",  # diamond
    "M0 4.8L4.6 -3.6H-4.6z",  # triangle, tip down
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
    spread: Sequence[float] = ()  # half the height of a band around each point; none: no band


@dataclass(frozen=True)
class Mark:
    """A labelled vertical line."""

    x: float
    label: str


@dataclass(frozen=True)
class _Frame:
    """The position of the plot area in the picture, and the range of its axes."""

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
    marks: Sequence[Mark] = (),
    markers: bool = True,
    end_values: bool = False,
    legend: bool = True,
    width: int = 440,
    height: int = 280,
) -> Markup:
    """A chart with axes, ticks and legend.

    `bands` shade ranges of x, `dividers` and `marks` are vertical lines, `end_values` writes the last value of each
    line next to it.
    """
    points = [(x, y) for line in series for x, y in line.points if _known(y)]
    if not points:
        return Markup("")
    keys = _legend(series, width) if legend and len(series) > 1 else []
    y_ticks = _ticks_around(*(y_range or _span([0.0, *(y for _, y in points)])), height // 55)
    frame = _Frame(
        x=x_range or _span([x for x, _ in points]),
        y=(y_ticks[0], y_ticks[-1]),
        left=16 + LETTER * max(3, *(len(number(y)) for y in y_ticks)),
        right=width - (50 if end_values else 10),  # 50: room for 100.0
        top=10 + (18 if y_label or marks else 0) + LEGEND_ROW * (1 + max((key["row"] for key in keys), default=-1)),
        bottom=height - (42 if x_label else 24),
    )
    return render(
        "chart.svg",
        title=title,
        width=width,
        height=height,
        frame=frame,
        keys=keys,
        bands=[(frame.px(start), round(frame.px(end) - frame.px(start), 1)) for start, end in bands],
        y_ticks=[(frame.py(y), number(y), y == 0) for y in y_ticks],
        dividers=[frame.px(x) for x in dividers],
        marks=[(frame.px(mark.x), mark.label) for mark in marks],
        x_ticks=[(frame.px(x), label) for x, label in x_ticks or [(x, number(x)) for x in ticks(*frame.x)]],
        x_label=x_label,
        y_label=y_label,
        lines=[_line(line, frame, markers) for line in series],
        ends=_end_values(series, frame) if end_values else [],
    )


STANDALONE = """text{font:12px system-ui,"Segoe UI",Roboto,"Liberation Sans",Arial,sans-serif;fill:#61656e}
.key{fill:#1d1f24}.end{font-weight:600}.line{fill:none;stroke-width:2;stroke-linejoin:round}
.grid{stroke:#e3e1dc}.axis{stroke:#61656e}.divider{stroke:#e3e1dc}.mark{stroke:#61656e;stroke-dasharray:4 3}
.band{fill:#f0eee9}"""


def standalone(chart: Markup) -> str:
    """The chart as an SVG file on a white background."""
    opening, rest = str(chart).split(">", 1)
    width, height = opening.partition('viewBox="0 0 ')[2].split('"')[0].split()
    attributes = f'xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    return f"{opening} {attributes}><style>{STANDALONE}</style>{background}{rest}\n"


def swatch(style: int) -> Markup:
    """The legend key of a series, for use next to its name in text."""
    return render("swatch.svg", look=_look(style))


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) from low to high."""
    assert high > low
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = min((factor * power for factor in (1, 2, 5, 10)), key=lambda size: abs(math.log(size / rough)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def number(value: float) -> str:
    """A short number without needless zeros: 0.05, 2.5, 80, 12k."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.4g}".replace("-", "−")


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks_around(low: float, high: float, about: int) -> list[float]:
    """Round numbers that enclose both."""
    inner = ticks(low, high, about)
    step = inner[1] - inner[0]
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def _look(style: int) -> dict[str, str | None]:
    """Colour, dash and marker. Once the colours repeat, dash and marker are paired differently."""
    colour, pair = style % len(COLOURS), style + style // len(COLOURS)
    return {
        "colour": f"var(--series-{colour}, {COLOURS[colour]})",
        "dash": DASHES[pair % len(DASHES)],
        "marker": MARKERS[pair % len(MARKERS)],
    }


def _line(line: Series, frame: _Frame, markers: bool) -> dict[str, Any]:
    steps, pen_up = [], True
    for x, y in line.points:
        if not _known(y):
            pen_up = True
            continue
        steps.append(f"{'M' if pen_up else 'L'}{frame.px(x)} {frame.py(y)}")
        pen_up = False
    shown = line.points if markers else _isolated(line.points)
    hint = "{}: {:.1f}" if markers else "{}: {:.4g}"
    dots = [(frame.px(x), frame.py(y), hint.format(line.label, y)) for x, y in shown if _known(y)]
    return {"look": _look(line.style), "path": "".join(steps), "dots": dots, "area": _area(line, frame)}


def _area(line: Series, frame: _Frame) -> str:
    """The outline of the band around a line; empty without one, or where a value is missing."""
    points = [(x, y) for x, y in line.points if _known(y)]
    if not line.spread or len(points) < len(line.points):
        return ""
    around = list(zip(points, line.spread, strict=True))
    edge = [(x, y + half) for (x, y), half in around]
    edge += [(x, y - half) for (x, y), half in reversed(around)]
    return "M" + "L".join(f"{frame.px(x)} {frame.py(y)}" for x, y in edge) + "Z"


def _isolated(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """Points without a neighbour, which are invisible without a marker."""
    heights = [None, *(y for _, y in points), None]
    return [point for i, point in enumerate(points) if heights[i] is None and heights[i + 2] is None]


def _end_values(series: Sequence[Series], frame: _Frame) -> list[dict[str, Any]]:
    """The last value of each line, moved apart where they would overlap."""
    ends = []
    for line in series:
        known = [(x, y) for x, y in line.points if _known(y)]
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
        {"x": x, "y": round(y, 1), "text": f"{value:z.1f}".replace("-", "−"), "look": _look(int(style))}
        for y, x, value, style in ends
    ]


def _legend(series: Sequence[Series], width: int) -> list[dict[str, Any]]:
    """Legend keys from left to right, in as many rows as they need."""
    keys, row, x = [], 0, 2.0
    for line in series:
        label = line.label if len(line.label) <= 40 else line.label[:39] + "…"
        needed = 32 + LETTER * len(label)
        if x > 2 and x + needed > width:
            row, x = row + 1, 2.0
        keys.append({"row": row, "x": x, "y": 10 + LEGEND_ROW * row, "label": label, "look": _look(line.style)})
        x += needed + 14
    return keys
