"""Equations 7 to 9 against numbers worked out by hand."""

import math

import pytest
import torch
from torch import tensor

from fdcnet.losses import distillation as kd


def test_kd_classes_is_the_divergence_over_the_old_classes_alone() -> None:
    old = tensor([[math.log(3.0), 0.0]])  # 3/4, 1/4
    new = tensor([[0.0, 0.0, 99.0]])  # 1/2, 1/2 among the old classes; the new class does not matter
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert kd.kd_classes(new, old).item() == pytest.approx(expected)


def test_kd_classes_among_all_classes() -> None:
    old = tensor([[math.log(3.0), 0.0]])  # 3/4, 1/4
    new = tensor([[0.0, 0.0, math.log(2.0)]])  # 1/4, 1/4, 1/2
    expected = 0.75 * math.log(0.75 / 0.25) + 0.25 * math.log(0.25 / 0.25)
    assert kd.kd_classes(new, old, over="all").item() == pytest.approx(expected)


def test_kd_classes_with_temperature() -> None:
    old, new = tensor([[2 * math.log(3.0), 0.0]]), tensor([[0.0, 0.0]])
    expected = 4 * (0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5))
    assert kd.kd_classes(new, old, temperature=2).item() == pytest.approx(expected)


def test_kd_classes_is_zero_for_equal_scores_up_to_a_constant() -> None:
    old = torch.randn(5, 7)
    assert kd.kd_classes(old + 3, old).item() == pytest.approx(0, abs=1e-6)


def test_kd_masks_leaves_out_samples_of_new_classes() -> None:
    masks = tensor([0.5, 0.9]).reshape(2, 1, 1, 1)
    old = tensor([0.1, 0.1]).reshape(2, 1, 1, 1)
    assert kd.kd_masks(masks, old, tensor([True, False])).item() == pytest.approx(0.16)
    assert kd.kd_masks(masks, old, tensor([False, False])).item() == 0


def test_kd_masks_as_a_norm() -> None:
    masks, old = tensor([0.3, 0.4]).reshape(1, 1, 1, 2), torch.zeros(1, 1, 1, 2)
    assert kd.kd_masks(masks, old, tensor([True]), "norm").item() == pytest.approx(0.5)


def test_kd_features_is_one_minus_the_mean_cosine() -> None:
    features = tensor([[1.0, 0.0], [0.0, 2.0]]).reshape(1, 2, 1, 2)  # vectors (1, 0) and (0, 2)
    old = tensor([[3.0, 1.0], [0.0, 0.0]]).reshape(1, 2, 1, 2)  # vectors (3, 0) and (1, 0): cosines 1 and 0
    assert kd.kd_features(features, old).item() == pytest.approx(0.5)
