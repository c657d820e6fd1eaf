import json

import numpy as np
import pytest

from fdcnet.config import Protocol
from fdcnet.evaluation.incremental import AVERAGED, TaskScores, accuracy_matrix, build_results, forgetting, score_task
from fdcnet.evaluation.metrics import METRICS
from fdcnet.evaluation.table import Table


def table_of(label: list[int], rank: list[int], iou: list[float]) -> Table:
    count, overlaps = len(label), np.array(iou, dtype=np.float32)
    return Table(
        path=("x.jpg",) * count,
        label=np.array(label),
        rank=np.array(rank),
        top5=np.zeros((count, 5), dtype=np.int64),
        p_true=np.zeros(count, dtype=np.float32),
        p_top1=np.zeros(count, dtype=np.float32),
        box=np.zeros((count, 4), dtype=np.float32),
        iou=overlaps,
        num_boxes=(~np.isnan(overlaps)).astype(np.int64),
        thresholds=(0.15,),
        iou_largest=overlaps[:, None],
        iou_any=overlaps[:, None],
    )


def scores_of(overall: float, groups: list[float]) -> TaskScores:
    return TaskScores(10 * len(groups), dict.fromkeys(AVERAGED, overall), [dict.fromkeys(METRICS, g) for g in groups])


def test_forgetting_by_hand():
    # Group 1 peaked at 85 after task 2, group 2 got better: ((85 - 60) + (70 - 75)) / 2.
    assert forgetting([[80.0], [85.0, 70.0], [60.0, 75.0, 90.0]]) == pytest.approx(10)
    assert forgetting([[80.0], [50.0, 70.0]]) == pytest.approx(30)


def test_a_later_column_looks_only_at_tasks_that_knew_it():
    assert forgetting([[50.0], [50.0, 40.0], [50.0, 70.0, 10.0], [50.0, 20.0, 10.0, 0.0]]) == pytest.approx(50 / 3)


def test_one_task_forgets_nothing_that_can_be_measured():
    assert forgetting([[80.0]]) is None


def test_unknown_accuracies_make_forgetting_unknown():
    assert forgetting([[None], [50.0, 70.0]]) is None
    assert forgetting([[50.0], [None, 70.0]]) is None


def test_forgetting_is_that_of_the_old_tasks_with_boxes():
    # Group 2 has no true boxes: only group 1 counts, and after task 2 alone it is (80 - 60).
    matrix = [[80.0], [60.0, None], [50.0, None, 90.0]]
    assert forgetting(matrix) == pytest.approx(30)
    assert forgetting(matrix[:2]) == pytest.approx(20)
    assert forgetting([[None], [None, 80.0]]) is None
    assert forgetting([[None], [None, 80.0], [None, 65.0, 90.0]]) == pytest.approx(15)


def test_a_task_without_boxes_leaves_the_forgetting_of_the_others():
    nothing = float("nan")
    table = table_of([0, 0, 1, 2], [0, 0, 0, 0], [0.9, 0.9, nothing, 0.9])
    later = table_of([0, 0, 1, 2], [0, 1, 0, 0], [0.1, 0.9, nothing, 0.9])
    tasks = [
        score_task(table.select(table.label < 1), Protocol(), [1]),
        score_task(table.select(table.label < 2), Protocol(), [1, 1]),
        score_task(later, Protocol(), [1, 1, 1]),
    ]
    results = build_results(dataset="d", method="m", backbone="b", seed=0, protocol=Protocol(), tasks=tasks)
    assert results["forgetting"]["gt_known"] == 50  # of class 0, one of two boxes is lost
    assert results["forgetting"]["top1_loc"] == 100  # the other photo has lost its class
    assert results["forgetting"]["top1_cls"] == 25  # of both old classes: (50 + 0) / 2


def test_score_task_splits_by_arrival():
    table = table_of([0, 1, 2, 2], [0, 0, 0, 1], [0.9, 0.1, 0.9, 0.9])
    scores = score_task(table, Protocol(), [2, 1])
    assert scores.num_classes == 3
    assert scores.overall["gt_known"] == pytest.approx(200 / 3)
    assert [group["gt_known"] for group in scores.groups] == [50, 100]
    assert [group["top1_cls"] for group in scores.groups] == [100, 50]


def test_build_results_holds_schema_1():
    protocol = Protocol(map="topk-mean", threshold=0.1)
    results = build_results(
        dataset="birds",
        method="fdcnet",
        backbone="tiny",
        seed=3,
        protocol=protocol,
        tasks=[scores_of(80, [80]), scores_of(70, [60, 90]), scores_of(55, [50, 80, 100 / 3])],
    )
    assert [results[key] for key in ("schema", "dataset", "method", "backbone", "seed")] == [
        1,
        "birds",
        "fdcnet",
        "tiny",
        3,
    ]
    required = {"map", "normalization", "threshold", "threshold_source", "crops", "iou"}
    assert required | {"average", "frame", "inclusive_pixels"} <= set(results["protocol"])
    assert [(task["task"], task["num_classes"]) for task in results["tasks"]] == [(1, 10), (2, 20), (3, 30)]
    assert results["average"]["top1_loc"] == pytest.approx(205 / 3, abs=1e-4)
    assert results["last"]["top1_loc"] == 55
    assert results["forgetting"]["gt_known"] == pytest.approx(((80 - 50) + (90 - 80)) / 2)
    assert results["matrix"]["gt_known"] == [[80], [60, 90], [50, 80, 33.3333]]
    assert json.loads(json.dumps(results, allow_nan=False)) == results


def test_joint_training_has_one_task():
    results = build_results(
        dataset="d", method="joint", backbone="b", seed=0, protocol=Protocol(), tasks=[scores_of(61.5, [61.5])]
    )
    assert results["average"] == results["last"]
    assert set(results["forgetting"].values()) == {None}


def test_a_data_set_without_boxes_still_gives_classification():
    table = table_of([0, 1], [0, 1], [float("nan")] * 2)
    tasks = [score_task(table.select(table.label < 1), Protocol(), [1]), score_task(table, Protocol(), [1, 1])]
    results = build_results(dataset="d", method="m", backbone="b", seed=0, protocol=Protocol(), tasks=tasks)
    assert results["average"]["top1_cls"] == 75
    assert results["average"]["gt_known"] is None
    assert results["forgetting"]["top1_cls"] == 0
    assert accuracy_matrix(tasks, "gt_known") == [[None], [None, None]]
    json.dumps(results, allow_nan=False)
