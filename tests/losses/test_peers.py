"""The peers' terms, against numbers computed by hand."""

import math

import pytest
import torch

from fdcnet.losses import peers


def test_less_forget_is_one_minus_the_cosine_of_pooled_features() -> None:
    # pooled: (1, 0) now and (1, 1) before, cosine 1/sqrt(2); and (0, 2) twice, cosine 1
    now = torch.tensor([[[[2.0, 0.0]], [[1.0, -1.0]]], [[[0.0, 0.0]], [[2.0, 2.0]]]])
    before = torch.tensor([[[[1.0, 1.0]], [[0.0, 2.0]]], [[[0.0, 0.0]], [[1.0, 3.0]]]])
    assert peers.less_forget(now, before).item() == pytest.approx(1 - (1 / math.sqrt(2) + 1) / 2)


def test_margin_ranking_counts_the_nearest_new_classes_of_old_photos() -> None:
    cosines = torch.tensor([[0.6, 0.1, 0.5, -0.2, 0.3], [0.2, 0.9, 0.1, 0.2, 0.0], [0.0, 0.0, 0.9, 0.8, 0.7]])
    labels = torch.tensor([0, 1, 3])  # the last one is new: it is left out
    # photo 1: 0.5 - 0.6 + 0.5 = 0.4 and 0.5 - 0.6 + 0.3 = 0.2, mean 0.3; photo 2: 0.5 - 0.9 + 0.2 < 0
    assert peers.margin_ranking(cosines, labels, num_old=2).item() == pytest.approx(0.15)
    assert peers.margin_ranking(cosines, labels, num_old=2, rivals=1, margin=1.0).item() == pytest.approx(0.6)
    assert peers.margin_ranking(cosines, labels, num_old=2, rivals=9, margin=1.1).item() == pytest.approx(
        ((1.0 + 0.3 + 0.8) / 3 + (0.3 + 0.4 + 0.2) / 3) / 2
    )


def test_margin_ranking_without_old_photos_is_nothing() -> None:
    assert peers.margin_ranking(torch.rand(2, 4), torch.tensor([2, 3]), num_old=2).item() == 0


def test_rarity_is_that_of_the_published_example() -> None:
    # FOSTER on ImageNet-100: beta 0.97, 50 classes of 20 exemplars and 10 of 1300 photos
    weights = peers.rarity(torch.tensor([20.0] * 50 + [1300.0] * 10), beta=0.97)
    assert weights.mean().item() == pytest.approx(1)
    assert (weights[0].item(), weights[-1].item()) == pytest.approx((1.10, 0.50), abs=0.005)
    assert peers.rarity(torch.tensor([1.0, 2.0]), 0.5).tolist() == pytest.approx([1.2, 0.8])  # 1 and 2/3


def test_balanced_distillation_weighs_the_teachers_probabilities() -> None:
    # teacher 1/4 and 3/4, times 3 and 1: a half each. student 1/3 and 2/3
    teacher = torch.tensor([[0.0, 2 * math.log(3)]])
    student = torch.tensor([[0.0, 2 * math.log(2)]])
    value = peers.balanced_distillation(student, teacher, torch.tensor([3.0, 1.0]), temperature=2.0)
    assert value.item() == pytest.approx(-(math.log(1 / 3) + math.log(2 / 3)) / 2)
    plain = peers.balanced_distillation(student, teacher, torch.ones(2), temperature=2.0)
    assert plain.item() == pytest.approx(-(math.log(1 / 3) + 3 * math.log(2 / 3)) / 4)
