"""Figures of a suite: what they show, and drift computed by hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fdcnet.report.charts import Series, line_chart
from fdcnet.suite.drift import distances, ways
from fdcnet.suite.figures import accuracy, against_memory, forgotten
from fdcnet.suite.rows import Measured, ProtocolKey, rows_of


def run(
    recipe: str, seed: int, values: Sequence[float | None], variant: str = "", compensated: bool = True, budget: int = 9
) -> Measured:
    tasks = [{"num_classes": 10 * (t + 1), "top1_loc": value} for t, value in enumerate(values)]
    results = {
        "protocol": {"map": "class", "classifier": "head", "threshold": 0.5, "compensated": compensated},
        "tasks": tasks,
        "last": {"top1_loc": values[-1]},
        "matrix": {"top1_loc": [values[: t + 1] for t in range(len(values))]},
        "made": {"config": {"memory": {"budget": budget}}},
    }
    return Measured(recipe, variant, (None, seed), [results])


VIEW = ProtocolKey("class", "head", 0.5)


def test_curves_have_a_band_where_there_are_several_seeds() -> None:
    runs = [run("a", 0, [70.0, 60.0]), run("a", 1, [72.0, 64.0]), run("b", 0, [70.0, 50.0]), run("joint", 0, [75.0])]
    drawn = str(accuracy(rows_of(runs, VIEW)))
    assert drawn.count("opacity") == 1
    assert "<title>a: 62.0</title>" in drawn
    assert "joint" in drawn
    assert "<title>a: 0.0</title>" in str(forgotten(rows_of(runs, VIEW)))


def test_photos_without_true_boxes_have_no_curves() -> None:
    runs = [run("a", seed, [None, None]) for seed in (0, 1)]
    assert accuracy(rows_of(runs, VIEW)) == forgotten(rows_of(runs, VIEW)) == ""


def test_a_row_far_below_does_not_flatten_the_others() -> None:
    runs = [run("a", 0, [70.0, 60.0]), run("finetune", 0, [70.0, 7.0])]
    assert "finetune" not in str(accuracy(rows_of(runs, VIEW)))


def test_compensation_against_memory_needs_two_sizes() -> None:
    small, large = run("x-a", 0, [70.0, 40.0], "budget400", budget=400), run("x-a", 0, [70.0, 60.0], budget=2000)
    other = run("x-a", 0, [70.0, 30.0], "budget400-old_classes=exemplars", budget=400)
    assert against_memory([small, other]) == ""
    drawn = str(against_memory([large, small, other]))
    assert "<title>a, head: 40.0</title>" in drawn and ">2000</text>" in drawn
    assert "<title>a, old_classes=exemplars, head: 30.0</title>" in drawn


def test_a_band_without_a_value_is_not_drawn() -> None:
    assert "opacity" not in str(line_chart([Series("a", [(0, 1.0), (1, None)], 0, [1.0, 1.0])], "t"))


def test_distances_by_hand() -> None:
    """The first class turns by 90 degrees, the second, which comes later, not at all."""
    first, second = np.array([[1.0, 0.0]]), np.array([[0.0, 2.0], [3.0, 0.0]])
    assert distances([first, second], [1, 1]) == [[0.0], [1.0, 0.0]]


def test_ways_keep_the_distances_of_a_plane() -> None:
    """Points that lie in a plane keep their distances, wherever the plane lies."""
    plane = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 2)))[0].T
    points = np.array([[[0.0, 0.0], [3.0, 4.0]], [[1.0, 0.0], [1.0, 2.0]]])  # (tasks, classes, 2)
    found = ways([own @ plane for own in points], [0, 1])  # (classes, tasks, 2)
    assert np.linalg.norm(found[0, 0] - found[1, 0]) == pytest.approx(5.0)
    assert np.linalg.norm(found[1, 0] - found[1, 1]) == pytest.approx(np.hypot(2, 2))


def test_a_run_without_features_has_no_drift(tmp_path: Path) -> None:
    from fdcnet.store.record import RunRecord
    from fdcnet.suite.drift import measured_drift

    RunRecord.create(tmp_path / "run", {"tasks": [["a"], ["b"]]})
    assert measured_drift(tmp_path / "run") is None
