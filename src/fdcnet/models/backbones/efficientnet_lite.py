"""EfficientNet-Lite0, cut in the manner of BAS: F at stride 8, G at stride 16."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from fdcnet.models.backbones.base import Backbone, ConvUnit, Cut, Lineage

# Kernel, stride, output channels of blocks 0..15. Block 5 has stride 2 in the stock network.
BLOCKS = (
    (3, 1, 16),
    (3, 2, 24),
    (3, 1, 24),
    (5, 2, 40),
    (5, 1, 40),
    *[(3, 1, 80)] * 3,
    *[(5, 1, 112)] * 3,
    (5, 2, 192),
    *[(5, 1, 192)] * 3,
    (3, 1, 320),
)
CUT = 5
LEVEL_ENDS = (2, 4, 10, 15)
SPLIT = 11  # the block whose expansion ends `shared`
EXPANSION = 6


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project without activation; added to the input where the shapes agree."""

    def __init__(
        self,
        c_in: int,
        hidden: int,
        c_out: int,
        kernel: int,
        lineage: Lineage,
        stride: int,
        dilation: int,
        average: bool,
    ) -> None:
        super().__init__()
        self.expand = ConvUnit(c_in, hidden, 1, lineage) if hidden != c_in else nn.Identity()
        self.depthwise = ConvUnit(
            hidden, hidden, kernel, lineage, stride=stride, dilation=dilation, groups=hidden, average=average
        )
        self.project = ConvUnit(hidden, c_out, 1, lineage, activate=False)
        self.adds_input = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.adds_input else y


class EfficientNetLite0(Backbone):
    """F is taken behind the expansion of block 11: 672 channels after ReLU6, where zero means absence.

    The block's input has 112 channels without activation, for which multiplying by zero would not erase.
    """

    lineages: ClassVar[tuple[Lineage, ...]] = (
        Lineage(
            "tf",
            (127.0, 127.0, 127.0),
            (128.0, 128.0, 128.0),
            "relu6",
            bn_eps=1e-3,
            tf_same_padding=True,
            renames=(
                (r"_conv_stem\.", "stem.conv."),
                (r"_bn0\.", "stem.bn."),
                (r"_conv_head\.", "head.conv."),
                (r"_bn1\.", "head.bn."),
                (rf"_blocks\.{SPLIT}\._expand_conv\.", f"block{SPLIT}_expand.conv."),
                (rf"_blocks\.{SPLIT}\._bn0\.", f"block{SPLIT}_expand.bn."),
                (r"_blocks\.(\d+)\._expand_conv\.", r"block\1.expand.conv."),
                (r"_blocks\.(\d+)\._bn0\.", r"block\1.expand.bn."),
                (r"_blocks\.(\d+)\._depthwise_conv\.", r"block\1.depthwise.conv."),
                (r"_blocks\.(\d+)\._bn1\.", r"block\1.depthwise.bn."),
                (r"_blocks\.(\d+)\._project_conv\.", r"block\1.project.conv."),
                (r"_blocks\.(\d+)\._bn2\.", r"block\1.project.bn."),
            ),
            unused=(r"_fc\.",),
        ),
    )
    shared_channels = 672
    tail_channels = 1280

    @classmethod
    def levels(cls, lineage: Lineage, cut: Cut) -> Sequence[nn.Sequential]:
        levels = [nn.Sequential() for _ in LEVEL_ENDS]
        levels[0].add_module("stem", ConvUnit(3, 32, 3, lineage, stride=2))
        c_in = 32
        for block, (kernel, stride, c_out) in enumerate(BLOCKS):
            level = next(i for i, end in enumerate(LEVEL_ENDS) if block <= end)
            hidden = EXPANSION * c_in if block else c_in
            if block == SPLIT:
                levels[level - 1].add_module(f"block{block}_expand", ConvUnit(c_in, hidden, 1, lineage))
                c_in = hidden
            dilation = 2 if cut != "bas" and block > CUT else 1
            unit = InvertedResidual(
                c_in, hidden, c_out, kernel, lineage, stride, dilation, cut == "averaged" and dilation > 1
            )
            levels[level].add_module(f"block{block}", unit)
            c_in = c_out
        levels[3].add_module("head", ConvUnit(c_in, cls.tail_channels, 1, lineage))
        return levels
