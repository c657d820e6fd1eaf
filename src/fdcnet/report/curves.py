"""The curves of a report: accuracy, forgetting, losses and thresholds."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby

from markupsafe import Markup

from fdcnet.evaluation.incremental import drops, forgetting
from fdcnet.evaluation.metrics import threshold_curve
from fdcnet.report.charts import Mark, Series, line_chart
from fdcnet.report.runs import Run
from fdcnet.report.tables import METRICS, group_matrix, measured
from fdcnet.report.text import LOSSES, spread

Slots = Mapping[tuple[int, str], tuple[float, float]]  # (task, phase) -> its range of the x axis


def accuracy_curve(runs: Sequence[Run], metric: str) -> Markup:
    """Accuracy on all classes learned so far. Joint training is a single point at the end."""
    series = [Series(run.label, _accuracies(run, metric), run.style) for run in runs]
    values = [y for line in series for _, y in line.points if y is not None]
    lowest = 10 * int(max(0.0, min(values, default=0.0) - 2) // 10)
    highest = min(100, 10 * int(-(-(max(values, default=100.0) + 1) // 10)))
    return _over_classes(series, f"{METRICS[metric]} after each task", f"{METRICS[metric]} (%)", (lowest, highest), 340)


def forgetting_curve(runs: Sequence[Run], metric: str) -> Markup:
    """Forgetting after each task."""
    series = []
    for run in runs:
        sizes = [float(task["num_classes"]) for task in run.measured_tasks]
        points = [(size, _forgetting(run, metric, t)) for t, size in enumerate(sizes, 1) if t > 1]
        if any(y is not None for _, y in points):
            series.append(Series(run.label, points, run.style))
    return _over_classes(series, f"Forgetting of {METRICS[metric]} after each task", "points lost", None, 300)


def points_lost(run: Run, metric: str) -> list[float | None]:
    """What the classes of each earlier task lost by the end; the mean over seeds, because each has its own best."""
    seeds = [drops(group_matrix(results, metric)) for results in run.seeds]
    return [_mean(values) for values in zip(*seeds, strict=True)]


def loss_curve(runs: Sequence[Run], name: str, slots: Slots) -> Markup:
    tasks = {task: [slots[slot] for slot in group] for task, group in groupby(slots, key=lambda slot: slot[0])}
    shown = spread(list(tasks), 10)
    return line_chart(
        [Series(run.label, _losses(run, name, slots), run.style) for run in runs],
        f"{LOSSES.get(name, name)} loss over the epochs of all tasks",
        x_ticks=[(statistics.mean((tasks[t][0][0], tasks[t][-1][1])), str(t)) for t in shown],
        x_range=(0, max(end for _, end in slots.values())),
        bands=[span for (_, phase), span in slots.items() if phase != "main"],
        dividers=[spans[0][0] for spans in tasks.values()][1:],
        markers=False,
        legend=False,
        width=300,
        height=190,
    )


def box_threshold_curve(runs: Sequence[Run]) -> Markup:
    """GT-known at each threshold after the last task, with the thresholds that were used."""
    shown = [(run, points) for run in runs if (points := threshold_points(run))]
    series = [Series(run.label, points, run.style) for run, points in shown]
    used = dict.fromkeys(run.protocol.get("threshold") for run, _ in shown)
    marks = [Mark(value, f"used: {value:g}") for value in used if isinstance(value, (int, float))]
    return line_chart(
        series,
        "GT-known at each threshold",
        x_label="threshold of the heat map",
        x_ticks=[(i / 5, f"{i / 5:g}") for i in range(6)],
        x_range=(0, 1),
        y_range=(0, 100),
        marks=marks,
        markers=False,
        height=300,
    )


def threshold_points(run: Run) -> list[tuple[float, float]]:
    """(threshold, GT-known); empty without true boxes."""
    if run.table is None:
        return []
    iou, average = run.protocol.get("iou", 0.5), run.protocol.get("average", "class")
    return list(zip(run.table.thresholds, threshold_curve(run.table, iou=iou, average=average), strict=False))


def phase_slots(runs: Sequence[Run]) -> Slots:
    """Give each (task, phase) a range of the x axis that all runs share, as long as its longest run."""
    longest: dict[tuple[int, str], int] = {}
    for run in runs:
        for line in run.metrics:
            slot = (line["task"], line["phase"])
            longest[slot] = max(longest.get(slot, 1), line["epoch"])
    slots, start = {}, 0.0
    for slot in sorted(longest, key=lambda slot: slot[0]):  # stable: phases keep their order within a task
        slots[slot] = (start, start + longest[slot])
        start += longest[slot]
    return slots


def _over_classes(
    series: Sequence[Series], title: str, y_label: str, y_range: tuple[float, float] | None, height: int
) -> Markup:
    sizes = sorted({x for line in series for x, _ in line.points})
    return line_chart(
        series,
        title,
        x_label="classes learned",
        y_label=y_label,
        x_ticks=[(sizes[i], f"{sizes[i]:g}") for i in spread(range(len(sizes)), 12)],
        x_range=(sizes[0], sizes[-1]) if len(sizes) > 1 else None,
        y_range=y_range,
        end_values=True,
        height=height,
    )


def _accuracies(run: Run, metric: str) -> list[tuple[float, float | None]]:
    return [(float(task["num_classes"]), measured(task, metric)) for task in run.measured_tasks]


def _forgetting(run: Run, metric: str, num_tasks: int) -> float | None:
    return _mean([forgetting(group_matrix(results, metric)[:num_tasks]) for results in run.seeds])


def _losses(run: Run, name: str, slots: Slots) -> list[tuple[float, float | None]]:
    points: list[tuple[float, float | None]] = []
    for slot, lines in groupby(run.metrics, key=lambda line: (line["task"], line["phase"])):
        start = slots[slot][0]
        known = [line for line in lines if name in (line.get("losses") or {})]
        points += [(start + line["epoch"] - 0.5, line["losses"][name]) for line in known]
        points.append((start, None))  # phases are not connected
    return points


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known and len(known) == len(values) else None
