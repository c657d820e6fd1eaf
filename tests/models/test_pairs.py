"""Two modules in the place of one: unchanged outputs at first, and gradients only where they belong."""

import copy

import pytest
import torch
from torch import nn

from fdcnet.config import ModelConfig
from fdcnet.models.backbones import BACKBONES
from fdcnet.models.boosted import boosted, learning_parts
from fdcnet.models.network import LocalizationNetwork, Outputs, empty_network
from fdcnet.models.pairs import Mixture, SideBySide, is_mixed, mix

SIDE = {"tiny": 32, "resnet50": 64, "inception_v3": 96}


def network_of(backbone: str, **options: object) -> LocalizationNetwork:
    torch.manual_seed(0)
    settings = {"head_width": 8, "localizer_start": "random", "classifier": "linear"} | options
    config = ModelConfig(backbone=backbone, weights="none", **settings)  # type: ignore[arg-type]
    return empty_network(config, BACKBONES[backbone].lineages[0].name, 3).eval()


def images(backbone: str) -> torch.Tensor:
    side = SIDE.get(backbone, 64)
    return torch.randn(2, 3, side, side)


def same(first: Outputs, second: Outputs, num_old: int = 3) -> None:
    torch.testing.assert_close(first.class_map[:, :num_old], second.class_map[:, :num_old], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(first.loc_map[:, :num_old], second.loc_map[:, :num_old], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backbone", BACKBONES)
@torch.no_grad()
def test_a_mixed_network_says_what_it_said(backbone: str) -> None:
    network, photos = network_of(backbone, classifier="cosine"), images(backbone)
    before = network(photos)
    mix(network)
    assert is_mixed(network)
    assert sum(isinstance(module, Mixture) for module in network.modules()) == 4
    same(network(photos), before)
    again = empty_network(
        ModelConfig(backbone=backbone, weights="none", head_width=8, classifier="cosine"),
        network.lineage.name,
        3,
    )
    mix(again)
    again.load_state_dict(network.state_dict())
    same(again.eval()(photos), before)
    same(copy.deepcopy(network)(photos), before)


def test_the_stable_filters_never_learn_but_their_scales_do() -> None:
    mixture = Mixture(nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4)))
    learned = {name for name, value in mixture.named_parameters() if value.requires_grad}
    fixed = {name for name, value in mixture.named_parameters() if not value.requires_grad}
    assert fixed == {"stable.0.parametrizations.weight.original"}
    assert learned == {
        "logit",
        "stable.0.parametrizations.weight.0.scale",
        "stable.1.weight",
        "stable.1.bias",
        "plastic.0.weight",
        "plastic.1.weight",
        "plastic.1.bias",
    }
    assert dict(mixture.named_parameters())["stable.0.parametrizations.weight.0.scale"].shape == (4, 2, 1, 1)


def test_the_share_is_given_in_training_and_learned_in_evaluation() -> None:
    mixture = Mixture(nn.Conv2d(1, 1, 1, bias=False))
    with torch.no_grad():
        mixture.plastic.weight.fill_(3.0)  # type: ignore[union-attr, operator]
        mixture.stable.parametrizations.weight[0].scale.fill_(0.0)  # type: ignore[union-attr, index]
        mixture.logit.fill_(torch.logit(torch.tensor(0.25)))
    output = mixture(torch.ones(1, 1, 1, 1))
    assert output.item() == pytest.approx(0.75 * 3)
    output.backward()
    assert mixture.logit.grad is None
    mixture.eval()(torch.ones(1, 1, 1, 1)).backward()
    assert mixture.logit.grad is not None
    assert mixture.logit.grad.item() == pytest.approx(0.25 * 0.75 * (0 - 3))


def test_side_by_side_reads_all_or_its_own_channels() -> None:
    first, second = nn.Conv2d(2, 1, 1), nn.Conv2d(2, 3, 1)
    x = torch.randn(1, 4, 2, 2)
    expected = torch.cat([first(x[:, :2]), second(x[:, 2:])], dim=1)
    torch.testing.assert_close(SideBySide(first, second, split=2)(x), expected)
    torch.testing.assert_close(
        SideBySide(first, second)(x[:, :2]), torch.cat([first(x[:, :2]), second(x[:, :2])], dim=1)
    )


@pytest.mark.parametrize("backbone", BACKBONES)
@torch.no_grad()
def test_a_boosted_network_says_what_the_old_one_says(backbone: str) -> None:
    old, photos = network_of(backbone).frozen_copy(), images(backbone)
    teacher = boosted(old, 2)
    outputs = teacher(photos)
    assert outputs.class_map.shape[1] == outputs.loc_map.shape[1] == 5
    assert outputs.class_features.shape[1] == 16
    same(outputs, old(photos))
    labels = torch.tensor([0, 4])
    torch.testing.assert_close(
        teacher(photos, labels).loc_map[:, 0], outputs.loc_map[[0, 1], labels], atol=1e-4, rtol=1e-4
    )


def test_only_the_new_half_of_a_boosted_network_learns() -> None:
    teacher = boosted(network_of("tiny").frozen_copy(), 2)
    for part in learning_parts(teacher):
        part.train()
    labels = torch.tensor([0, 4])
    outputs = teacher(images("tiny"), labels)
    background = teacher.background_score(outputs.features, outputs.masks, labels)
    (outputs.scores.sum() + outputs.masks.sum() + background.sum()).backward()
    for name, value in teacher.named_parameters():
        assert value.requires_grad == (".first." not in name), name
        assert (value.grad is not None) == value.requires_grad, name
    modes = {name: module.training for name, module in teacher.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert all(training == (".second." in name) for name, training in modes.items())
