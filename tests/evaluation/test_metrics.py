"""Six photos of three classes, every number worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from fdcnet.config import Protocol
from fdcnet.evaluation import metrics as m
from fdcnet.evaluation.table import Table


def make_table(label, rank, iou, largest, any_, thresholds=(0.1, 0.5)) -> Table:
    count = len(label)
    overlaps = np.array(iou, dtype=np.float32)
    return Table(
        path=tuple(f"{i}.jpg" for i in range(count)),
        label=np.array(label),
        rank=np.array(rank),
        top5=np.zeros((count, 5), dtype=np.int64),
        p_true=np.zeros(count, dtype=np.float32),
        p_top1=np.zeros(count, dtype=np.float32),
        box=np.zeros((count, 4), dtype=np.float32),
        iou=overlaps,
        num_boxes=(~np.isnan(overlaps)).astype(np.int64),
        thresholds=thresholds,
        iou_largest=np.array(largest, dtype=np.float32).reshape(count, len(thresholds)),
        iou_any=np.array(any_, dtype=np.float32).reshape(count, len(thresholds)),
    )


NAN = float("nan")
TABLE = make_table(
    label=[0, 0, 0, 1, 2, 2],
    rank=[0, 4, 5, 0, 1, 0],
    iou=[0.8, 0.6, 0.9, 0.5, 0.7, NAN],  # the fourth is exactly 0.5; the last has no true box
    largest=[[0.8, 0.2], [0.6, 0.3], [0.9, 0.5], [0.5, 0.9], [0.7, 0.1], [NAN, NAN]],
    any_=[[0.8, 0.8], [0.6, 0.7], [0.9, 0.9], [0.5, 0.9], [0.7, 0.3], [NAN, NAN]],
)
# box right: photos 0, 1, 2, 4 of the five with boxes; per class: 3/3, 0/1, 1/1
NO_BOXES = TABLE.select(np.isnan(TABLE.iou))
NOTHING = TABLE.select(np.zeros(6, dtype=bool))


def test_gt_known():
    assert m.gt_known(TABLE, average="image") == pytest.approx(100 * 4 / 5)
    assert m.gt_known(TABLE, average="class") == pytest.approx(100 * (1 + 0 + 1) / 3)


def test_a_box_is_right_only_above_the_overlap():
    exact = make_table([0], [0], [0.5], [[0.5, 0.5]], [[0.5, 0.5]])
    assert m.gt_known(exact) == 0
    assert m.gt_known(exact, iou=0.49) == 100
    assert m.max_box_acc(exact) == 100, "MaxBoxAcc's authors take >="
    assert m.max_box_acc_v2(exact) == pytest.approx(200 / 3)


def test_top_k_localization():
    # Top-1: photo 0 only (3 is right in class, wrong in box). Top-5: 0, 1, 4; photo 2 ranks sixth.
    assert m.top_k_localization(TABLE, 1, average="image") == pytest.approx(20)
    assert m.top_k_localization(TABLE, 1, average="class") == pytest.approx(100 * (1 / 3) / 3)
    assert m.top_k_localization(TABLE, 5, average="image") == pytest.approx(60)
    assert m.top_k_localization(TABLE, 5, average="class") == pytest.approx(100 * (2 / 3 + 0 + 1) / 3)


def test_top_k_classification_counts_photos_without_boxes():
    assert m.top_k_classification(TABLE, 1, average="image") == pytest.approx(50)
    assert m.top_k_classification(TABLE, 1, average="class") == pytest.approx(100 * (1 / 3 + 1 + 1 / 2) / 3)
    assert m.top_k_classification(TABLE, 5, average="image") == pytest.approx(100 * 5 / 6)


def test_threshold_curve_and_best_threshold():
    assert m.threshold_curve(TABLE, average="image") == pytest.approx([80, 20])
    assert m.threshold_curve(TABLE, average="class") == pytest.approx([200 / 3, 100 / 3])
    assert m.best_threshold(TABLE) == 0.1
    assert m.best_threshold(TABLE, iou=0.85, average="class") == 0.5  # class 0: 1/3 at 0.1; class 1: 1/1 at 0.5


def test_equal_thresholds_the_lowest_is_best():
    assert m.best_threshold(make_table([0], [0], [0.9], [[0.9, 0.9]], [[0.9, 0.9]])) == 0.1


def test_max_box_acc_is_over_images():
    assert m.max_box_acc(TABLE) == pytest.approx(100)  # at 0.1, with 0.5 counted
    assert m.max_box_acc(TABLE, iou=0.65) == pytest.approx(60)


def test_max_box_acc_v2_takes_each_overlap_at_its_own_threshold():
    # >= 0.3: 5/5. >= 0.5: 5/5 at threshold 0.1. >= 0.7: three at 0.1, but all except the last at 0.5.
    assert m.max_box_acc_v2(TABLE) == pytest.approx(100 * (1 + 1 + 4 / 5) / 3)


def test_summary_has_the_documented_keys_and_follows_the_protocol():
    scores = m.summary(TABLE, Protocol(average="image", iou=0.65))
    assert scores == {
        "top1_loc": pytest.approx(20),
        "top5_loc": pytest.approx(40),
        "gt_known": pytest.approx(60),
        "top1_cls": pytest.approx(50),
        "top5_cls": pytest.approx(500 / 6),
        "max_box_acc": pytest.approx(100),
        "max_box_acc_v2": pytest.approx(280 / 3),
        "best_threshold": 0.1,
        "gt_known_best": pytest.approx(60),
    }
    assert m.summary(TABLE, Protocol(average="class"))["gt_known"] == pytest.approx(200 / 3)


def test_without_true_boxes_only_classification_is_known():
    scores = m.summary(NO_BOXES, Protocol())
    assert scores.pop("top1_cls") == 100
    assert scores.pop("top5_cls") == 100
    assert set(scores.values()) == {None}


def test_without_photos_nothing_is_known():
    assert set(m.summary(NOTHING, Protocol()).values()) == {None}


def test_by_task_groups_photos_not_predictions():
    old, new, none = m.by_task(TABLE, Protocol(average="class"), [1, 1, 2, 3])
    assert old["gt_known"] == pytest.approx(50)  # class 0: 3/3, class 1: 0/1
    assert old["top1_cls"] == pytest.approx(100 * (1 / 3 + 1) / 2)
    assert new == {"top1_loc": 0, "top5_loc": 100, "gt_known": 100, "top1_cls": 50, "top5_cls": 100}
    assert set(none.values()) == {None}, "a group without photos"


def test_by_class():
    # class 0: ranks 0, 4, 5 and boxes right in 3 of 3; class 1: box exactly 0.5; class 2: one photo without a box
    found = m.by_class(TABLE, Protocol())
    assert list(found) == [0, 1, 2]
    assert [found[label]["top1_cls"] for label in found] == [pytest.approx(100 / 3), 100, 50]
    assert [found[label]["gt_known"] for label in found] == [100, 0, 100]


def test_confusions_come_by_frequency():
    predicted = np.zeros((6, 5), dtype=np.int64)
    predicted[:, 0] = [1, 1, 0, 1, 0, 2]  # 0 taken for 1 twice, 2 for 0 once
    assert m.confusions(replace(TABLE, top5=predicted)) == [(0, 1, 2), (2, 0, 1)]
    predicted[:, 0] = TABLE.label
    assert m.confusions(replace(TABLE, top5=predicted)) == []


@pytest.mark.parametrize(
    ("box", "kind"),
    [
        ((10, 10, 14, 14), "too small"),  # inside
        ((0, 0, 40, 40), "too large"),  # around
        ((25, 25, 40, 40), "elsewhere"),
        ((16, 10, 25, 20), "elsewhere"),  # shares 4 of 9 columns
        ((15, 10, 24, 20), "too small"),  # shares 5 of 9 columns
    ],
)
def test_kinds_of_wrong_boxes(box, kind):
    assert m.box_error(box, (10, 10, 20, 20)) == kind


def test_wrong_boxes_are_counted():
    assert m.box_errors(TABLE) is None, "true boxes are unknown"
    true = np.tile(np.array([10, 10, 20, 20], dtype=np.float32), (6, 1))
    box = true.copy()
    box[3] = [0, 0, 40, 40]  # the only photo at or below 0.5
    found = m.box_errors(replace(TABLE, box=box, true_box=true))
    assert found == {"too small": 0, "too large": 1, "elsewhere": 0}
    assert m.box_errors(replace(TABLE, box=box, true_box=true), iou=0.75) == {
        "too small": 0, "too large": 3, "elsewhere": 0
    }  # fmt: skip


def test_metrics_survive_saving(tmp_path):
    TABLE.save(tmp_path / "t.csv.gz")
    protocol = Protocol()
    assert m.summary(Table.load(tmp_path / "t.csv.gz"), protocol) == m.summary(TABLE, protocol)
