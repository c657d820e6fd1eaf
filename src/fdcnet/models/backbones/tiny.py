"""A plain network that learns from scratch on a CPU in minutes: for demonstrations and tests, at about 96 px."""

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from fdcnet.models.backbones.base import HALF_RANGE, Backbone, ConvUnit, Cut, Lineage


class Tiny(Backbone):
    """Whole convolutions: a depthwise network of this size gets stuck without pretrained weights."""

    lineages: ClassVar[tuple[Lineage, ...]] = (Lineage("scratch", HALF_RANGE, HALF_RANGE),)
    shared_channels = 64
    tail_channels = 128
    shared_stride = 4
    tail_stride = 8

    @classmethod
    def levels(cls, lineage: Lineage, cut: Cut) -> Sequence[nn.Sequential]:
        del cut  # no stride is taken out
        return (
            nn.Sequential(ConvUnit(3, 32, 3, lineage, stride=2)),
            nn.Sequential(ConvUnit(32, 64, 3, lineage, stride=2)),
            nn.Sequential(ConvUnit(64, 64, 3, lineage), ConvUnit(64, 64, 3, lineage)),
            nn.Sequential(ConvUnit(64, 128, 3, lineage, stride=2), ConvUnit(128, 128, 3, lineage)),
        )
