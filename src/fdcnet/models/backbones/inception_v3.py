"""InceptionV3 as BAS cuts it: F after Mixed_6e, the tail Mixed_7a to 7c, no stride in Mixed_6a, a padded stem."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fdcnet.models.backbones.base import HALF_RANGE, Backbone, ConvUnit, Cut, Lineage, named, pad_same
from fdcnet.models.kernels.depthwise import depthwise_conv2d

Step = tuple[int, int | tuple[int, int]]  # output channels, kernel
Branch = Sequence[Step | list[Step]]  # a list forks: its steps read the same input, their outputs are concatenated
PoolKind = Literal["average", "max"]

ROW, COLUMN = (1, 7), (7, 1)
SHORT_ROW, SHORT_COLUMN = (1, 3), (3, 1)


class Pool(nn.Module):
    """3x3 pooling that keeps or halves the size, over neighbours `dilation` cells apart."""

    def __init__(self, kind: PoolKind, lineage: Lineage, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.kind, self.stride, self.dilation = kind, stride, dilation
        self.counts_padding = not lineage.tf_pooling

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "max":
            if self.dilation == 1:
                return F.max_pool2d(x, 3, self.stride, padding=1)
            x = pad_same(x, 3, self.stride, self.dilation, value=-torch.inf)
            return F.max_pool2d(x, 3, self.stride, dilation=self.dilation)
        if self.dilation == 1:
            return F.avg_pool2d(x, 3, 1, padding=1, count_include_pad=self.counts_padding)
        total = _window_sum(x, self.dilation)
        return total / (9 if self.counts_padding else _window_sum(x.new_ones(1, 1, *x.shape[-2:]), self.dilation))


def _window_sum(x: Tensor, dilation: int) -> Tensor:
    return depthwise_conv2d(x, x.new_ones(x.shape[1], 1, 3, 3), 1, (dilation,) * 4, dilation)


class Mixed(nn.Module):
    """Parallel branches and a pool, concatenated. A step is named after its branch and place, as in torchvision."""

    def __init__(
        self,
        c_in: int,
        branches: dict[str, Branch],
        pool: PoolKind,
        pool_channels: int,
        lineage: Lineage,
        stride: int = 1,
        dilation: int = 1,
        average: bool = False,
    ) -> None:
        super().__init__()
        self.paths: list[tuple[list[str], list[str]]] = []  # names of a branch's steps in sequence, and of its ends
        self.c_out = 0
        for branch, steps in branches.items():
            names: list[list[str]] = []
            width = c_in
            for place, step in enumerate(steps, 1):
                forks = step if isinstance(step, list) else [step]
                last = place == len(steps)
                stem = branch if len(steps) == 1 else f"{branch}_{place}"
                names.append([stem + letter for letter in "ab"] if len(forks) > 1 else [stem])
                for name, (c_out, kernel) in zip(names[-1], forks, strict=True):
                    # SAME as TensorFlow pads it meets the cells that the stock network's unpadded convolution samples
                    padding: Literal["tf", "half"] = "tf" if dilation > 1 else "half"
                    unit = ConvUnit(
                        width,
                        c_out,
                        kernel,
                        lineage,
                        stride=stride if last else 1,
                        dilation=dilation,
                        padding=padding,
                        average=average and last,
                    )
                    self.add_module(name, unit)
                width = sum(c_out for c_out, _ in forks)
            self.paths.append(([name for group in names[:-1] for name in group], names[-1]))
            self.c_out += width
        # A dilated reduction reads one cell of F in four; the plain pool lets each cell count, so that the mask which
        # erases F is felt everywhere.
        self.pool = Pool(pool, lineage, stride, dilation if stride == 1 else 1)
        self.branch_pool = ConvUnit(c_in, pool_channels, 1, lineage) if pool_channels else nn.Identity()
        self.c_out += pool_channels or c_in

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for sequence, ends in self.paths:
            y = x
            for name in sequence:
                y = getattr(self, name)(y)
            outputs += [getattr(self, name)(y) for name in ends]
        outputs.append(self.branch_pool(self.pool(x)))
        return torch.cat(outputs, 1)


def _mixed_5(pool_channels: int, c_in: int, lineage: Lineage) -> Mixed:
    branches: dict[str, Branch] = {
        "branch1x1": [(64, 1)],
        "branch5x5": [(48, 1), (64, 5)],
        "branch3x3dbl": [(64, 1), (96, 3), (96, 3)],
    }
    return Mixed(c_in, branches, "average", pool_channels, lineage)


def _mixed_6a(lineage: Lineage) -> Mixed:
    branches: dict[str, Branch] = {"branch3x3": [(384, 3)], "branch3x3dbl": [(64, 1), (96, 3), (96, 3)]}
    return Mixed(288, branches, "max", 0, lineage)


def _mixed_6(width: int, lineage: Lineage, dilation: int) -> Mixed:
    branches: dict[str, Branch] = {
        "branch1x1": [(192, 1)],
        "branch7x7": [(width, 1), (width, ROW), (192, COLUMN)],
        "branch7x7dbl": [(width, 1), (width, COLUMN), (width, ROW), (width, COLUMN), (192, ROW)],
    }
    return Mixed(768, branches, "average", 192, lineage, dilation=dilation)


def _mixed_7a(lineage: Lineage, dilation: int, average: bool) -> Mixed:
    branches: dict[str, Branch] = {
        "branch3x3": [(192, 1), (320, 3)],
        "branch7x7x3": [(192, 1), (192, ROW), (192, COLUMN), (192, 3)],
    }
    return Mixed(768, branches, "max", 0, lineage, stride=2, dilation=dilation, average=average)


def _mixed_7(c_in: int, pool: PoolKind, lineage: Lineage, dilation: int) -> Mixed:
    fork: list[Step] = [(384, SHORT_ROW), (384, SHORT_COLUMN)]
    branches: dict[str, Branch] = {
        "branch1x1": [(320, 1)],
        "branch3x3": [(384, 1), fork],
        "branch3x3dbl": [(448, 1), (384, 3), fork],
    }
    return Mixed(c_in, branches, pool, 192, lineage, dilation=dilation)


class InceptionV3(Backbone):
    lineages: ClassVar[tuple[Lineage, ...]] = (
        Lineage("tf", HALF_RANGE, HALF_RANGE, bn_eps=1e-3, tf_pooling=True, unused=(r"fc\.",)),
        # torchvision's `transform_input` turns ImageNet's mean and deviation back into this half range
        Lineage(
            "torchvision",
            HALF_RANGE,
            HALF_RANGE,
            bn_eps=1e-3,
            unused=(r"fc\.", r"AuxLogits\."),
            marker=r"AuxLogits\.|fc\.bias \(1000,\)",
        ),
    )
    shared_channels = 768
    tail_channels = 2048

    @classmethod
    def levels(cls, lineage: Lineage, cut: Cut) -> Sequence[nn.Sequential]:
        dilation = 1 if cut == "bas" else 2
        stem = named(
            Conv2d_1a_3x3=ConvUnit(3, 32, 3, lineage, stride=2),
            Conv2d_2a_3x3=ConvUnit(32, 32, 3, lineage, padding="none"),
            Conv2d_2b_3x3=ConvUnit(32, 64, 3, lineage),
            maxpool1=nn.MaxPool2d(3, 2, padding=1, ceil_mode=True),
            Conv2d_3b_1x1=ConvUnit(64, 80, 1, lineage),
            Conv2d_4a_3x3=ConvUnit(80, 192, 3, lineage, padding="none"),
            maxpool2=nn.MaxPool2d(3, 2, padding=1, ceil_mode=True),
        )
        mixed_5 = named(
            Mixed_5b=_mixed_5(32, 192, lineage),
            Mixed_5c=_mixed_5(64, 256, lineage),
            Mixed_5d=_mixed_5(64, 288, lineage),
        )
        mixed_6 = named(Mixed_6a=_mixed_6a(lineage))
        for letter, width in zip("bcde", (128, 160, 160, 192), strict=True):
            mixed_6.add_module(f"Mixed_6{letter}", _mixed_6(width, lineage, dilation))
        tail = named(
            Mixed_7a=_mixed_7a(lineage, dilation, cut == "averaged"),
            Mixed_7b=_mixed_7(1280, "average", lineage, dilation),
            Mixed_7c=_mixed_7(2048, "max" if lineage.tf_pooling else "average", lineage, dilation),
        )
        return stem, mixed_5, mixed_6, tail
