"""Metrics: pure functions of a `Table`, in percent. None where no photo has a true box (or there is no photo at all).

A box is right if its overlap is larger than `iou`, strictly, as in BAS's scripts. Photos without true boxes count for
classification only.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fdcnet.config import Protocol
from fdcnet.evaluation.table import Table

Average = Literal["image", "class"]
Scores = dict[str, float | None]
BoxError = Literal["too small", "too large", "elsewhere"]

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
    """The threshold with the highest GT-known over all photos; the lowest one in case of a tie."""
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


def by_class(table: Table, protocol: Protocol) -> dict[int, Scores]:
    """`METRICS` for each class that has photos, by label."""
    return {int(label): _basic(table.select(table.label == label), protocol) for label in np.unique(table.label)}


def confusions(table: Table) -> list[tuple[int, int, int]]:
    """(true label, predicted label, number of photos) of all wrong classes, the most frequent first."""
    predicted = table.top5[:, 0]
    wrong = predicted != table.label
    pairs = np.stack([table.label[wrong], predicted[wrong]], axis=1)
    found, counts = np.unique(pairs, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(int(found[i, 0]), int(found[i, 1]), int(counts[i])) for i in order]


def box_error(box: Sequence[float], true_box: Sequence[float]) -> BoxError:
    """Why a box misses: it shares less than half of the smaller box, or it is too small, or too large."""
    x0, y0 = max(box[0], true_box[0]), max(box[1], true_box[1])
    x1, y1 = min(box[2], true_box[2]), min(box[3], true_box[3])
    area, true_area = _area(box), _area(true_box)
    if max(0.0, x1 - x0) * max(0.0, y1 - y0) < min(area, true_area) / 2:
        return "elsewhere"
    return "too small" if area < true_area else "too large"


def box_errors(table: Table, iou: float = 0.5) -> dict[BoxError, int] | None:
    """The number of photos with each kind of wrong box. None for a table without true boxes."""
    if table.true_box is None or not (table.num_boxes > 0).any():
        return None
    wrong = (table.num_boxes > 0) & ~(table.iou > iou)
    kinds = [box_error(box, true) for box, true in zip(table.box[wrong], table.true_box[wrong], strict=True)]
    return {kind: kinds.count(kind) for kind in get_args(BoxError)}


def _area(box: Sequence[float]) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


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
