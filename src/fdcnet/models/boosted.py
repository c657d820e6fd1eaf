"""FOSTER's boosted network: the frozen old one and a new one side by side, under one classifier and one localizer."""

import copy

import torch
from torch import Tensor, nn

from fdcnet.models.network import LocalizationNetwork
from fdcnet.models.pairs import SideBySide


def boosted(old: LocalizationNetwork, num_new: int) -> LocalizationNetwork:
    """Joins `old` (frozen) with a copy of itself that may learn; for the old classes it says what `old` says."""
    shared, tail, _ = old.widths
    network, new = copy.deepcopy(old), copy.deepcopy(old).requires_grad_(True)
    network.backbone = SideBySide(network.backbone, new.backbone)
    network.classifier.tail = SideBySide(network.classifier.tail, new.classifier.tail, shared)
    network.classifier.hidden = SideBySide(network.classifier.hidden, new.classifier.hidden, tail)
    for head in (network.classifier.output, network.localizer):
        head.requires_grad_(True)
        head.weight = _widened(head.weight)
    network.grow(num_new)
    return network


def learning_parts(network: LocalizationNetwork) -> tuple[nn.Module, ...]:
    """The new half, to be set to train mode; the old half stays as it is."""
    halves = (network.backbone, network.classifier.tail, network.classifier.hidden)
    return tuple(half.second for half in halves if isinstance(half, SideBySide))


def _widened(weight: Tensor) -> nn.Parameter:
    """The new network's features count for nothing at first. (K, C, ...) -> (K, 2 C, ...)"""
    return nn.Parameter(torch.cat([weight.detach(), torch.zeros_like(weight)], dim=1))
