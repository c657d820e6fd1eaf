"""Results as tables: computed once, written as HTML, for the terminal, as Markdown or as CSV."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import stdev
from typing import Any, NamedTuple

import rich.table

from fdcnet.report.markup import Markup, tag

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
BRIEF = ("top1_loc", "top5_loc", "gt_known", "top1_cls")  # what fits a terminal
SUMMARIES = ("average", "last", "forgetting")
SPLIT = ("top1_loc", "gt_known")  # the metrics that are also shown for old and new classes apart
MISSING = "–"
BELOW_JOINT = "below joint"


class Mean(NamedTuple):
    """Over several seeds."""

    value: float
    deviation: float


Cell = str | int | float | Mean | None
Results = Mapping[str, Any]  # the content of a results.json


@dataclass(frozen=True)
class Table:
    """Columns have a name and, where several belong together, a part: ("Top-1 Loc", "old").

    A cell is None where nothing was measured, and empty text where the column does not apply.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(f"{name} {part}".strip() for name, part in self.columns)

    def select(self, keep: Sequence[int]) -> "Table":
        return Table(tuple(self.columns[i] for i in keep), tuple(tuple(row[i] for i in keep) for row in self.rows))

    def without_empty_columns(self) -> "Table":
        used = [i for i in range(len(self.columns)) if any(row[i] not in (None, "") for row in self.rows)]
        return self.select(used)


def results_table(
    runs: Mapping[str, Results], metrics: Sequence[str] = tuple(METRICS), split: Sequence[str] = SPLIT
) -> Table:
    """The metrics after every task, those in `split` for old and new classes apart; then average, last and forgetting.

    `runs` maps a name to the content of its results.json.
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
    """A measurement that has no tasks to compare: one row."""
    columns = [("Photos", ""), ("Classes", ""), *((METRICS[metric], "") for metric in BRIEF)]
    row = (results["dataset"], results["tasks"][-1]["num_classes"], *(measured(results["last"], m) for m in BRIEF))
    return Table(tuple(columns), (row,)).without_empty_columns()


def brief_table(runs: Mapping[str, Results]) -> Table:
    """One narrow row per run for a terminal: old and new classes after the last task, and what was forgotten."""
    columns = [("Run", ""), *((METRICS[metric], part) for metric in SPLIT for part in ("old", "new", "lost"))]
    rows = []
    for label, results in runs.items():
        row: list[Cell] = [label]
        for metric in SPLIT:
            row += [*old_and_new(results, metric), measured(results.get("forgetting"), metric)]
        rows.append(tuple(row))
    return Table(tuple(columns), tuple(rows)).without_empty_columns()


def summary_table(runs: Mapping[str, Results]) -> Table:
    """One row per run: the averages that papers print, and what became of old and new classes."""
    columns = [("Run", "")]
    for metric in ("top1_loc", "top5_loc", "gt_known", "top1_cls"):
        parts = ("average", "last", "old", "new", "forgetting") if metric in SPLIT else ("average", "last")
        columns += [(METRICS[metric], part) for part in parts]
    rows: list[tuple[Cell, ...]] = []
    for label, results in runs.items():
        row: list[Cell] = [label]
        for metric in ("top1_loc", "top5_loc", "gt_known", "top1_cls"):
            row += [measured(results.get("average"), metric), measured(results.get("last"), metric)]
            if metric in SPLIT:
                row += [*old_and_new(results, metric), measured(results.get("forgetting"), metric)]
        rows.append(tuple(row))
    return Table(tuple(columns), tuple(rows)).without_empty_columns()


def comparison_table(runs: Mapping[str, Results]) -> Table:
    """One row per run: what papers print, how far it is below joint training, and how much was forgotten."""
    whole = [results for results in runs.values() if at_once(results)]
    joint = whole[0] if 0 < len(whole) < len(runs) else {}  # where there is but one task, all would be joint training
    parts = {"top1_loc": ("average", "last", BELOW_JOINT, "forgetting"), "gt_known": ("average", "last", "forgetting")}
    columns = [("Method", "")]
    for metric in ("top1_loc", "top5_loc", "gt_known", "top1_cls"):
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
        return None  # measured once, after several tasks
    value, scatter = measured(results.get(part), metric), deviation(results, part, metric)
    return value if value is None or scatter is None else Mean(value, scatter)


def at_once(results: Results) -> bool:
    """Whether all classes were learned in one task, and not only measured once (`fdcnet evaluate`)."""
    return len(results.get("tasks") or []) == results.get("learned_in", 1) == 1


def deviation(results: Results, part: str, metric: str) -> float | None:
    """The standard deviation of a summary over the seeds, if these are results of several."""
    values = [measured(one.get(part), metric) for one in results.get("seeds") or []]
    known = [value for value in values if value is not None]
    return stdev(known) if len(known) == len(values) > 1 else None


def narrow(table: Table) -> Table:
    """The columns of a comparison that fit a terminal, with shorter words."""
    metrics = [METRICS_OF.get(name) for name, _ in table.columns]
    wanted = SPLIT if any(metric in SPLIT for metric in metrics) else ("top1_cls",)
    fitting = [part != BELOW_JOINT for _, part in table.columns]
    kept = table.select([i for i, metric in enumerate(metrics) if metric in (None, *wanted) and fitting[i]])
    short = {"average": "avg", "forgetting": "lost"}
    rows = tuple(tuple(cell.value if isinstance(cell, Mean) else cell for cell in row) for row in kept.rows)
    return Table(tuple((name, short.get(part, part)) for name, part in kept.columns), rows)


def measured(values: Mapping[str, Any] | None, metric: str) -> float | None:
    """A number, or None where there is none (no boxes, a metric that was not asked for)."""
    value = (values or {}).get(metric)
    return None if value is None else float(value)


def group_sizes(results: Results) -> list[int]:
    """How many classes each task brought."""
    totals = [task.get("num_classes") or 0 for task in results.get("tasks") or []]
    return [total - before for total, before in zip(totals, [0, *totals], strict=False)]


def group_matrix(results: Results, metric: str) -> list[list[float | None]]:
    """Row t: the accuracy after task t on the classes of task 1, task 2, ... t."""
    rows = (results.get("matrix") or {}).get(metric) or []
    return [[None if value is None else float(value) for value in row] for row in rows]


def old_and_new(results: Results, metric: str, index: int = -1) -> tuple[float | None, float | None]:
    """Accuracy on the classes of all earlier tasks and on those of the newest one, after the last task or task `index`.

    Old groups are averaged with their number of classes as weights. `index` counts from 0.
    """
    matrix = group_matrix(results, metric)
    if not -len(matrix) <= index < len(matrix) or not matrix[index]:
        return None, None
    *old, new = matrix[index]
    known = [(value, size) for value, size in zip(old, group_sizes(results), strict=False) if value is not None]
    weight = sum(size for _, size in known)
    return (sum(value * size for value, size in known) / weight if weight else None), new


def show(value: Cell, digits: int = 1) -> str:
    """A number for people: a dash where nothing was measured, a true minus sign, none before zero."""
    if value is None:
        return MISSING
    if isinstance(value, Mean):
        return f"{show(value.value, digits)} ±\N{NO-BREAK SPACE}{value.deviation:.{digits}f}"
    return f"{value:z.{digits}f}".replace("-", "−") if isinstance(value, float) else str(value)


def to_html(table: Table, caption: str = "", digits: int = 2) -> Markup:
    body = [
        tag("tr", tag("th", show(row[0], digits), scope="row"), [tag("td", show(cell, digits)) for cell in row[1:]])
        for row in table.rows
    ]
    title = tag("caption", tag("span", caption)) if caption else None
    written = tag("table", title, tag("thead", _html_header(table)), tag("tbody", body))
    return tag("div", written, class_="scroll", tabindex="0")


def _html_header(table: Table) -> list[Markup]:
    """Names in one row, and below them the parts of those that have any."""
    if not any(part for _, part in table.columns):
        return [tag("tr", [tag("th", name, scope="col") for name in table.header])]
    upper: list[Markup] = []
    for name, group in groupby(table.columns, key=lambda column: column[0]):
        parts = [part for _, part in group]
        span = {"scope": "colgroup", "colspan": len(parts)} if parts[0] else {"scope": "col", "rowspan": 2}
        upper.append(tag("th", name, **span))
    return [tag("tr", upper), tag("tr", [tag("th", part, scope="col") for _, part in table.columns if part])]


def to_rich(table: Table, title: str | None = None, digits: int = 1) -> rich.table.Table:
    from rich.text import Text  # as Text, a class name in square brackets is not taken for a style

    drawn = rich.table.Table(title=title)
    for i, name in enumerate(table.header):
        drawn.add_column(Text("\n".join(name.split())), justify="right" if i else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(show(cell, digits)) for cell in row))
    return drawn


def to_markdown(table: Table, digits: int = 2) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(re.sub(r"([\\|])", r"\\\1", " ".join(cell.split())) for cell in cells) + " |"

    rule = "|" + "|".join(["---", *["---:"] * (len(table.header) - 1)]) + "|"
    rows = [line([show(cell, digits) for cell in row]) for row in table.rows]
    return "\n".join([line(table.header), rule, *rows]) + "\n"


def to_csv(table: Table) -> str:
    """Full precision, and empty where nothing was measured."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([table.header, *table.rows])
    return buffer.getvalue()
