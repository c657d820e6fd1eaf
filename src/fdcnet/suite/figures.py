"""The figures of a suite as SVG files, from its results; and photos, where the run folders are still there."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

from markupsafe import Markup
from PIL import Image

from fdcnet.evaluation.incremental import forgetting
from fdcnet.files import write_bytes
from fdcnet.report.charts import Series, line_chart, standalone
from fdcnet.report.photos import gallery_picture
from fdcnet.report.runs import load
from fdcnet.report.tables import METRICS
from fdcnet.store.record import read_mapping
from fdcnet.suite import drift
from fdcnet.suite.plan import Suite, TableSpec
from fdcnet.suite.rows import Measured, ProtocolKey, Row, protocol_key, rows_of

METRIC = "top1_loc"
MISSING = float("nan")
WIDTH, HEIGHT = 560, 360
CAPTIONS = {
    "accuracy": "Top-1 Loc after each task. Bands: standard deviation over the runs of a row. Rows that end below half "
    "of the best are not shown.",
    "forgetting": "Top-1 Loc forgotten after each task, in points.",
    "memory": "Top-1 Loc after the last task against the size of the memory.",
    "drift": "Drift: how far the mean features of the first task's classes have moved, by LDA (one minus the cosine).",
    "ways": "Drift: the mean features of four classes of the first task after each task, by LDA, projected to a plane.",
    "photos": "The same test photos after the last task. Green: predicted box. Red, dashed: true box.",
}


def write_figures(suite: Suite, runs: Mapping[str, list[Measured]], results: Path, run_dirs: Path | None) -> None:
    folder = results / suite.name / "figures"
    for table in suite.tables:
        for kind, chart in charts(runs[table.name]):
            write_bytes(folder / f"{table.name}-{kind}.svg", standalone(chart).encode())
        if run_dirs and (picture := photos(runs[table.name], run_dirs)):
            write_bytes(folder / f"{table.name}-photos.jpg", picture)


def links(suite: Suite, table: TableSpec, results: Path, prefix: str = "") -> Iterator[str]:
    """Markdown of the figures that exist."""
    for kind, caption in CAPTIONS.items():
        for file in sorted((results / suite.name / "figures").glob(f"{table.name}-{kind}.*")):
            yield f"![{caption}]({prefix}figures/{file.name})\n\n*{caption}*\n"


def charts(runs: Sequence[Measured]) -> Iterator[tuple[str, Markup]]:
    """The charts that have something to show, under the first protocol."""
    if not runs:
        return
    found = {
        "accuracy": accuracy(rows_of(runs, runs[0].protocols[0])),
        "forgetting": forgotten(rows_of(runs, runs[0].protocols[0])),
        "memory": against_memory(runs),
        "drift": drifted(runs),
        "ways": drift_ways(runs),
    }
    yield from ((kind, chart) for kind, chart in found.items() if chart)


def accuracy(rows: Sequence[Row]) -> Markup:
    """A band shows the standard deviation where a row has several runs. Joint training is a point at the end."""
    series = []
    for i, row in enumerate(rows):
        values = [[_number(task[METRIC]) for task in one["tasks"]] for one in row.results]
        series.append(_series(row.label, i, row.class_counts, values))
    best = max((line.points[-1][1] or 0.0 for line in series), default=0.0)
    shown = [line for line in series if (line.points[-1][1] or 0.0) >= best / 2]
    return _over_classes(shown, METRICS[METRIC], "%") if any(len(line.points) > 1 for line in shown) else Markup("")


def forgotten(rows: Sequence[Row]) -> Markup:
    series = []
    for i, row in enumerate(rows):
        if not row.at_once:
            matrices = [one["matrix"][METRIC] for one in row.results]
            tasks = range(2, len(row.class_counts) + 1)
            values = [[_number(forgetting(matrix[:t])) for t in tasks] for matrix in matrices]
            series.append(_series(row.label, i, row.class_counts[1:], values))
    return _over_classes(series, f"{METRICS[METRIC]} forgotten", "points") if series else Markup("")


def against_memory(runs: Sequence[Measured]) -> Markup:
    """For tables that vary `memory.budget`: a line per method, other settings, classifier and compensation."""
    lines: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        budget = run.results[0]["made"]["config"]["memory"]["budget"]
        others = run.variant.removeprefix(f"budget{budget}").removeprefix("-")
        for results in run.results:
            protocol = protocol_key(results)
            if protocol != replace(run.protocols[0], map="class", topk=0, classifier=protocol.classifier):
                continue
            alone = "" if results["protocol"]["compensated"] else ", network alone"
            label = ", ".join(filter(None, [run.recipe.split("-")[-1], others, protocol.classifier])) + alone
            lines.setdefault(label, {}).setdefault(budget, []).append(_number(results["last"][METRIC]))
    budgets = sorted({budget for points in lines.values() for budget in points})
    if len(budgets) < 2:
        return Markup("")
    series = [
        Series(label, [(budget, mean(points[budget])) for budget in sorted(points)], i)
        for i, (label, points) in enumerate(lines.items())
    ]
    ticks = [(budget, str(budget)) for budget in budgets]
    return _chart(series, f"{METRICS[METRIC]} (%)", "photos in memory", ticks, "%")


def drifted(runs: Sequence[Measured]) -> Markup:
    """The distance of the first task's classes from where they were, by method."""
    series: list[Series] = []
    for label, own in _drifts(runs).items():
        values = [[row[0] for row in found["distances"]] for found in own]
        series.append(_series(label, len(series), own[0]["num_classes"], values))
    return _over_classes(series, "Moved since the first task (1 − cosine)", "") if series else Markup("")


def drift_ways(runs: Sequence[Measured]) -> Markup:
    """The ways of a few classes of the first row."""
    for own in _drifts(runs).values():
        names = [name.split(".")[-1].replace("_", " ") for name in own[0]["ways"]]
        series = [
            Series(name, [(x, y) for x, y in way], i)
            for i, (name, way) in enumerate(zip(names, own[0]["ways"].values(), strict=True))
        ]
        heights = [y for line in series for _, y in line.points if y is not None]
        limits = min(heights), max(heights)
        return line_chart(
            series, "Class means after each task", y_range=limits, width=WIDTH, height=HEIGHT, x_label="first axis"
        )
    return Markup("")


def photos(runs: Sequence[Measured], run_dirs: Path) -> bytes | None:
    """The gallery of `fdcnet compare`, of the first run of each row that still has its run folder."""
    first = {run.recipe: run_dirs / run.folder.name for run in reversed(runs) if run.folder}
    folders = [folder for folder in reversed(first.values()) if (folder / "run.json").is_file()]
    picture = gallery_picture(load(folders)) if folders else None
    if picture is None:
        return None
    buffer = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _drifts(runs: Sequence[Measured]) -> dict[str, list[dict]]:
    """By row."""
    protocol: ProtocolKey = runs[0].protocols[0]
    found = {
        row.label: [
            read_mapping(run.folder / drift.FILE)
            for run in row.runs
            if run.folder and (run.folder / drift.FILE).is_file()
        ]
        for row in rows_of(runs, protocol)
        if row.compensated
    }
    return {label: own for label, own in found.items() if own}


def _extent(line: Series) -> Iterator[float]:
    """All heights of a line and of the band around it."""
    for i, (_, y) in enumerate(line.points):
        half = line.spread[i] if line.spread else 0.0
        yield from () if y is None else (y - half, y + half)


def _number(value: float | None) -> float:
    """NaN where there is no true box: charts leave it out."""
    return MISSING if value is None else value


def _series(label: str, style: int, xs: Sequence[int], repeats: Sequence[Sequence[float]]) -> Series:
    """The mean of the repeats, with their standard deviation as a band."""
    columns = list(zip(*repeats, strict=True))
    spread = [_deviation(values) for values in columns] if len(repeats) > 1 else ()
    return Series(label, [(float(x), mean(values)) for x, values in zip(xs, columns, strict=True)], style, spread)


def _deviation(values: Sequence[float]) -> float:
    return MISSING if any(value != value for value in values) else stdev(values)  # stdev() raises for NaN


def _over_classes(series: Sequence[Series], title: str, unit: str) -> Markup:
    xs = sorted({x for line in series for x, _ in line.points})
    return _chart(series, f"{title} ({unit})" if unit else title, "classes learned", [(x, f"{x:g}") for x in xs], unit)


def _chart(series: Sequence[Series], title: str, x_label: str, ticks: Sequence[tuple[float, str]], unit: str) -> Markup:
    """Empty if there is no value."""
    values = [y for line in series for y in _extent(line) if y == y]
    if not values:
        return Markup("")
    low, high = min(values), max(values)
    limits = (low - 0.1 * (high - low), high + 0.1 * (high - low)) if high > low else (low - 1, high + 1)
    return line_chart(
        series,
        title,
        x_label=x_label,
        y_label=title,
        x_ticks=ticks,
        x_range=(ticks[0][0], ticks[-1][0]) if len(ticks) > 1 else None,
        y_range=limits if unit == "%" else (min(0.0, low), max(high, 1e-3)),
        end_values=unit != "",
        width=WIDTH,
        height=HEIGHT,
    )
