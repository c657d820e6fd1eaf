import pytest
import torch

from fdcnet.config import ModelConfig
from fdcnet.methods.baseline import average_with
from fdcnet.models.drift import DriftSettings, add_drift, scaled_compensation
from fdcnet.models.network import LocalizationNetwork, empty_network, new_network


def make(**settings: object) -> LocalizationNetwork:
    settings = {"backbone": "tiny", "weights": "none", "head_width": 16, "classifier": "linear"} | settings
    network = new_network(ModelConfig(**settings), seed=0)  # type: ignore[arg-type]
    network.grow(4)
    return network


def test_the_background_score_is_that_of_the_erased_features() -> None:
    network = make().eval()
    images, labels = torch.randn(2, 3, 96, 96), torch.tensor([1, 3])
    outputs = network(images, labels)
    nothing_erased = network.background_score(outputs.features, torch.zeros_like(outputs.masks), labels)
    torch.testing.assert_close(nothing_erased, outputs.scores[torch.arange(2), labels], atol=1e-5, rtol=1e-5)
    half = torch.full_like(outputs.masks, 0.5)
    expected = network.classifier.score_of(outputs.features * 0.5, labels)
    torch.testing.assert_close(network.background_score(outputs.features, half, labels), expected)


def test_the_background_score_moves_the_mask_alone() -> None:
    network = make(backbone="mobilenet_v1").train()
    outputs = network(torch.randn(2, 3, 64, 64))
    masks = torch.rand(2, 1, 8, 8, requires_grad=True)
    features = outputs.features.detach().requires_grad_()
    statistics = {name: value.clone() for name, value in network.named_buffers()}
    network.background_score(features, masks, torch.tensor([0, 2])).sum().backward()
    assert masks.grad is not None
    assert masks.grad.abs().sum() > 0
    assert features.grad is None
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(torch.equal(value, statistics[name]) for name, value in network.named_buffers())


def test_erased_features_are_normalised_as_in_use_unless_asked_otherwise() -> None:
    network = make(backbone="mobilenet_v1").train()
    network.classifier.tail.eval()
    network.classifier.tail[0].train()
    modes = [module.training for module in network.modules()]
    features = network(torch.randn(4, 3, 64, 64)).features
    masks, labels = torch.full((4, 1, 8, 8), 0.5), torch.zeros(4, dtype=torch.int64)
    running = network.background_score(features, masks, labels)
    own = network.background_score(features, masks, labels, own_statistics=True)
    assert [module.training for module in network.modules()] == modes
    network.eval()
    in_use = network.classifier.score_of(features * 0.5, labels)
    torch.testing.assert_close(running, in_use)
    assert not torch.allclose(own, in_use)


@pytest.mark.parametrize("classifier", ["linear", "cosine"])
def test_growing_keeps_the_outputs_for_old_classes(classifier: str) -> None:
    network = make(classifier=classifier).eval()
    images = torch.randn(2, 3, 96, 96)
    before = network(images)
    network.grow(3)
    after = network(images)
    assert torch.equal(before.class_map, after.class_map[:, :4])
    torch.testing.assert_close(before.loc_map, after.loc_map[:, :4])
    assert after.scores.shape == (2, 7)


def test_score_relu_leaves_no_negative_score() -> None:
    images = torch.randn(2, 3, 96, 96)
    assert make(score_relu=False).eval()(images).class_map.min() < 0
    assert make(score_relu=True).eval()(images).class_map.min() == 0


def test_drawn_to_an_earlier_network_by_hand() -> None:
    network = make()
    earlier = network.frozen_copy()
    network.grow(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(1.0)
        for parameter in earlier.parameters():
            parameter.fill_(5.0)
    average_with(network, earlier, 0.25)
    assert network.localizer.bias.tolist() == [2.0, 2.0, 2.0, 2.0, 1.0]  # 1 + (5 - 1) / 4; the new class as it was
    assert next(network.backbone.parameters()).unique().tolist() == [2.0]


def test_a_frozen_copy_does_not_follow() -> None:
    network = make().eval()
    copy = network.frozen_copy()
    images = torch.randn(1, 3, 96, 96)
    before = copy(images).scores
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1.0)
    assert torch.equal(copy(images).scores, before)
    assert not any(parameter.requires_grad for parameter in copy.parameters())


def test_the_same_seed_gives_the_same_network_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    config = ModelConfig(backbone="tiny", weights="none", head_width=16)
    first, second, other = (new_network(config, seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    pairs = list(zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_an_empty_network_takes_the_state_of_a_grown_one() -> None:
    network = make(sharing=0.5)
    config = ModelConfig(backbone="tiny", weights="none", head_width=16, classifier="linear", sharing=0.5)
    twin = empty_network(config, network.lineage.name, 4)
    twin.load_state_dict(network.state_dict())
    images = torch.randn(1, 3, 96, 96)
    assert torch.equal(network.eval()(images).scores, twin.eval()(images).scores)


@pytest.mark.parametrize("place", ["inside", "after"])
def test_compensation_is_added_to_old_classes_alone(place: str) -> None:
    network = make().eval()
    add_drift(network, 3, DriftSettings(zero_start=False, place=place, loc_scale=0.5))  # type: ignore[arg-type]
    assert network.drift is not None
    plain = network(torch.randn(2, 3, 96, 96))
    class_change = network.drift.class_drift(plain.tail_features)
    loc_change = network.drift.loc_drift(plain.features)
    better = scaled_compensation(network, plain)
    torch.testing.assert_close(better.class_map[:, :3], plain.class_map[:, :3] + class_change)
    assert torch.equal(better.class_map[:, 3:], plain.class_map[:, 3:])
    assert torch.equal(better.masks[:, 3:], plain.masks[:, 3:])
    if place == "inside":
        expected = (plain.loc_map[:, :3] + 0.5 * loc_change).sigmoid()
    else:
        expected = plain.loc_map[:, :3].sigmoid() + 0.5 * loc_change
    torch.testing.assert_close(better.masks[:, :3], expected)


def test_compensation_starts_as_nothing_and_each_half_can_be_left_out() -> None:
    network = make().eval()
    images = torch.randn(2, 3, 96, 96)
    plain = network(images)
    add_drift(network, 4, DriftSettings())
    same = scaled_compensation(network, network(images))
    assert torch.equal(same.class_map, plain.class_map)
    assert torch.equal(same.loc_map, plain.loc_map)
    add_drift(network, 4, DriftSettings(zero_start=False, classes=False))
    maps_only = scaled_compensation(network, network(images))
    assert torch.equal(maps_only.class_map, plain.class_map)
    assert not torch.allclose(maps_only.loc_map, plain.loc_map)
