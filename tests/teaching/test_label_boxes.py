"""Confidence of a box, computed by hand for simple maps."""

import numpy as np
import pytest

from fdcnet.teaching.label_boxes import _confidence, _otsu_threshold


def square(x0: int, x1: int, value: float = 1.0) -> np.ndarray:
    heat = np.zeros((10, 10), np.float32)
    heat[2:6, x0:x1] = value
    return heat


def confidence(*views: np.ndarray, strength: np.ndarray | None = None, score: float = 1.0) -> float:
    """The features are strong where all views are, unless they are given."""
    maps = np.stack(views)
    return _confidence(maps, maps.min(axis=0) if strength is None else strength, 0.5, score)


def test_sharp_views_that_agree_are_certain() -> None:
    assert confidence(square(2, 6), square(2, 6), square(2, 6)) == pytest.approx(1)


def test_the_class_score_counts_for_a_third() -> None:
    assert confidence(square(2, 6), square(2, 6), square(2, 6), score=0.4) == pytest.approx(0.8)


def test_views_that_disagree_are_doubtful() -> None:
    # 2..6 twice and 2..8 once: the pairs overlap by 1, 4/6 and 4/6. The mean is 1/3 on 6..8, so the box is 2..6 at
    # threshold 0.5, and 2..8 at 0.2.
    assert confidence(square(2, 6), square(2, 6), square(2, 8)) == pytest.approx((1 + 4 / 6 + 4 / 6) / 3 * 4 / 6)


def test_a_box_that_grows_at_a_lower_threshold_is_doubtful() -> None:
    # 1 on 2..6 and 0.3 on 6..10: the box is 2..6 at threshold 0.5, and 2..10 at 0.2.
    blurred = np.maximum(square(2, 6), square(6, 10, 0.3))
    assert confidence(blurred, blurred, blurred, strength=square(2, 6)) == pytest.approx(4 / 8)


def test_weak_surroundings_do_not_matter() -> None:
    faint = np.maximum(square(2, 6), square(6, 10, 0.1))
    assert confidence(faint, faint, faint, strength=square(2, 6)) == pytest.approx(1)


def test_a_mask_beside_the_strongest_features_is_doubtful() -> None:
    # The mask covers 2..6, the strong features 4..8: they share 2 of 6 columns.
    views = (square(2, 6),) * 3
    assert confidence(*views, strength=square(4, 8)) == pytest.approx(2 / 6)
    assert confidence(*views, strength=square(6, 10)) == 0


def test_stray_pixels_count_for_what_they_are() -> None:
    stray = square(2, 6)
    stray[9, 9] = 1  # 16 pixels become 17
    assert confidence(square(2, 6), square(2, 6), stray) == pytest.approx((1 + 2 * 16 / 17) / 3)


def test_empty_masks_are_doubtful() -> None:
    assert confidence(square(2, 6, 0.1), square(2, 6, 0.1), square(2, 6, 0.1)) == 0


def test_features_without_contrast_are_doubtful() -> None:
    assert confidence(square(2, 6), square(2, 6), square(2, 6), strength=np.zeros((10, 10), np.float32)) == 0


def test_otsu_separates_two_groups() -> None:
    # The mean is 3. Lower groups of 1, 2 and 3 values: (0 - 3)^2 / 3 = 3, (1 - 6)^2 / 4 = 6.25, (5 - 9)^2 / 3 = 5.33.
    values = np.array([[0, 1], [4, 7]], np.float32)
    assert _otsu_threshold(values) == 1
    assert (values > _otsu_threshold(values)).tolist() == [[False, False], [True, True]]
