"""Rows, their means and the paired tests between them, computed by hand from a few photos."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fdcnet.suite.photos import FILE, PhotoResults
from fdcnet.suite.rows import Measured, ProtocolKey, Row, rows_of, short_labels
from fdcnet.suite.tables import comparison_table, comparisons, results_table

VIEW = ProtocolKey("class", "lda", 0.5)
NUM_CLASSES, PER_CLASS = 4, 10


def results(average: float, last: float, classifier: str = "lda", compensated: bool = True) -> dict[str, Any]:
    names = ("top1_loc", "top5_loc", "gt_known", "top1_cls")
    return {
        "protocol": {
            "map": "class",
            "classifier": classifier,
            "threshold": 0.5,
            "compensated": compensated,
            "iou": 0.5,
        },
        "tasks": [{"num_classes": 1}, {"num_classes": 3}, {"num_classes": 4}],
        "average": dict.fromkeys(names, average),
        "last": dict.fromkeys(names, last),
        "forgetting": {"top1_loc": 1.0},
        "photos": {"rank": "rank class", "iou": "iou class"},
        "made": {"commit": "0123456789abcdef-dirty"},
    }


def run(
    folder: Path,
    recipe: str,
    seed: int,
    right: list[int],
    average: float = 50.0,
    variant: str = "",
    untested: int | None = None,
) -> Measured:
    """`right`: how many of the ten photos of each class are right after the last task. `untested`: without photos."""
    rank = np.concatenate([[0] * number + [1] * (PER_CLASS - number) for number in right])
    label = np.repeat(np.arange(NUM_CLASSES), PER_CLASS)
    paths = tuple(f"{c}/{i}.jpg" for c in range(NUM_CLASSES) for i in range(PER_CLASS))
    columns = {"rank class": rank, "iou class": np.full(len(rank), 80)}
    own = folder / f"{recipe}{variant}-{seed}"
    own.mkdir()
    PhotoResults(np.full(len(rank), 3), paths, label, columns).select(label != untested).save(own / FILE)
    return Measured(recipe, variant, (None, seed), [results(average, 10 * sum(right) / NUM_CLASSES)], own)


def rows(*runs: Measured) -> list[Row]:
    return rows_of(runs, VIEW)


def test_protocols_with_other_maps_are_not_mixed() -> None:
    """They may differ only in the number of averaged classes or views."""
    maps = [{"map": "topk-mean", "topk": 5}, {"map": "topk-mean", "topk": 80}, {"map": "class", "map_views": 2}]
    found = []
    for i, own in enumerate([*maps, {"map": "class"}]):
        made = results(10 * i, 10 * i)
        found.append(made | {"protocol": made["protocol"] | own})
    measured = Measured("fdcnet", "", (None, 0), found)
    shown = {
        protocol.title: rows_of([measured], protocol)[0].value("last", "top1_loc") for protocol in measured.protocols
    }
    assert shown == {
        "Class-averaged map (top 5, one view), LDA, threshold 0.5": 0.0,
        "Class-averaged map (top 80, one view), LDA, threshold 0.5": 10.0,
        "True-class map, LDA, threshold 0.5": 20.0,
        "True-class map (one view), LDA, threshold 0.5": 30.0,
    }


def test_a_row_is_the_mean_and_deviation_of_its_seeds(tmp_path: Path) -> None:
    [row] = rows(run(tmp_path, "a", 0, [5, 5, 5, 5], 60.0), run(tmp_path, "a", 1, [6, 6, 6, 6], 64.0))
    text = results_table([row], ["top1_loc"])
    assert text.splitlines()[2] == (
        "| a | 2 seeds | 62.00 ±\xa02.83 / 55.00 ±\xa07.07 | 1.0 ±\xa00.0 | `0123456-dirty` |"
    )


def test_a_consistent_difference_is_ahead(tmp_path: Path) -> None:
    found = comparisons(
        rows(run(tmp_path, "x-a", 0, [9, 9, 9, 9]), run(tmp_path, "x-b", 0, [5, 6, 6, 7])), recipe="x-a"
    )
    [one] = found
    assert one.difference.mean == pytest.approx(30.0)  # 4, 3, 3 and 2 of ten photos
    assert one.mcnemar_p == pytest.approx(2 / 2**12)  # all twelve photos on which they differ
    assert one.by_task == pytest.approx([40.0, 30.0, 20.0])  # the first class, two between, the last
    assert one.verdict == "ahead"
    assert "| a – b | +30.00 | +22.50 to +37.50 | < 0.001 | < 0.001 | +40.00 | +30.00 | +20.00 | ahead |" in (
        comparison_table(found)
    )
    [reverse] = comparisons([one.second, one.first], recipe="x-b")
    assert reverse.verdict == "behind"


def test_a_class_without_test_photos_does_not_shift_the_others(tmp_path: Path) -> None:
    both = run(tmp_path, "a", 0, [9, 9, 9, 9], untested=1), run(tmp_path, "b", 0, [5, 6, 6, 7], untested=1)
    [one] = comparisons(rows(*both), "a")
    assert one.by_task == pytest.approx([40.0, 30.0, 20.0])  # the first class, the other one between, the last


def test_a_lead_by_one_class_alone_is_no_lead(tmp_path: Path) -> None:
    """McNemar finds it, but classes differ: the bootstrap does not."""
    both = rows(run(tmp_path, "a", 0, [5, 5, 5, 10]), run(tmp_path, "b", 0, [5, 5, 5, 0]))
    [one] = comparisons(both, "a")
    assert one.mcnemar_p < 0.05 < one.difference.p
    assert one.verdict == "no difference shown"


def test_every_seed_must_agree(tmp_path: Path) -> None:
    first = [run(tmp_path, "a", seed, [9, 9, 9, 9]) for seed in (0, 1)]
    second = [run(tmp_path, "b", 0, [4, 4, 4, 4]), run(tmp_path, "b", 1, [8, 8, 8, 8])]
    [one] = comparisons(rows(*first, *second), "a")
    assert one.difference.mean == pytest.approx(30.0)
    assert one.mcnemar_p == pytest.approx(2 / 2**4)  # seed 1
    assert one.verdict == "no difference shown"


def test_only_rows_with_the_same_settings_are_compared(tmp_path: Path) -> None:
    settings = [("a", ""), ("a", "budget4"), ("a", "budget4-ranked"), ("b", ""), ("b", "budget4")]
    runs = [run(tmp_path, recipe, 0, [5] * 4, variant=variant) for recipe, variant in settings]
    pairs = [(one.first.label, one.second.label) for one in comparisons(rows(*runs), "a")]
    assert pairs == [("a", "b"), ("a-budget4", "a-budget4-ranked"), ("a-budget4", "b-budget4")]


def test_without_photos_nothing_is_claimed(tmp_path: Path) -> None:
    earlier = Measured("b", "", (None, 0), [results(50.0, 40.0)])
    assert comparisons(rows(run(tmp_path, "a", 0, [9] * 4), earlier), "a") == []


def test_a_method_without_lda_is_shown_by_its_head() -> None:
    head = Measured("b", "", (None, 0), [results(50.0, 40.0, "head")])
    both = Measured(
        "a", "", (None, 0), [results(60.0, 50.0), results(1.0, 1.0, "head"), results(2.0, 2.0, "lda", False)]
    )
    assert [row.label for row in rows(both, head)] == ["a", "a, network alone", "b (head)"]
    assert [row.label for row in rows_of([both, head], ProtocolKey("class", "head", 0.5))] == ["a", "b"]
    assert rows_of([both], ProtocolKey("class", "lda", 0.15)) == []


def test_labels_leave_out_what_all_names_start_with() -> None:
    assert short_labels(["x-y-a", "x-y-b-c"]) == ["a", "b-c"]
    assert short_labels(["x-y", "x-y-b"]) == ["y", "y-b"]
    assert short_labels(["x-y"]) == ["y"]
