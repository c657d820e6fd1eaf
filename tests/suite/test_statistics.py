"""Paired tests against values computed by hand."""

import numpy as np
import pytest

from fdcnet.suite.statistics import RESAMPLES, bootstrap_over_classes, class_means, mcnemar


def answers(both: int, only_first: int, only_second: int, none: int = 3) -> tuple[np.ndarray, np.ndarray]:
    first = [True] * both + [True] * only_first + [False] * only_second + [False] * none
    second = [True] * both + [False] * only_first + [True] * only_second + [False] * none
    return np.array(first), np.array(second)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [
        (8, 1, 2 * (1 + 9) / 2**9),  # at most one of nine coins
        (1, 8, 2 * (1 + 9) / 2**9),
        (5, 0, 2 / 2**5),
        (10, 2, 2 * (1 + 12 + 66) / 2**12),
        (4, 4, 1.0),
        (0, 0, 1.0),
    ],
)
def test_mcnemar_is_the_exact_binomial_test(only_first: int, only_second: int, p: float) -> None:
    assert mcnemar(*answers(7, only_first, only_second)) == pytest.approx(p)


def test_photos_on_which_both_agree_do_not_count() -> None:
    assert mcnemar(*answers(0, 6, 1, none=0)) == mcnemar(*answers(500, 6, 1, none=500))


def test_class_means_weight_classes_and_not_photos() -> None:
    label = np.array([0, 0, 0, 2, 2])
    right = np.array([True, False, False, True, True])
    assert class_means(right, label).tolist() == [pytest.approx(100 / 3), 100.0]


def test_the_same_difference_in_every_class_is_certain() -> None:
    found = bootstrap_over_classes(np.full(20, 1.5))
    assert (found.mean, found.low, found.high) == (1.5, 1.5, 1.5)
    assert found.p == pytest.approx(2 / (RESAMPLES + 1))


def test_opposite_differences_show_nothing() -> None:
    found = bootstrap_over_classes(np.array([3.0, -3.0] * 10))
    assert found.mean == 0
    assert found.low == -found.high
    assert found.p > 0.8


def test_two_classes_by_hand() -> None:
    """The mean of two draws out of -1 and 3 is -1, 1, 1 or 3: a quarter is below zero."""
    found = bootstrap_over_classes(np.array([-1.0, 3.0]))
    assert found.p == pytest.approx(0.5, abs=0.02)
    assert (found.mean, found.low, found.high) == (1.0, -1.0, 3.0)
