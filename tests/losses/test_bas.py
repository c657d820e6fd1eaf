"""Equations 1 to 6 against numbers worked out by hand."""

import math

import pytest
import torch
from torch import tensor

from fdcnet.losses import bas


def test_classification_is_the_negative_log_probability() -> None:
    scores = tensor([[math.log(3.0), 0.0], [0.0, 0.0]])  # probabilities 3/4, 1/4 and 1/2, 1/2
    assert bas.classification(scores, tensor([0, 1])).item() == pytest.approx((-math.log(0.75) - math.log(0.5)) / 2)


def test_foreground_classification_pools_the_mask_and_weighs_every_class_with_it() -> None:
    activation = tensor([[[[4.0, 0.0], [0.0, 0.0]], [[0.0, 8.0], [0.0, 0.0]]]])  # (1, 2, 2, 2)
    masks = torch.zeros(1, 1, 4, 4)
    masks[..., :2, :2] = 1  # pools to 1 at the first place only, so the pooled scores are 4/4 and 0
    expected = -math.log(math.e / (math.e + 1))
    scores = bas.foreground_scores(activation, masks)
    assert scores.tolist() == [[1.0, 0.0]]
    assert bas.classification(scores, tensor([0])).item() == pytest.approx(expected)


def test_classification_leaves_out_classes_that_stand_apart() -> None:
    scores = tensor([[9.0, 0.0, 0.0]])
    excluded = tensor([[True, False, False]])
    assert bas.classification(scores, tensor([1]), excluded=excluded).item() == pytest.approx(math.log(2))


def test_smoothing_gives_nothing_to_classes_that_stand_apart() -> None:
    scores = tensor([[9.0, 2.0, -1.0, 0.5], [0.3, 1.0, 0.0, -2.0]])
    excluded = tensor([[True, False, False, False], [False] * 4])
    alone = bas.classification(scores[:1, 1:], tensor([0]), 0.1)
    free = bas.classification(scores[1:], tensor([1]), 0.1)
    assert bas.classification(scores, tensor([1, 1]), 0.1, excluded).item() == pytest.approx((alone + free).item() / 2)


def test_the_foreground_counts_by_the_probability_of_the_class() -> None:
    foreground = torch.zeros(2, 2, requires_grad=True)  # a loss of ln 2 for each photo
    scores = tensor([[math.log(3.0), 0.0], [0.0, math.log(3.0)]], requires_grad=True)  # probabilities 3/4 and 1/4
    loss = bas.recognized_foreground(foreground, scores, tensor([0, 0]))
    assert loss.item() == pytest.approx(math.log(2) * (0.75 + 0.25) / 2)
    loss.backward()
    assert foreground.grad is not None
    assert foreground.grad[:, 1].tolist() == pytest.approx([0.75 * 0.5 / 2, 0.25 * 0.5 / 2])
    assert scores.grad is None


def test_the_foreground_leaves_out_classes_that_stand_apart() -> None:
    scores, excluded = tensor([[9.0, 0.0, 0.0]]), tensor([[True, False, False]])
    assert bas.recognized_foreground(scores, scores, tensor([1]), excluded).item() == pytest.approx(math.log(2) / 2)


def test_background_suppression_is_the_mean_share_that_is_left() -> None:
    share = bas.background_share(tensor([1.0, 3.0]), tensor([4.0, 4.0]))
    assert share.tolist() == pytest.approx([0.25, 0.75])
    assert bas.background_suppression(share).item() == pytest.approx((0.25 + 0.75) / 2)


def test_background_suppression_holds_the_denominator_and_large_shares_constant() -> None:
    background = tensor([1.0, 5.0], requires_grad=True)
    image = tensor([4.0, 4.0], requires_grad=True)
    bas.background_suppression(bas.background_share(background, image)).backward()
    assert background.grad is not None
    assert background.grad.tolist() == pytest.approx([0.25 / 2, 0.0])
    assert image.grad is None or image.grad.abs().sum() == 0


@pytest.mark.parametrize(("background", "image"), [(-1.0, 2.0), (1.0, -2.0), (-1.0, -2.0), (0.0, 0.0)])
def test_scores_below_zero_count_as_none(background: float, image: float) -> None:
    value = bas.background_suppression(bas.background_share(tensor([background]), tensor([image])))
    assert value.item() == 0


def test_masks_are_shifted_by_quantiles_of_the_logistic_distribution() -> None:
    # Positions 0.5, 0.5 + 0.618 - 1 = 0.118 and 0.736; a logit of zero becomes the position itself.
    masks = bas.shifted_masks(torch.zeros(3, 1, 1, 1))
    assert masks.flatten().tolist() == pytest.approx([0.5, 0.118, 0.736], abs=1e-3)
    assert torch.equal(bas.shifted_masks(torch.zeros(2, 1, 1, 1), first=1, every=2)[0], masks[1])
    many = bas.shifted_masks(torch.zeros(64, 1, 1, 1)).flatten()
    assert many.sort().values.tolist() == pytest.approx([(i + 0.5) / 64 for i in range(64)], abs=0.02)
    # sigmoid(1) = 0.731 at position 0.5; odds 2.718 x 0.134 at position 0.118
    assert bas.shifted_masks(torch.ones(2, 1, 1, 1)).flatten().tolist() == pytest.approx([0.731, 0.267], abs=1e-3)


def test_class_score_pools_the_map_of_each_samples_class() -> None:
    score_map = torch.arange(16.0).reshape(2, 2, 2, 2)  # channel means 1.5, 5.5, 9.5, 13.5
    assert bas.class_score(score_map, tensor([1, 0])).tolist() == [5.5, 9.5]


def test_area_is_the_covered_share() -> None:
    masks = torch.zeros(2, 1, 2, 2)
    masks[0, 0, 0, 0] = 1
    assert bas.area(masks).item() == pytest.approx(1 / 8)


def test_separation_compares_the_covered_share_with_the_area() -> None:
    quarter, half = torch.zeros(2, 1, 4, 4)
    quarter[:, :2, :2], half[:, :2] = 1, 1
    masks = torch.stack([quarter, half])
    most = tensor([[8.0, 1.0], [1.0, -5.0]])  # 0.8 in a quarter; what speaks against the class does not count
    even = torch.ones(2, 2)  # 0.5 in a half
    covers = bas.separation(torch.stack([most, even]), masks)
    assert covers.item() == pytest.approx(-0.55 / 0.1885**0.3 / 2)  # 3 / 16 + 0.001
    without = bas.separation(torch.stack([most, -even]), masks)  # the second has no evidence
    assert without.item() == pytest.approx(covers.item())


def test_separation_draws_a_mask_to_where_the_evidence_is() -> None:
    logits = torch.zeros(1, 1, 1, 4, requires_grad=True)
    bas.separation(tensor([[[6.0, 2.0, 1.0, 1.0]]]), logits.sigmoid()).backward()
    assert logits.grad is not None
    assert logits.grad[0, 0, 0, 0] < 0 and (logits.grad[0, 0, 0, 2:] > 0).all()  # a step goes against the gradient


def test_area_counts_less_where_the_mask_has_lost_the_class():
    # Shares 0.2 and 0.5 are allowed, at 0.75 half counts, at 1 nothing; nor where the class has no score at all.
    background = torch.tensor([2.0, 5.0, 7.5, 10.0, 12.0, 1.0, -3.0])
    image = torch.tensor([10.0, 10.0, 10.0, 10.0, 10.0, 0.0, -1.0])
    pressure = bas.area_pressure(bas.background_share(background, image), 0.5)
    assert pressure.tolist() == pytest.approx([1, 1, 0.5, 0, 0, 0, 0])
    masks = torch.full((7, 1, 2, 2), 0.5)
    assert bas.area(masks, pressure).item() == pytest.approx(0.5 * 2.5 / 7)
    assert bas.area(masks).item() == pytest.approx(0.5)
