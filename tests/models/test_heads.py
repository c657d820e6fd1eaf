import math

import pytest
import torch

from fdcnet.models.heads import CosineScores, LinearScores, LocalizerHead


@pytest.mark.parametrize("kind", [LinearScores, CosineScores])
def test_growing_keeps_the_old_scores(kind: type) -> None:
    scores = kind(8)
    scores.grow(3)
    features = torch.randn(2, 8, 4, 4)
    before = scores(features)
    scores.grow(2)
    after = scores(features)
    assert after.shape == (2, 5, 4, 4)
    torch.testing.assert_close(after[:, :3], before)


@pytest.mark.parametrize("sharing", [0.0, 0.8])
def test_growing_keeps_the_old_maps_and_starts_new_ones_as_a_working_mask(sharing: float) -> None:
    localizer = LocalizerHead(8, sharing)
    localizer.grow(3)
    torch.nn.init.normal_(localizer.weight)
    features = torch.randn(2, 8, 6, 6)
    before = localizer(features)
    localizer.grow(2)
    after = localizer(features)
    torch.testing.assert_close(after[:, :3], before)
    torch.testing.assert_close(after[:, 3:], before.mean(1, keepdim=True).expand(-1, 2, -1, -1))


def test_shared_rows_by_hand() -> None:
    localizer = LocalizerHead(1, sharing=0.75)
    localizer.grow(2)
    with torch.no_grad():
        localizer.weight[:, 0, 1, 1] = torch.tensor([1.0, 5.0])  # mean 3
        localizer.bias[:] = torch.tensor([0.0, 8.0])  # mean 4
    maps = localizer(torch.ones(1, 1, 1, 1)).flatten()
    assert maps.tolist() == [0.25 * 1 + 0.75 * 3 + 3, 0.25 * 5 + 0.75 * 3 + 5]


@pytest.mark.parametrize("start", [True, False])
def test_first_rows_are_zero_or_random(start: bool) -> None:
    localizer = LocalizerHead(4, zero_start=start)
    localizer.grow(2)
    assert bool((localizer.weight == 0).all()) == start


@pytest.mark.parametrize("sharing", [0.0, 0.8])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_one_map_per_sample_equals_the_full_computation(sharing: float, memory_format: torch.memory_format) -> None:
    localizer = LocalizerHead(16, sharing)
    localizer.grow(5)
    torch.nn.init.normal_(localizer.weight)
    torch.nn.init.normal_(localizer.bias)
    features = torch.randn(4, 16, 7, 9).contiguous(memory_format=memory_format).requires_grad_()
    labels = torch.tensor([4, 0, 2, 2])
    own, full = localizer.of_class(features, labels), localizer(features)[torch.arange(4), labels][:, None]
    torch.testing.assert_close(own, full, atol=1e-4, rtol=1e-4)
    weight = torch.randn_like(own)
    for value in (own, full):
        gradients = torch.autograd.grad((value * weight).sum(), [features, localizer.weight, localizer.bias])
        if value is own:
            expected = gradients
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", [LinearScores, CosineScores])
def test_activation_of_own_class_equals_the_full_activation(kind: type) -> None:
    scores = kind(16)
    scores.grow(5)
    features, labels = torch.randn(3, 16, 4, 5), torch.tensor([1, 4, 0])
    full = scores.activation(features)[torch.arange(3), labels]
    torch.testing.assert_close(scores.activation_of(features, labels), full, atol=1e-5, rtol=1e-5)


def test_cosine_scores_by_hand() -> None:
    scores = CosineScores(2)
    scores.grow(2)
    scores.weight.data = torch.tensor([[2.0, 0.0], [0.0, 5.0]])
    scores.scale.data.fill_(10.0)
    features = torch.tensor([3.0, 4.0]).reshape(1, 2, 1, 1)  # unit vector (0.6, 0.8)
    assert scores(features).flatten().tolist() == pytest.approx([6.0, 8.0])
    assert scores.activation(features).flatten().tolist() == pytest.approx([3.0, 4.0])


def test_cosine_scores_ignore_magnitude_and_its_activation_does_not() -> None:
    scores = CosineScores(8)
    scores.grow(3)
    features = torch.randn(1, 8, 2, 2)
    torch.testing.assert_close(scores(features), scores(0.1 * features))
    torch.testing.assert_close(scores.activation(0.1 * features), 0.1 * scores.activation(features))


def test_linear_rows_start_within_the_xavier_bound() -> None:
    scores = LinearScores(100)
    scores.grow(20)
    assert scores.weight.abs().max() <= math.sqrt(6 / 120)
    assert scores.bias.abs().max() == 0


def test_fixed_classes_keep_their_direction() -> None:
    head = CosineScores(4)
    head.grow(3)
    head.num_fixed = 2
    features = torch.randn(2, 4, 3, 3)
    before = head(features)
    head.num_fixed = 0
    assert torch.equal(head(features), before)
    head.num_fixed = 2
    (head(features).square().sum() + head.activation(features).square().sum()).backward()
    assert head.weight.grad is not None
    assert torch.equal(head.weight.grad[:2], torch.zeros(2, 4))
    assert head.weight.grad[2].abs().sum() > 0


def test_later_rows_can_be_random() -> None:
    localizer = LocalizerHead(4, zero_start=True, random_later=True)
    localizer.grow(2)
    assert bool((localizer.weight == 0).all())
    localizer.grow(3)
    assert localizer.weight[:2].abs().sum() == 0
    assert bool((localizer.weight[2:].flatten(1).std(1) > 0).all())


def test_normalized_activation_is_the_score() -> None:
    """Equations 2 to 4 as printed: twice the features, the same activation."""
    scores = CosineScores(4, scale=3.0, normalized_activation=True)
    scores.grow(2)
    features, labels = torch.randn(2, 4, 3, 3), torch.tensor([1, 0])
    torch.testing.assert_close(scores.activation(features), scores(features))
    own = scores(features)[torch.arange(2), labels]
    torch.testing.assert_close(scores.activation_of(features, labels), own)
    torch.testing.assert_close(scores.activation_of(2 * features, labels), own)
