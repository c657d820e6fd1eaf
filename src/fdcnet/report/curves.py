"""The curves of a comparison: accuracy over the classes learned, and what was lost of earlier tasks."""

from collections.abc import Sequence

from fdcnet.report.charts import Series, line_chart, swatch
from fdcnet.report.markup import Markup, tag
from fdcnet.report.runs import Run
from fdcnet.report.tables import METRICS, group_matrix, measured, show

Matrix = Sequence[Sequence[float | None]]


def accuracy_curve(runs: Sequence[Run], metric: str) -> Markup:
    """Acc_t over the tasks; a run that learned all classes at once is a point at the end."""
    series = [Series(run.label, _points(run, metric), run.style) for run in runs]
    values = [y for line in series for _, y in line.points if y is not None]
    lowest = 10 * int(max(0.0, min(values, default=0.0) - 2) // 10)
    highest = min(100, 10 * int(-(-(max(values, default=100.0) + 1) // 10)))
    sizes = sorted({x for line in series for x, _ in line.points})
    return line_chart(
        series,
        f"{METRICS[metric]} after each task",
        x_label="classes learned",
        y_label=f"{METRICS[metric]} (%)",
        x_ticks=[(x, f"{x:g}") for x in sizes],
        x_range=(sizes[0], sizes[-1]) if len(sizes) > 1 else None,
        y_range=(lowest, highest),
        end_values=True,
        height=340,
    )


def forgetting_curve(runs: Sequence[Run], metric: str) -> Markup:
    """The mean over earlier tasks of what their classes have lost, after each task."""
    series = []
    for run in runs:
        sizes = [float(task["num_classes"]) for task in run.measured_tasks]
        points = [(size, _mean(_lost(run, metric, t + 1))) for t, size in enumerate(sizes) if t]
        if any(y is not None for _, y in points):
            series.append(Series(run.label, points, run.style))
    sizes = sorted({x for line in series for x, _ in line.points})
    return line_chart(
        series,
        f"Forgetting of {METRICS[metric]} after each task",
        x_label="classes learned",
        y_label="points lost",
        x_ticks=[(x, f"{x:g}") for x in sizes],
        x_range=(sizes[0], sizes[-1]) if len(sizes) > 1 else None,
        end_values=True,
        height=300,
    )


def lost_by_task(runs: Sequence[Run], metric: str) -> Markup | None:
    """A row per run: how many points the classes of each earlier task have lost by the end."""
    rows = {run: _lost(run, metric) for run in runs if len(run.measured_tasks) > 1}
    if not any(value is not None for row in rows.values() for value in row):
        return None
    tasks = range(1, 1 + max(len(row) for row in rows.values()))
    head = tag("tr", tag("td", "classes of task"), [tag("th", task, scope="col") for task in tasks])
    body = [
        tag("tr", tag("th", swatch(run.style), " ", run.label, scope="row"), [_cell(value) for value in row])
        for run, row in rows.items()
    ]
    caption = tag("caption", METRICS[metric])
    return tag("div", tag("table", caption, tag("thead", head), tag("tbody", body), class_="heat"), class_="scroll")


def lost(matrix: Matrix) -> list[float | None]:
    """For the classes of each earlier task: their best accuracy before the last row, minus that of the last row."""
    if not matrix:
        return []
    *earlier, last = matrix
    found: list[float | None] = []
    for j in range(len(earlier)):
        before = [row[j] for row in earlier[j:] if row[j] is not None]
        final = last[j]
        found.append(
            max(value for value in before if value is not None) - final if before and final is not None else None
        )
    return found


def _lost(run: Run, metric: str, tasks: int | None = None) -> list[float | None]:
    """`lost` after so many tasks; of several seeds the mean, since each has its own best."""
    seeds = [lost(group_matrix(results, metric)[:tasks]) for results in run.main.get("seeds") or [run.main]]
    return [None if None in values else _mean(values) for values in zip(*seeds, strict=True)]


def _points(run: Run, metric: str) -> list[tuple[float, float | None]]:
    return [(float(task["num_classes"]), measured(task, metric)) for task in run.measured_tasks]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _cell(value: float | None) -> Markup:
    heat = None if value is None else f"--heat:{min(max(value, 0.0) / 60, 1.0):.3f}"
    return tag("td", show(value), style=heat)
