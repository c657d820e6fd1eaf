"""Confidence of a box, computed by hand for simple maps."""

import numpy as np
import pytest

from fdcnet.teaching.label_boxes import _confidence


def square(x0: int, x1: int, value: float = 1.0) -> np.ndarray:
    heat = np.zeros((10, 10), np.float32)
    heat[2:6, x0:x1] = value
    return heat


def confidence(*views: np.ndarray, score: float = 1.0) -> float:
    return _confidence(np.stack(views), 0.6, score)


def test_sharp_views_that_agree_are_certain() -> None:
    assert confidence(square(2, 6), square(2, 6), square(2, 6)) == pytest.approx(1)


def test_the_class_score_counts_for_a_third() -> None:
    assert confidence(square(2, 6), square(2, 6), square(2, 6), score=0.4) == pytest.approx(0.8)


def test_views_that_disagree_are_doubtful() -> None:
    # 2..6 twice and 2..8 once: the pairs overlap by 1, 4/6 and 4/6.
    assert confidence(square(2, 6), square(2, 6), square(2, 8)) == pytest.approx((1 + 4 / 6 + 4 / 6) / 3)


def test_a_blurred_mask_is_doubtful() -> None:
    # 1 on 2..6 and 0.5 on 6..10: the box is 2..10 at threshold 0.4, and 2..6 at 0.6 and 0.8.
    blurred = np.maximum(square(2, 6), square(6, 10, 0.5))
    assert confidence(blurred, blurred, blurred) == pytest.approx(4 / 8)


def test_stray_pixels_count_for_what_they_are() -> None:
    stray = square(2, 6)
    stray[9, 9] = 1  # 16 pixels become 17
    assert confidence(square(2, 6), square(2, 6), stray) == pytest.approx((1 + 2 * 16 / 17) / 3)


def test_empty_masks_are_doubtful() -> None:
    assert confidence(square(2, 6, 0.1), square(2, 6, 0.1), square(2, 6, 0.1)) == 0
