"""What benchmarks/detector.py measures with."""

import contextlib
import importlib
import io
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def ap(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("average_precision")


def test_a_second_detection_of_an_object_is_wrong(ap: ModuleType) -> None:
    photos, overlaps = np.array([0, 1, 0, 1]), np.array([0.4, 0.9, 0.8, 0.7])
    assert ap.find_correct(photos, overlaps, 0.5).tolist() == [False, True, True, False]


def test_by_hand(ap: ModuleType) -> None:
    photos, correct = np.array([0, 1, 1]), np.array([True, False, True])
    # Precision is 1 up to a recall of 1/2 (51 of 101 points) and 2/3 from there on.
    assert ap.average_precision(photos, correct, np.array([1, 1])) == pytest.approx((51 + 50 * 2 / 3) / 101)
    # A third photo without detections: recall ends at 2/3.
    assert ap.average_precision(photos, correct, np.array([1, 1, 1])) == pytest.approx((34 + 33 * 2 / 3) / 101)


def test_no_detections(ap: ModuleType) -> None:
    assert ap.average_precision(np.array([], int), np.array([], bool), np.array([1, 1])) == 0


def test_photos_count_as_often_as_they_were_drawn(ap: ModuleType) -> None:
    photos, correct = np.array([0, 1, 2]), np.array([True, False, True])
    drawn_twice = ap.average_precision(photos, correct, np.array([2, 1, 0]))
    written_twice = ap.average_precision(np.array([0, 1, 2]), np.array([True, True, False]), np.array([1, 1, 1]))
    assert drawn_twice == pytest.approx(written_twice)
    samples = ap.bootstrap(50, 200, seed=0)
    assert samples.shape == (200, 50) and (samples.sum(axis=1) == 50).all()


def test_the_same_as_pycocotools(ap: ModuleType) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    random = np.random.default_rng(0)
    num = 40
    shifts = random.uniform(-40, 40, size=(num, 3))  # three detections of a box of 100 x 100 in each photo
    overlaps = (100 - abs(shifts)) / (100 + abs(shifts))
    photos, scores = np.repeat(np.arange(num), 3), random.permutation(3 * num) / (3 * num)
    truth = [dict(_coco_box(i, 0), id=i + 1, area=1e4, iscrowd=0) for i in range(num)]
    found = [dict(_coco_box(i, s), score=p) for i, s, p in zip(photos, shifts.ravel(), scores, strict=True)]
    with contextlib.redirect_stdout(io.StringIO()):
        true_set = coco.COCO()
        true_set.dataset = {"images": [{"id": i} for i in range(num)], "categories": [{"id": 1}], "annotations": truth}
        true_set.createIndex()
        evaluation = cocoeval.COCOeval(true_set, true_set.loadRes(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    best_first = np.argsort(-scores)
    photos, overlaps = photos[best_first], overlaps.ravel()[best_first]
    own = [
        ap.average_precision(photos, ap.find_correct(photos, overlaps, level), np.ones(num, int)) for level in ap.LEVELS
    ]
    assert [np.mean(own), own[0], own[5]] == pytest.approx(evaluation.stats[:3])


def _coco_box(photo: int, shift: float) -> dict[str, object]:
    return {"image_id": int(photo), "category_id": 1, "bbox": [50 + float(shift), 50, 100, 100]}
