"""From the tables of all tasks to results.json: average, last and forgetting."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fdcnet.config import Protocol, to_dict
from fdcnet.evaluation.metrics import METRICS, Scores, by_task, summary
from fdcnet.evaluation.table import Table

AVERAGED = (*METRICS, "max_box_acc", "max_box_acc_v2", "gt_known_best")


@dataclass(frozen=True)
class TaskScores:
    """The scores after one task: over all classes so far, and over the classes of each task so far."""

    num_classes: int
    overall: Scores
    groups: list[Scores]


def score_task(table: Table, protocol: Protocol, task_sizes: Sequence[int]) -> TaskScores:
    """`task_sizes`: number of classes of each task so far."""
    task_of_label = np.repeat(np.arange(len(task_sizes)), task_sizes)
    return TaskScores(
        num_classes=int(sum(task_sizes)),
        overall=summary(table, protocol),
        groups=by_task(table, protocol, task_of_label.tolist()),
    )


def accuracy_matrix(tasks: Sequence[TaskScores], metric: str) -> list[list[float | None]]:
    """Row t, column j <= t: the accuracy after task t on the classes of task j."""
    return [[group[metric] for group in task.groups] for task in tasks]


def drops(matrix: Sequence[Sequence[float | None]]) -> list[float | None]:
    """For the classes of each earlier task: their best accuracy before the last task, minus the one after it.

    Negative where classes got better, None where an accuracy is missing.
    """
    if not matrix:
        return []
    *earlier, last = matrix
    found: list[float | None] = []
    for j, final in enumerate(last[: len(earlier)]):
        history = [row[j] for row in earlier[j:]]
        known = [value for value in history if value is not None]
        found.append(None if final is None or len(known) < len(history) else max(known) - final)
    return found


def forgetting(matrix: Sequence[Sequence[float | None]]) -> float | None:
    """Mean of the known `drops` over the earlier tasks. None if there are none, as without true boxes."""
    known = [drop for drop in drops(matrix) if drop is not None]
    return _mean(known) if known else None


def build_results(
    *, dataset: str, method: str, backbone: str, seed: int, protocol: Protocol, tasks: Sequence[TaskScores]
) -> dict[str, Any]:
    """results.json, schema 1."""
    assert tasks, "results of no task"
    matrices = {metric: accuracy_matrix(tasks, metric) for metric in METRICS}
    results = {
        "schema": 1,
        "dataset": dataset,
        "method": method,
        "backbone": backbone,
        "seed": seed,
        "protocol": to_dict(protocol),
        "tasks": [{"task": t, "num_classes": task.num_classes, **task.overall} for t, task in enumerate(tasks, 1)],
        "average": {metric: _mean([task.overall[metric] for task in tasks]) for metric in AVERAGED},
        "last": {metric: tasks[-1].overall[metric] for metric in AVERAGED},
        "forgetting": {metric: forgetting(matrix) for metric, matrix in matrices.items()},
        "matrix": matrices,
    }
    return {**results, **{key: rounded(results[key]) for key in ("tasks", "average", "last", "forgetting", "matrix")}}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def rounded(value: Any) -> Any:
    """Round to four decimals, to keep the file readable."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return round(value, 4) if isinstance(value, float) else value
