"""ResNet50 as BAS cuts it: F after layer3, no stride in layer3 and layer4, a 2x2 max-pool between them."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from fdcnet.models.backbones.base import IMAGENET_MEAN, IMAGENET_STD, Backbone, Cut, Lineage, named


class Bottleneck(nn.Module):
    def __init__(self, c_in: int, width: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        c_out = 4 * width
        self.conv1 = nn.Conv2d(c_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=dilation, dilation=dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, c_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(c_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if c_in != c_out:
            self.downsample = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def _layer(c_in: int, width: int, blocks: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """The first block has the stride, if any. It samples the undilated grid in both cases."""
    first = Bottleneck(c_in, width, stride)
    return nn.Sequential(first, *(Bottleneck(4 * width, width, dilation=dilation) for _ in range(blocks - 1)))


class ResNet50(Backbone):
    lineages: ClassVar[tuple[Lineage, ...]] = (Lineage("torchvision", IMAGENET_MEAN, IMAGENET_STD, unused=(r"fc\.",)),)
    shared_channels = 1024
    tail_channels = 2048

    @classmethod
    def levels(cls, lineage: Lineage, cut: Cut) -> Sequence[nn.Sequential]:
        dilation = 1 if cut == "bas" else 2
        stem = named(
            conv1=nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
            bn1=nn.BatchNorm2d(64),
            relu=nn.ReLU(inplace=True),
            maxpool=nn.MaxPool2d(3, 2, padding=1),
            layer1=_layer(64, 64, 3),
        )
        # The pool brings F back to the grid that the stock layer4 reads, and lets each cell of F, hence of the mask
        # that erases it, count; plain subsampling would be closer to the stock network but skip three in four.
        tail = named(pool=nn.MaxPool2d(2), layer4=_layer(1024, 512, 3, dilation=dilation))
        return (
            stem,
            named(layer2=_layer(256, 128, 4, stride=2)),
            named(layer3=_layer(512, 256, 6, dilation=dilation)),
            tail,
        )
