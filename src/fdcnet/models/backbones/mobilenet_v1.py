"""MobileNetV1 as BAS cuts it: F after block 11, the last two blocks as tail, no stride in block 6."""

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from fdcnet.models.backbones.base import HALF_RANGE, IMAGENET_MEAN, IMAGENET_STD, Backbone, ConvUnit, Cut, Lineage

# Output channels and stride of the depthwise blocks 1..13. Block 6 has stride 2 in the stock network.
BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 1), *[(512, 1)] * 5, (1024, 2), (1024, 1))
CUT = 6
LEVEL_ENDS = (3, 5, 11, 13)

TIMM_STAGES = ((0, 1), (1, 3), (2, 5), (3, 11), (4, 13))  # stage and its last block
TIMM_PARTS = {"conv_dw": "depthwise.conv", "bn1": "depthwise.bn", "conv_pw": "pointwise.conv", "bn2": "pointwise.bn"}


def _timm_names() -> tuple[tuple[str, str], ...]:
    names = [(r"conv_stem\.", "Conv2d_0.conv."), (r"bn1\.", "Conv2d_0.bn.")]
    first = 1
    for stage, last in TIMM_STAGES:
        for block in range(first, last + 1):
            theirs = rf"blocks\.{stage}\.{block - first}\."
            names += [(rf"{theirs}{part}\.", f"Conv2d_{block}_{ours}.") for part, ours in TIMM_PARTS.items()]
        first = last + 1
    return tuple(names)


class MobileNetV1(Backbone):
    lineages: ClassVar[tuple[Lineage, ...]] = (
        Lineage("tf", HALF_RANGE, HALF_RANGE, "relu6", bn_eps=1e-3, tf_same_padding=True),
        Lineage("timm", HALF_RANGE, HALF_RANGE, "relu6", renames=_timm_names(), unused=(r"classifier\.",)),
        # BAS's own start: mobilenet_v1_with_relu_69_5.pth, a plain Sequential with or without the name "model"
        Lineage(
            "bas",
            IMAGENET_MEAN,
            IMAGENET_STD,
            renames=(
                (r"(?:model\.)?0\.0\.", "Conv2d_0.conv."),
                (r"(?:model\.)?0\.1\.", "Conv2d_0.bn."),
                (r"(?:model\.)?(\d+)\.0\.", r"Conv2d_\1_depthwise.conv."),
                (r"(?:model\.)?(\d+)\.1\.", r"Conv2d_\1_depthwise.bn."),
                (r"(?:model\.)?(\d+)\.3\.", r"Conv2d_\1_pointwise.conv."),
                (r"(?:model\.)?(\d+)\.4\.", r"Conv2d_\1_pointwise.bn."),
            ),
            unused=(r"fc\.",),
        ),
    )
    shared_channels = 512
    tail_channels = 1024

    @classmethod
    def levels(cls, lineage: Lineage, cut: Cut) -> Sequence[nn.Sequential]:
        levels = [nn.Sequential() for _ in LEVEL_ENDS]
        levels[0].add_module("Conv2d_0", ConvUnit(3, 32, 3, lineage, stride=2))
        c_in = 32
        for block, (c_out, stride) in enumerate(BLOCKS, 1):
            level = levels[next(i for i, end in enumerate(LEVEL_ENDS) if block <= end)]
            dilation = 2 if cut != "bas" and block > CUT else 1
            average = cut == "averaged" and dilation > 1
            depthwise = ConvUnit(c_in, c_in, 3, lineage, stride=stride, dilation=dilation, groups=c_in, average=average)
            level.add_module(f"Conv2d_{block}_depthwise", depthwise)
            level.add_module(f"Conv2d_{block}_pointwise", ConvUnit(c_in, c_out, 1, lineage))
            c_in = c_out
        return levels
