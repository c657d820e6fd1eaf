"""Metrics: pure functions of a `Table`, in percent. None where no photo has a true box (or there is no photo at all).

A box is right if its overlap is larger than `iou`, strictly, as in BAS's scripts. Photos without true boxes count for
classification only.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fdcnet.config import Protocol
from fdcnet.evaluation.table import Table

Average = Literal["image", "class"]
Scores = dict[str, float | None]

METRICS = ("top1_loc", "top5_loc", "gt_known", "top1_cls", "top5_cls")


def top_k_localization(table: Table, k: int, *, iou: float = 0.5, average: Average = "class") -> float | None:
    """The box is right, and the true class is among the k best. The box does not depend on the predicted class."""
    table = _with_boxes(table)
    return _percent((table.iou > iou) & (table.rank < k), table.label, average)


def gt_known(table: Table, *, iou: float = 0.5, average: Average = "class") -> float | None:
    """The box is right, whatever class was predicted."""
    table = _with_boxes(table)
    return _percent(table.iou > iou, table.label, average)


def top_k_classification(table: Table, k: int, *, average: Average = "class") -> float | None:
    return _percent(table.rank < k, table.label, average)


def threshold_curve(table: Table, *, iou: float = 0.5, average: Average = "class") -> list[float]:
    """GT-known at each of `table.thresholds`; empty where no photo has a true box."""
    table = _with_boxes(table)
    return [_share(column > iou, table.label, average) for column in table.iou_largest.T] if len(table) else []


def best_threshold(table: Table, *, iou: float = 0.5, average: Average = "class") -> float | None:
    """The one threshold, common to all photos, with the highest GT-known; the lowest such one."""
    curve = threshold_curve(table, iou=iou, average=average)
    return table.thresholds[int(np.argmax(curve))] if curve else None


def max_box_acc(table: Table, iou: float = 0.5) -> float | None:
    """MaxBoxAcc: overlap of the largest region >= `iou`, over images, at the best common threshold.

    Differs from its authors' program in the thresholds (ours: `table.thresholds`; theirs: 1000), in the frame (ours:
    the protocol's), in normalising before resizing, in taking regions instead of contours, and in that an empty mask
    is the whole frame instead of no box.
    """
    table = _with_boxes(table)
    return _best_over_thresholds(table.iou_largest >= iou)


def max_box_acc_v2(table: Table, ious: Sequence[float] = (0.3, 0.5, 0.7)) -> float | None:
    """MaxBoxAccV2: any region may match any true box; mean over `ious`, each at its own best common threshold.

    Differs from its authors' program as `max_box_acc` does.
    """
    table = _with_boxes(table)
    values = [_best_over_thresholds(table.iou_any >= iou) for iou in ious]
    return None if None in values else float(np.mean(np.array(values, dtype=float)))


def summary(table: Table, protocol: Protocol) -> Scores:
    """The scores of one task in results.json."""
    curve = threshold_curve(table, iou=protocol.iou, average=protocol.average)
    return {
        **_basic(table, protocol),
        "max_box_acc": max_box_acc(table),
        "max_box_acc_v2": max_box_acc_v2(table),
        "best_threshold": best_threshold(table, iou=protocol.iou, average=protocol.average),
        "gt_known_best": max(curve) if curve else None,
    }


def by_task(table: Table, protocol: Protocol, task_of_label: Sequence[int]) -> list[Scores]:
    """`METRICS` for each group of classes, ordered by group; `task_of_label[label]` names a class's group.

    Predictions still compete with all classes; only the photos are those of the group.
    """
    groups = np.asarray(task_of_label)
    return [_basic(table.select(groups[table.label] == group), protocol) for group in np.unique(groups)]


def _basic(table: Table, protocol: Protocol) -> Scores:
    iou, average = protocol.iou, protocol.average
    return {
        "top1_loc": top_k_localization(table, 1, iou=iou, average=average),
        "top5_loc": top_k_localization(table, 5, iou=iou, average=average),
        "gt_known": gt_known(table, iou=iou, average=average),
        "top1_cls": top_k_classification(table, 1, average=average),
        "top5_cls": top_k_classification(table, 5, average=average),
    }


def _with_boxes(table: Table) -> Table:
    return table.select(table.num_boxes > 0)


def _percent(right: NDArray[np.bool_], label: NDArray[np.int64], average: Average) -> float | None:
    return _share(right, label, average) if len(right) else None


def _share(right: NDArray[np.bool_], label: NDArray[np.int64], average: Average) -> float:
    """Percentage of right photos; or of each class that has photos, averaged over those classes."""
    if average == "image":
        return 100.0 * float(right.mean())
    photos = np.bincount(label)
    present = photos > 0
    return 100.0 * float((np.bincount(label, weights=right)[present] / photos[present]).mean())


def _best_over_thresholds(right: NDArray[np.bool_]) -> float | None:
    return 100.0 * float(right.mean(axis=0).max()) if right.size else None
