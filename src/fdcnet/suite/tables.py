"""Tables of a suite in Markdown: means and standard deviations, and paired tests of one row against the others."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fdcnet.report.tables import METRICS
from fdcnet.report.text import MISSING, show
from fdcnet.suite.rows import PhotoOutcomes, Row
from fdcnet.suite.statistics import SIGNIFICANT, Difference, bootstrap_over_classes, class_means, mcnemar

SHOWN = ("top1_loc", "top5_loc", "gt_known", "top1_cls")
CLAIMED = "top1_loc"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def results_table(rows: Sequence[Row], metrics: Sequence[str] = SHOWN) -> str:
    """Average over the tasks / after the last task, in percent; joint training has one number."""
    header = ["", "runs", *(METRICS[metric] for metric in metrics), f"{METRICS[CLAIMED]} forgotten", "commit"]
    lines = []
    for row in rows:
        forgotten = row.value("forgetting", CLAIMED)
        cells = [average_and_last(row, metric) for metric in metrics]
        lines.append([row.label, row.repeats, *cells, show(forgotten), ", ".join(f"`{name}`" for name in row.commits)])
    return markdown(header, lines)


def brief_table(rows: Sequence[Row]) -> str:
    """For a first page."""
    header = ["method", "runs", *(METRICS[metric] for metric in SHOWN[:3])]
    return markdown(
        header, [[row.label, row.repeats, *(average_and_last(row, m, 1) for m in SHOWN[:3])] for row in rows]
    )


def average_and_last(row: Row, metric: str, digits: int = 2) -> str:
    average, last = row.value("average", metric), row.value("last", metric)
    return show(last, digits) if row.at_once else f"{show(average, digits)} / {show(last, digits)}"


@dataclass(frozen=True)
class Comparison:
    """One row against another after the last task, over the repeats that both have."""

    first: Row
    second: Row
    difference: Difference
    mcnemar_p: float  # the largest of all repeats
    by_task: list[float]  # difference on the classes of the first task, of those between, and of the last

    @property
    def verdict(self) -> str:
        """`ahead` and `behind` only where both tests agree, in every repeat."""
        if max(self.difference.p, self.mcnemar_p) >= SIGNIFICANT:
            return "no difference shown"
        return "ahead" if self.difference.mean > 0 else "behind"


def compare(first: Row, second: Row, metric: str = CLAIMED) -> Comparison | None:
    """None without common repeats whose photos were kept."""
    pairs: list[tuple[PhotoOutcomes, PhotoOutcomes]] = []
    for run in first.runs:
        one, other = first.right(run.repeat, metric), second.right(run.repeat, metric)
        if one and other and one.path == other.path == (pairs[0][0].path if pairs else one.path):
            pairs.append((one, other))
    if not pairs:
        return None
    differences = [one.right.astype(float) - other.right for one, other in pairs]
    return Comparison(
        first,
        second,
        bootstrap_over_classes(class_means(np.mean(differences, axis=0), pairs[0][0].label)),
        max(mcnemar(one.right, other.right) for one, other in pairs),
        np.mean([_by_task(one, other, first.class_counts) for one, other in pairs], axis=0).tolist(),
    )


def _by_task(one: PhotoOutcomes, other: PhotoOutcomes, totals: Sequence[int]) -> list[float]:
    """Differences on the classes of the first task, of those between, and of the last. NaN for an empty group."""
    difference, label = one.right.astype(float) - other.right, one.label
    bounds = [0, totals[0], *totals[-2:]] if len(totals) > 1 else [0, *totals, *totals, *totals]
    parts = [(start <= label) & (label < end) for start, end in itertools.pairwise(bounds)]
    return [float(class_means(difference[own], label[own]).mean()) if own.any() else float("nan") for own in parts]


def comparisons(rows: Sequence[Row], recipe: str) -> list[Comparison]:
    """The rows of `recipe` against others with the same settings, their own network alone, and further settings."""
    own = [row for row in rows if row.recipe == recipe and row.compensated]
    found = [compare(first, second) for first in own for second in rows if _is_compared(first, second)]
    return [comparison for comparison in found if comparison]


def _is_compared(first: Row, second: Row) -> bool:
    if second.variant == first.variant:
        return second is not first
    # The plain recipe is not compared with every row that changes something: a table may be about these changes.
    further = bool(first.variant) and second.variant.startswith(f"{first.variant}-")
    return further and second.recipe == first.recipe and second.compensated


def comparison_table(found: Sequence[Comparison]) -> str:
    header = ["", "points", "95 % interval", "bootstrap p", "McNemar p", "first task", "between", "last task", ""]
    lines = []
    for one in found:
        difference = one.difference
        lines.append(
            [
                f"{one.first.label} – {one.second.label}",
                signed(difference.mean),
                f"{signed(difference.low)} to {signed(difference.high)}",
                probability(difference.p),
                probability(one.mcnemar_p),
                *(MISSING if np.isnan(value) else signed(value) for value in one.by_task),
                one.verdict,
            ]
        )
    return markdown(header, lines)


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def probability(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
