"""What happened over time: accuracy after each task, the fate of each task's classes, and the losses."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby

from fdcnet.report.charts import Series, line_chart, swatch
from fdcnet.report.markup import Markup, join, tag
from fdcnet.report.runs import Run, key_metrics
from fdcnet.report.tables import METRICS, group_matrix, group_sizes, measured, show
from fdcnet.report.words import classes, listing, spread

Slots = Mapping[tuple[int, str], tuple[float, float]]  # (task, phase) -> its stretch of the common axis


def over_tasks(runs: Sequence[Run]) -> Markup:
    if max(len(run.measured_tasks) for run in runs) < 2:
        return Markup("")
    metrics = key_metrics(runs)
    curves = [
        tag("figure", tag("figcaption", f"{METRICS[metric]} after each task"), _accuracy_chart(runs, metric))
        for metric in metrics
    ]
    heat = [[_heat_table(run, metric) for run in runs] for metric in metrics]
    if len(runs) == 1:
        heat = [[table for tables in heat for table in tables]]
    return join(
        tag(
            "p",
            "Accuracy over all classes seen so far, in percent. More classes are harder to tell apart, so even without "
            f"forgetting {METRICS[metrics[-1]]} falls a little.",
        ),
        tag("div", curves, class_="pair"),
        tag("h3", "What became of each task’s classes"),
        tag(
            "p",
            "Each row follows the classes of one task through all later tasks, in percent. A row that fades has been "
            "forgotten; the change is counted from the task in which its classes were learned.",
        ),
        [tag("div", tables, class_="pair") for tables in heat],
    )


def losses(runs: Sequence[Run]) -> Markup:
    """One small chart per named loss; the phases of all runs share one axis."""
    names = list(dict.fromkeys(name for run in runs for line in run.metrics for name in line.get("losses") or {}))
    if not names:
        return Markup("")
    slots = _phase_slots(runs)
    charts = [tag("figure", tag("figcaption", tag("code", name)), _loss_chart(runs, name, slots)) for name in names]
    labels = tag("ul", [tag("li", swatch(run.style), run.label) for run in runs], class_="key")
    return join(
        tag(
            "p",
            "Each named loss, weighted as it enters the sum, epoch by epoch. "
            f"The numbers below each chart are the tasks.{_shading(slots)}",
        ),
        labels if len(runs) > 1 else None,
        tag("div", charts, class_="multiples"),
    )


def _accuracy_chart(runs: Sequence[Run], metric: str) -> Markup:
    series = []
    for run in runs:
        points = [(task.get("task", i), measured(task, metric)) for i, task in enumerate(run.measured_tasks, 1)]
        series.append(Series(run.label, points, run.style))
    last = max(run.num_tasks for run in runs)
    return line_chart(
        series,
        f"{METRICS[metric]} after each task",
        x_label="after task",
        x_ticks=[(t, str(t)) for t in spread(range(1, last + 1), 12)],
        x_range=(1, last),
        y_range=(0, 100),
        end_values=True,
    )


def _heat_table(run: Run, metric: str) -> Markup | None:
    matrix = group_matrix(run.main, metric)
    if all(value is None for row in matrix for value in row):
        return None
    tasks = range(1, len(matrix) + 1)
    head = [tag("td", "after task"), [tag("th", t, scope="col") for t in tasks], tag("th", "change", scope="col")]
    rows = [
        _heat_row(t, size, [row[t - 1] for row in matrix[t - 1 :]])
        for t, size in zip(tasks, group_sizes(run.main), strict=False)
    ]
    caption = tag("caption", swatch(run.style), " ", run.label, ", ", METRICS[metric])
    table = tag("table", caption, tag("thead", tag("tr", head)), tag("tbody", rows), class_="heat")
    return tag("div", table, class_="scroll", tabindex="0")


def _heat_row(task: int, size: int, values: Sequence[float | None]) -> Markup:
    first, last = values[0], values[-1]
    change = "" if len(values) == 1 or first is None or last is None else show(last - first)
    if change and not change.startswith("−") and float(change):
        change = f"+{change}"
    return tag(
        "tr",
        tag("th", f"Task {task}", tag("small", classes(size)), scope="row"),
        [tag("td")] * (task - 1),
        [tag("td", show(value), style=None if value is None else f"--heat:{value / 100:.3f}") for value in values],
        tag("td", change, class_="change"),
    )


def _phase_slots(runs: Sequence[Run]) -> Slots:
    """Give each (task, phase) its own stretch of the common axis, as long as its longest run."""
    longest: dict[tuple[int, str], int] = {}
    for run in runs:
        for line in run.metrics:
            slot = (line["task"], line["phase"])
            longest[slot] = max(longest.get(slot, 1), line["epoch"])
    slots, start = {}, 0.0
    for slot in sorted(longest, key=lambda slot: slot[0]):  # stable: phases stay in the order in which they ran
        slots[slot] = (start, start + longest[slot])
        start += longest[slot]
    return slots


def _loss_chart(runs: Sequence[Run], name: str, slots: Slots) -> Markup:
    tasks = {task: [slots[slot] for slot in group] for task, group in groupby(slots, key=lambda slot: slot[0])}
    shown = spread(list(tasks), 10)
    return line_chart(
        [Series(run.label, _loss_points(run, name, slots), run.style) for run in runs],
        f"Loss {name} over the epochs of all tasks",
        x_ticks=[(statistics.mean((tasks[t][0][0], tasks[t][-1][1])), str(t)) for t in shown],
        x_range=(0, max(end for _, end in slots.values())),
        bands=[span for (_, phase), span in slots.items() if phase != "main"],
        dividers=[spans[0][0] for spans in tasks.values()][1:],
        markers=False,
        legend=False,
        width=300,
        height=190,
    )


def _loss_points(run: Run, name: str, slots: Slots) -> list[tuple[float, float | None]]:
    points: list[tuple[float, float | None]] = []
    for slot, lines in groupby(run.metrics, key=lambda line: (line["task"], line["phase"])):
        start = slots[slot][0]
        known = [line for line in lines if name in (line.get("losses") or {})]
        points += [(start + line["epoch"] - 0.5, line["losses"][name]) for line in known]
        points.append((start, None))  # phases are not joined
    return points


def _shading(slots: Slots) -> str:
    phases = list(dict.fromkeys(f"“{phase}”" for _, phase in slots if phase != "main"))
    if not phases:
        return ""
    noun, verb = ("phase", "follows") if len(phases) == 1 else ("phases", "follow")
    return f" Shaded: the {noun} {listing(phases)} that {verb} the main one."
