"""What all backbones share: four levels, the lineage of their weights, and the unit they are made of."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fdcnet.models.kernels.depthwise import Padding, depthwise_conv2d
from fdcnet.models.kernels.norm import LINEAR, RELU, RELU6, norm_clamp

Channels = tuple[float, float, float]
Cut = Literal["bas", "dilated", "averaged"]  # see ModelConfig

IMAGENET_MEAN: Channels = (0.485 * 255, 0.456 * 255, 0.406 * 255)
IMAGENET_STD: Channels = (0.229 * 255, 0.224 * 255, 0.225 * 255)
HALF_RANGE: Channels = (127.5, 127.5, 127.5)


@dataclass(frozen=True)
class Lineage:
    """A source of weights: how the network must compute, and how the file names its tensors."""

    name: str
    mean: Channels  # of pixel values 0..255
    std: Channels
    activation: Literal["relu", "relu6"] = "relu"
    bn_eps: float = 1e-5
    tf_same_padding: bool = False
    """A strided convolution pads as TensorFlow's SAME does: on an even side one more at the right and bottom."""
    tf_pooling: bool = False
    """InceptionV3: averages leave the padding out, and the last pool branch takes the maximum."""
    renames: tuple[tuple[str, str], ...] = ()
    """Patterns from a name in the file to ours; the first that matches the start of a name is applied."""
    unused: tuple[str, ...] = ()
    """Patterns of tensors in the file that a backbone has no place for, such as the ImageNet classifier."""
    marker: str = ""
    """Pattern of a tensor, written `name (shape)`, that tells this lineage from one with the same names."""


class Backbone(nn.Module):
    """An ImageNet network cut for localization: `shared` maps images to F, `tail` maps F to G.

    The sides of an image must be multiples of `tail_stride`. Without the prefix of its level, each tensor is named as
    in `Lineage.renames`.
    """

    lineages: ClassVar[tuple[Lineage, ...]]  # the first is the default
    shared_channels: int
    tail_channels: int
    shared_stride: int = 8
    tail_stride: int = 16

    def __init__(self, lineage: Lineage, cut: Cut = "averaged") -> None:
        super().__init__()
        self.lineage = lineage
        level1, level2, level3, tail = self.levels(lineage, cut)
        self.shared = named(level1=level1, level2=level2, level3=level3)
        self.tail = tail
        for module in self.modules():
            # On the meta device there is nothing to fill, and normal_ imports PyTorch's compiler, which takes seconds.
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    @classmethod
    def levels(cls, lineage: Lineage, cut: Cut) -> Sequence[nn.Sequential]:
        """The four levels. `cut`: what happens after a stride that was removed."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.shared(images)
        return features, self.tail(features)


class ConvUnit(nn.Module):
    """Convolution without bias, batch norm, activation."""

    def __init__(
        self,
        c_in: int,
        c_out: int,
        kernel: int | tuple[int, int],
        lineage: Lineage,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        padding: Literal["half", "none", "tf"] | None = None,
        average: bool = False,
        activate: bool = True,
    ) -> None:
        """`average`: instead of skipping cells, a stride takes the mean of those it would skip."""
        super().__init__()
        self.average = stride if average else 1
        stride = 1 if average else stride
        kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
        if padding is None:
            padding = "tf" if lineage.tf_same_padding else "half"
        self.pads_itself = padding == "tf" and stride > 1  # at stride 1 SAME is symmetric: the convolution can do it
        half = 0 if self.pads_itself or padding == "none" else dilation
        rows, columns = half * (kernel[0] // 2), half * (kernel[1] // 2)
        self.padding: Padding = (rows, rows, columns, columns)
        self.depthwise = 1 < groups == c_in == c_out
        self.conv = nn.Conv2d(
            c_in,
            c_out,
            kernel,
            stride,
            padding=(rows, columns),
            dilation=dilation,
            groups=groups,
            bias=False,
        )
        self.bn = nn.BatchNorm2d(c_out, eps=lineage.bn_eps)
        self.bounds = (RELU6 if lineage.activation == "relu6" else RELU) if activate else LINEAR

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolve(x)
        return norm_clamp(F.avg_pool2d(y, self.average) if self.average > 1 else y, self.bn, self.bounds)

    def convolve(self, x: Tensor) -> Tensor:
        kernel, stride, dilation = self.conv.kernel_size[0], self.conv.stride[0], self.conv.dilation[0]
        if self.depthwise:
            padding = same_padding(x, kernel, stride, dilation) if self.pads_itself else self.padding
            return depthwise_conv2d(x, self.conv.weight, stride, padding, dilation)
        return self.conv(pad_same(x, kernel, stride, dilation) if self.pads_itself else x)


def named(**modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(modules))


def pad_same(x: Tensor, kernel: int, stride: int, dilation: int, value: float = 0.0) -> Tensor:
    """TensorFlow's SAME. With dilation 2 it meets the cells that the stock network samples (see tests)."""
    top, bottom, left, right = same_padding(x, kernel, stride, dilation)
    return F.pad(x, (left, right, top, bottom), value=value)


def same_padding(x: Tensor, kernel: int, stride: int, dilation: int) -> Padding:
    before_after = []
    for side in x.shape[-2:]:
        total = max((math.ceil(side / stride) - 1) * stride + (kernel - 1) * dilation + 1 - side, 0)
        before_after += [total // 2, total - total // 2]
    top, bottom, left, right = before_after
    return top, bottom, left, right
