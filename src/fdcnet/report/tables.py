"""Tables of results, written as HTML, Markdown, CSV or for the terminal."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import stdev
from typing import Any

import rich.table
from markupsafe import Markup

from fdcnet.report.rendering import render
from fdcnet.report.text import Cell, Mean, show

METRICS = {
    "top1_loc": "Top-1 Loc",
    "top5_loc": "Top-5 Loc",
    "gt_known": "GT-known",
    "top1_cls": "Top-1 Cls",
    "top5_cls": "Top-5 Cls",
    "max_box_acc": "MaxBoxAcc",
    "max_box_acc_v2": "MaxBoxAccV2",
    "gt_known_best": "GT-known at best threshold",
    "best_threshold": "Best threshold",
}
METRICS_OF = {name: metric for metric, name in METRICS.items()}
BRIEF = ("top1_loc", "top5_loc", "gt_known", "top1_cls")  # what papers print; fits a terminal
SUMMARIES = ("average", "last", "forgetting")
SPLIT = ("top1_loc", "gt_known")  # also shown for old and new classes separately
BELOW_JOINT = "below joint"

Results = Mapping[str, Any]  # the content of a results.json


@dataclass(frozen=True)
class Table:
    """A column has a name and, if it belongs to a group, a part: ("Top-1 Loc", "old").

    A cell is None if nothing was measured, and "" if the column does not apply.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(f"{name} {part}".strip() for name, part in self.columns)

    @property
    def groups(self) -> list[tuple[str, list[str]]]:
        """Column names with their parts: ("Top-1 Loc", ["all", "old", "new"]); [""] for a column of its own."""
        return [(name, [part for _, part in own]) for name, own in groupby(self.columns, key=lambda column: column[0])]

    def select(self, keep: Sequence[int]) -> "Table":
        return Table(tuple(self.columns[i] for i in keep), tuple(tuple(row[i] for i in keep) for row in self.rows))

    def without_empty_columns(self) -> "Table":
        used = [i for i in range(len(self.columns)) if any(row[i] not in (None, "") for row in self.rows)]
        return self.select(used)


def results_table(
    runs: Mapping[str, Results], metrics: Sequence[str] = tuple(METRICS), split: Sequence[str] = SPLIT
) -> Table:
    """The metrics after every task, then average, last and forgetting.

    `runs` maps a name to the content of its results.json. Metrics in `split` are also shown for old and new classes.
    """
    columns = [("Run", ""), ("After task", ""), ("Classes", "")]
    for metric in metrics:
        name = METRICS[metric]
        columns += [(name, "all"), (name, "old"), (name, "new")] if metric in split else [(name, "")]
    rows: list[tuple[Cell, ...]] = []
    for label, results in runs.items():
        for i, task in enumerate(results.get("tasks") or []):
            row: list[Cell] = [label, task.get("task", i + 1), task.get("num_classes")]
            for metric in metrics:
                row += [measured(task, metric), *(old_and_new(results, metric, i) if metric in split else ())]
            rows.append(tuple(row))
        summaries = {part: {m: measured(results.get(part), m) for m in metrics} for part in SUMMARIES}
        if "seeds" in results:
            summaries |= {
                f"standard deviation of {part}": {m: deviation(results, part, m) for m in metrics} for part in SUMMARIES
            }
        for summary, values in summaries.items():
            row = [label, summary, ""]
            for metric in metrics:
                row += [values[metric], *(("", "") if metric in split else ())]
            if any(isinstance(cell, float) for cell in row):
                rows.append(tuple(row))
    return Table(tuple(columns), tuple(rows)).without_empty_columns()


def single_table(results: Results) -> Table:
    """One row for a single evaluation."""
    columns = [("Photos", ""), ("Classes", ""), *((METRICS[metric], "") for metric in BRIEF)]
    row = (results["dataset"], results["tasks"][-1]["num_classes"], *(measured(results["last"], m) for m in BRIEF))
    return Table(tuple(columns), (row,)).without_empty_columns()


def brief_table(runs: Mapping[str, Results]) -> Table:
    """One narrow row per run for a terminal: old and new classes after the last task, and forgetting."""
    has_boxes = any(measured(results.get("last"), metric) is not None for results in runs.values() for metric in SPLIT)
    metrics = SPLIT if has_boxes else ("top1_cls",)
    columns = [("Run", ""), *((METRICS[metric], part) for metric in metrics for part in ("old", "new", "lost"))]
    rows = []
    for label, results in runs.items():
        row: list[Cell] = [label]
        for metric in metrics:
            row += [*old_and_new(results, metric), measured(results.get("forgetting"), metric)]
        rows.append(tuple(row))
    return Table(tuple(columns), tuple(rows)).without_empty_columns()


def summary_table(runs: Mapping[str, Results]) -> Table:
    """One row per run: the averages that papers print, and the accuracy on old and new classes."""
    columns = [("Run", "")]
    for metric in BRIEF:
        parts = ("average", "last", "old", "new", "forgetting") if metric in SPLIT else ("average", "last")
        columns += [(METRICS[metric], part) for part in parts]
    rows: list[tuple[Cell, ...]] = []
    for label, results in runs.items():
        row: list[Cell] = [label]
        for metric in BRIEF:
            row += [measured(results.get("average"), metric), measured(results.get("last"), metric)]
            if metric in SPLIT:
                row += [*old_and_new(results, metric), measured(results.get("forgetting"), metric)]
        rows.append(tuple(row))
    return Table(tuple(columns), tuple(rows)).without_empty_columns()


def comparison_table(runs: Mapping[str, Results]) -> Table:
    """One row per run: the averages that papers print, the distance to joint training, and forgetting."""
    whole = [results for results in runs.values() if at_once(results)]
    joint = whole[0] if 0 < len(whole) < len(runs) else {}  # with a single task, all runs would be joint training
    parts = {"top1_loc": ("average", "last", BELOW_JOINT, "forgetting"), "gt_known": ("average", "last", "forgetting")}
    columns = [("Method", "")]
    for metric in BRIEF:
        columns += [(METRICS[metric], part) for part in parts.get(metric, ("average", "last"))]
    rows: list[tuple[Cell, ...]] = []
    for label, results in runs.items():
        rows.append((label, *(_summary(results, part, METRICS_OF[name], joint) for name, part in columns[1:])))
    return Table(tuple(columns), tuple(rows)).without_empty_columns()


def _summary(results: Results, part: str, metric: str, joint: Results) -> Cell:
    if part == BELOW_JOINT:
        best, reached = measured(joint.get("last"), metric), measured(results.get("last"), metric)
        return None if results is joint or best is None or reached is None else best - reached
    if part == "average" and results.get("learned_in", 1) > 1:
        return None  # evaluated once, after several tasks
    value, scatter = measured(results.get(part), metric), deviation(results, part, metric)
    return value if value is None or scatter is None else Mean(value, scatter)


def at_once(results: Results) -> bool:
    """Whether all classes were learned in one task (and not only evaluated once, as `fdcnet evaluate` does)."""
    return len(results.get("tasks") or []) == results.get("learned_in", 1) == 1


def deviation(results: Results, part: str, metric: str) -> float | None:
    """The standard deviation of a summary over the seeds, if there are several."""
    values = [measured(one.get(part), metric) for one in results.get("seeds") or []]
    known = [value for value in values if value is not None]
    return stdev(known) if len(known) == len(values) > 1 else None


def narrow(table: Table) -> Table:
    """The columns of a comparison that fit a terminal, with shorter names."""
    metrics = [METRICS_OF.get(name) for name, _ in table.columns]
    wanted = SPLIT if any(metric in SPLIT for metric in metrics) else ("top1_cls",)
    fitting = [part != BELOW_JOINT for _, part in table.columns]
    kept = table.select([i for i, metric in enumerate(metrics) if metric in (None, *wanted) and fitting[i]])
    short = {"average": "avg", "forgetting": "lost"}
    rows = tuple(tuple(cell.value if isinstance(cell, Mean) else cell for cell in row) for row in kept.rows)
    return Table(tuple((name, short.get(part, part)) for name, part in kept.columns), rows)


def measured(values: Mapping[str, Any] | None, metric: str) -> float | None:
    """The value of a metric, or None if it was not measured."""
    value = (values or {}).get(metric)
    return None if value is None else float(value)


def group_sizes(results: Results) -> list[int]:
    """The number of classes in each task."""
    totals = [task.get("num_classes") or 0 for task in results.get("tasks") or []]
    return [total - before for total, before in zip(totals, [0, *totals], strict=False)]


def group_matrix(results: Results, metric: str) -> list[list[float | None]]:
    """Row t: the accuracy after task t on the classes of tasks 1 to t."""
    rows = (results.get("matrix") or {}).get(metric) or []
    return [[None if value is None else float(value) for value in row] for row in rows]


def old_and_new(results: Results, metric: str, index: int = -1) -> tuple[float | None, float | None]:
    """Accuracy on the classes of all earlier tasks and on those of the newest one, after the last task or task `index`.

    Old groups are weighted by their number of classes. `index` counts from 0.
    """
    matrix = group_matrix(results, metric)
    if not -len(matrix) <= index < len(matrix) or not matrix[index]:
        return None, None
    *old, new = matrix[index]
    known = [(value, size) for value, size in zip(old, group_sizes(results), strict=False) if value is not None]
    weight = sum(size for _, size in known)
    return (sum(value * size for value, size in known) / weight if weight else None), new


def to_html(table: Table, caption: str = "", digits: int = 2) -> Markup:
    return render("table.html", table=table, caption=caption, digits=digits)


def to_rich(table: Table) -> rich.table.Table:
    from rich.text import Text  # rich reads a class name in square brackets as a style unless it is a Text

    drawn = rich.table.Table()
    for i, name in enumerate(table.header):
        drawn.add_column(Text("\n".join(name.split())), justify="right" if i else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(show(cell)) for cell in row))
    return drawn


def to_markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(re.sub(r"([\\|])", r"\\\1", " ".join(cell.split())) for cell in cells) + " |"

    rule = "|" + "|".join(["---", *["---:"] * (len(table.header) - 1)]) + "|"
    rows = [line([show(cell, digits=2) for cell in row]) for row in table.rows]
    return "\n".join([line(table.header), rule, *rows]) + "\n"


def to_csv(table: Table) -> str:
    """Full precision; empty cells where nothing was measured."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([table.header, *table.rows])
    return buffer.getvalue()
