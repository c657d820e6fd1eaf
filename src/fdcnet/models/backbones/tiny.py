"""A plain network that learns from scratch on a CPU in minutes: for demonstrations and tests, at about 64 px."""

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from fdcnet.models.backbones.base import HALF_RANGE, Backbone, ConvUnit, Cut, Lineage


class Tiny(Backbone):
    """Whole convolutions: a depthwise network of this size gets stuck without pretrained weights.

    Without pretrained features, background suppression finds other ways to a low loss than masks on the objects. Two
    choices close them:
    the last shared layer starts below zero, so that plain background gives no signal and identifies no class;
    the tail has neither batch norm, which would make up for what a mask erases, nor biases.
    """

    lineages: ClassVar[tuple[Lineage, ...]] = (Lineage("scratch", HALF_RANGE, HALF_RANGE),)
    shared_channels = 48
    tail_channels = 64
    shared_stride = 4
    tail_stride = 8

    @classmethod
    def levels(cls, lineage: Lineage, cut: Cut) -> Sequence[nn.Sequential]:
        del cut  # no stride is taken out
        last = ConvUnit(48, 48, 3, lineage)
        nn.init.constant_(last.bn.bias, -1.0)
        return (
            nn.Sequential(ConvUnit(3, 24, 3, lineage, stride=2)),
            nn.Sequential(ConvUnit(24, 48, 3, lineage, stride=2)),
            nn.Sequential(ConvUnit(48, 48, 3, lineage), last),
            nn.Sequential(
                nn.Conv2d(48, 64, 3, stride=2, padding=1, bias=False),
                nn.ReLU(),
                nn.Conv2d(64, 64, 3, padding=1, bias=False),
                nn.ReLU(),
            ),
        )
