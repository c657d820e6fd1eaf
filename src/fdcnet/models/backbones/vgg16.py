"""VGG16 as BAS cuts it: F is relu4_3, the tail pool4 and the fifth group. No stride changes, so nothing is dilated."""

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from fdcnet.models.backbones.base import IMAGENET_MEAN, IMAGENET_STD, Backbone, Cut, Lineage

GROUPS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16(Backbone):
    lineages: ClassVar[tuple[Lineage, ...]] = (
        Lineage(
            "torchvision",
            IMAGENET_MEAN,
            IMAGENET_STD,
            renames=((r"features\.(\d+)\.", r"\1."),),
            unused=(r"classifier\.",),
        ),
    )
    shared_channels = 512
    tail_channels = 512

    @classmethod
    def levels(cls, lineage: Lineage, cut: Cut) -> Sequence[nn.Sequential]:
        del cut
        groups: list[nn.Sequential] = []
        c_in, place = 3, 0  # children are numbered as in torchvision's `features`
        for widths in GROUPS:
            group = nn.Sequential()
            if groups:
                group.add_module(str(place), nn.MaxPool2d(2))
                place += 1
            for c_out in widths:
                group.add_module(str(place), nn.Conv2d(c_in, c_out, 3, padding=1))
                group.add_module(str(place + 1), nn.ReLU(inplace=True))
                c_in, place = c_out, place + 2
            groups.append(group)
        first = nn.Sequential()
        for name, module in (*groups[0].named_children(), *groups[1].named_children()):
            first.add_module(name, module)
        return first, *groups[2:]
