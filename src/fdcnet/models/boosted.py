"""FOSTER's boosted network: the frozen old network and a new one, with a common classifier and localizer."""

import copy

import torch
from torch import Tensor, nn

from fdcnet.models.network import LocalizationNetwork
from fdcnet.models.pairs import SideBySide


def boosted(old: LocalizationNetwork, num_new: int) -> LocalizationNetwork:
    """Join `old` (frozen) with a trainable copy of itself. The outputs for old classes do not change."""
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
    """The modules of the new half, which are trained."""
    halves = (network.backbone, network.classifier.tail, network.classifier.hidden)
    return tuple(half.second for half in halves if isinstance(half, SideBySide))


def _widened(weight: Tensor) -> nn.Parameter:
    """Add zero weights for the new network's features. (K, C, ...) -> (K, 2 C, ...)"""
    return nn.Parameter(torch.cat([weight.detach(), torch.zeros_like(weight)], dim=1))
