"""Shapes, padding and the cut: what dilation promises is checked against the network with its stock strides."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fdcnet.errors import UserError
from fdcnet.models.backbones import BACKBONES, build_backbone
from fdcnet.models.backbones.base import Backbone, ConvUnit, Cut, Lineage, pad_same
from fdcnet.models.backbones.inception_v3 import Pool
from fdcnet.models.kernels.norm import RELU, RELU6

# Channels of F and G, and learned parameters: the published count of each network less its classifier (and aux head).
FACTS = {
    "mobilenet_v1": (512, 1024, 4_231_976 - 1_025_000),
    "inception_v3": (768, 2048, 27_161_264 - 2_049_000 - 3_326_696),
    "efficientnet_lite0": (672, 1280, 4_652_008 - 1_281_000),
    "resnet50": (1024, 2048, 25_557_032 - 2_049_000),
    "vgg16": (512, 512, 138_357_544 - 123_642_856),
}


@pytest.mark.parametrize("cut", ["bas", "dilated", "averaged"])
@pytest.mark.parametrize("name", FACTS)
@torch.no_grad()
def test_shapes_at_224(name: str, cut: Cut) -> None:
    shared, tail, parameters = FACTS[name]
    backbone = build_backbone(name, cut=cut).eval()
    features, tail_features = backbone(torch.randn(1, 3, 224, 224))
    assert features.shape == (1, shared, 28, 28)
    assert tail_features.shape == (1, tail, 14, 14)
    assert (backbone.shared_channels, backbone.tail_channels) == (shared, tail)
    assert (backbone.shared_stride, backbone.tail_stride) == (8, 16)
    assert sum(p.numel() for p in backbone.parameters()) == parameters


@torch.no_grad()
def test_shapes_of_tiny() -> None:
    backbone = build_backbone("tiny").eval()
    features, tail_features = backbone(torch.randn(2, 3, 96, 96))
    assert features.shape == (2, backbone.shared_channels, 24, 24)
    assert tail_features.shape == (2, backbone.tail_channels, 12, 12)
    assert (backbone.shared_stride, backbone.tail_stride) == (4, 8)


@pytest.mark.parametrize("name", BACKBONES)
@torch.no_grad()
def test_levels(name: str) -> None:
    backbone = build_backbone(name).eval()
    assert [child for child, _ in backbone.named_children()] == ["shared", "tail"]
    assert [child for child, _ in backbone.shared.named_children()] == ["level1", "level2", "level3"]
    sides, x = [], torch.randn(1, 3, 64, 64)
    for level in (*backbone.shared, backbone.tail):
        x = level(x)
        sides.append(x.shape[-1])
    expected = {"inception_v3": [8, 8, 8, 4], "vgg16": [32, 16, 8, 4], "tiny": [32, 16, 16, 8]}
    assert sides == expected.get(name, [16, 8, 8, 4])


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UserError, match="Did you mean 'resnet50'"):
        build_backbone("resnet-50")
    with pytest.raises(UserError, match="tf, timm, bas"):
        build_backbone("mobilenet_v1", "caffe")


def test_lineage_decides_the_graph() -> None:
    tf, bas = build_backbone("mobilenet_v1", "tf"), build_backbone("mobilenet_v1", "bas")
    assert tf.lineage.mean == tf.lineage.std == (127.5, 127.5, 127.5)
    assert bas.lineage.mean == pytest.approx((123.675, 116.28, 103.53))
    assert {m.bounds for m in tf.modules() if isinstance(m, ConvUnit)} == {RELU6}
    assert {m.bounds for m in bas.modules() if isinstance(m, ConvUnit)} == {RELU}
    assert {m.eps for m in tf.modules() if isinstance(m, nn.BatchNorm2d)} == {1e-3}
    assert {m.eps for m in bas.modules() if isinstance(m, nn.BatchNorm2d)} == {1e-5}


def test_tensorflow_padding_by_hand() -> None:
    row = torch.tensor([1.0, 2.0, 3.0, 4.0]).repeat(4, 1)[None, None]  # (1, 1, 4, 4)
    assert pad_same(row, 3, 2, 1)[0, 0, 0].tolist() == [1, 2, 3, 4, 0]
    assert pad_same(row, 5, 2, 1)[0, 0, 1].tolist() == [0, 1, 2, 3, 4, 0, 0]
    assert pad_same(row, 3, 2, 2)[0, 0, 1].tolist() == [0, 1, 2, 3, 4, 0, 0]
    assert pad_same(row[..., :3], 3, 2, 1)[0, 0, 0].tolist() == [0, 1, 2, 3, 0]
    for same, first in ((True, 1 + 2 + 3), (False, 0 + 1 + 2)):
        unit = ConvUnit(1, 1, 3, Lineage("x", (0, 0, 0), (1, 1, 1), tf_same_padding=same), stride=2)
        nn.init.zeros_(unit.conv.weight)
        unit.conv.weight.data[0, 0, 1] = 1.0  # sums three neighbours of one row
        assert unit.eval()(row)[0, 0, 0, 0].item() == pytest.approx(first, rel=1e-4)


def test_average_pool_leaves_padding_out_only_in_the_tensorflow_lineage() -> None:
    ones = torch.ones(1, 2, 4, 4)
    for dilation in (1, 2):
        counting = Pool("average", Lineage("x", (0, 0, 0), (1, 1, 1)), dilation=dilation)(ones)
        leaving_out = Pool("average", Lineage("x", (0, 0, 0), (1, 1, 1), tf_pooling=True), dilation=dilation)(ones)
        assert counting[0, 0, 0, 0].item() == pytest.approx(4 / 9)
        torch.testing.assert_close(leaving_out, ones)


def _restride(unit: ConvUnit, lineage: Lineage, padding: Literal["tf"] | None = None) -> ConvUnit:
    conv = unit.conv
    size = (conv.kernel_size[0], conv.kernel_size[1])
    new = ConvUnit(conv.in_channels, conv.out_channels, size, lineage, stride=2, groups=conv.groups, padding=padding)
    new.load_state_dict(unit.state_dict())
    return new.eval()


def _stock_mobilenet(backbone: Backbone) -> None:
    level = backbone.shared.level3
    level.Conv2d_6_depthwise = _restride(level.Conv2d_6_depthwise, backbone.lineage)


def _stock_lite(backbone: Backbone) -> None:
    block = backbone.shared.level3.block5
    block.depthwise = _restride(block.depthwise, backbone.lineage)


def _stock_resnet(backbone: Backbone) -> None:
    backbone.tail.pool = nn.Identity()
    for layer in (backbone.shared.level3.layer3, backbone.tail.layer4):
        layer[0].conv2.stride = layer[0].downsample[0].stride = (2, 2)


def _stock_inception(backbone: Backbone) -> None:
    """The stock reductions do not pad at all; one cell at the right and bottom keeps the grids equally large."""
    for mixed, names in (
        (backbone.shared.level3.Mixed_6a, ("branch3x3", "branch3x3dbl_3")),
        (backbone.tail.Mixed_7a, ("branch3x3_2", "branch7x7x3_4")),
    ):
        for name in names:
            setattr(mixed, name, _restride(getattr(mixed, name), backbone.lineage, "tf"))
        mixed.pool = nn.Sequential(nn.ConstantPad2d((0, 1, 0, 1), -torch.inf), nn.MaxPool2d(3, 2))


STOCK: dict[str, Callable[[Backbone], None]] = {
    "mobilenet_v1": _stock_mobilenet,
    "efficientnet_lite0": _stock_lite,
    "inception_v3": _stock_inception,
    "resnet50": _stock_resnet,
}


def _twins(name: str, lineage: str) -> tuple[Backbone, Backbone, Backbone]:
    """Dilated, cut without dilation, and with stock strides; all with the same weights."""
    torch.manual_seed(0)
    dilated = build_backbone(name, lineage, cut="dilated").eval()
    for module in dilated.modules():
        if isinstance(module, nn.BatchNorm2d):  # a bias shows zero padding that is put in the wrong place
            nn.init.normal_(module.bias, std=0.3)
    plain, stock = (build_backbone(name, lineage, cut="bas").eval() for _ in range(2))
    for other in (plain, stock):
        other.load_state_dict(dilated.state_dict())
    if name == "resnet50":
        for other in (dilated, plain):
            other.tail.pool = nn.MaxPool2d(1, 2)  # the 2x2 maximum also sees cells that the stock network has not
    if name == "inception_v3":
        dilated.tail.Mixed_7a.pool = Pool("max", dilated.lineage, stride=2, dilation=2)  # likewise
    STOCK[name](stock)
    return dilated, plain, stock


@pytest.mark.parametrize(
    ("name", "lineage", "first"),  # the stock network's cells in ours: where its padding is lopsided, the odd ones
    [
        ("mobilenet_v1", "tf", 1),
        ("mobilenet_v1", "timm", 0),
        ("efficientnet_lite0", "tf", 1),
        ("inception_v3", "tf", 1),
        ("inception_v3", "torchvision", 1),
        ("resnet50", "torchvision", 0),
    ],
)
@torch.no_grad()
def test_dilated_cut_repeats_the_stock_network_on_its_cells(name: str, lineage: str, first: int) -> None:
    dilated, plain, stock = _twins(name, lineage)
    images = torch.randn(1, 3, 128, 128)
    features, tail_features = dilated(images)
    stock_features, stock_tail = stock(images)
    assert features.shape[-1] == 2 * stock_features.shape[-1] == 16
    assert tail_features.shape[-1] == 2 * stock_tail.shape[-1] == 8
    _assert_same(features[:, :, first::2, first::2], stock_features)  # borders included
    _assert_same(tail_features[:, :, first::2, first::2], stock_tail)
    for other in (0, 1):  # without dilation there are no such cells
        difference = (plain(images)[1][:, :, other::2, other::2] - stock_tail).norm() / stock_tail.norm()
        assert difference > 0.1


def _assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert ((ours - theirs).norm() / theirs.norm()).item() < 1e-5
    assert theirs.std() > 0.01


@pytest.mark.parametrize("name", BACKBONES)
def test_tail_can_run_on_detached_copies(name: str) -> None:
    """What the erased-feature branch does: gradients pass through the tail to its input and nowhere else."""
    backbone = build_backbone(name).train()
    features = torch.rand(2, backbone.shared_channels, 8, 8, requires_grad=True)
    before = features.detach().clone()
    statistics = {key: buffer.clone() for key, buffer in backbone.tail.named_buffers()}
    copies = {key: parameter.detach() for key, parameter in backbone.tail.named_parameters()}
    copies |= {key: buffer.clone() for key, buffer in backbone.tail.named_buffers()}
    functional_call(backbone.tail, copies, (features * 0.5,)).square().mean().backward()
    assert features.grad is not None
    assert features.grad.abs().sum() > 0
    assert torch.equal(features.detach(), before)
    assert all(parameter.grad is None for parameter in backbone.parameters())
    assert all(torch.equal(buffer, statistics[key]) for key, buffer in backbone.tail.named_buffers())
    assert torch.equal(features, before)  # nothing in place on the input itself either
    backbone.tail(features)
    assert torch.equal(features, before)


@pytest.mark.parametrize("name", BACKBONES)
@torch.no_grad()
def test_bf16_and_channels_last(name: str) -> None:
    backbone = build_backbone(name).eval()
    images = torch.randn(1, 3, 64, 64)
    exact = backbone(images)[1]
    fast = backbone.to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        half = fast(images.contiguous(memory_format=torch.channels_last))[1]
    assert half.dtype == torch.bfloat16
    assert half.is_contiguous(memory_format=torch.channels_last)
    assert F.cosine_similarity(half.float().flatten(), exact.flatten(), dim=0) > 0.99


def test_tiny_learns_from_scratch() -> None:
    """A red or a green square: a few steps must do."""
    torch.manual_seed(0)
    backbone = build_backbone("tiny").train()
    classifier = nn.Conv2d(backbone.tail_channels, 2, 1)
    optimizer = torch.optim.SGD([*backbone.parameters(), *classifier.parameters()], lr=0.05, momentum=0.9)
    for _ in range(25):
        labels = torch.arange(16) % 2
        images = torch.randn(16, 3, 32, 32) * 0.3
        images[labels == 1, 0, 8:24, 8:24] += 1.0
        images[labels == 0, 1, 8:24, 8:24] += 1.0
        loss = F.cross_entropy(classifier(backbone(images)[1]).mean((2, 3)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@pytest.mark.parametrize("name", ["inception_v3", "resnet50", "vgg16", "tiny"])
def test_each_cell_of_the_features_counts(name: str) -> None:
    """Else the mask that erases F would be felt at some cells only."""
    torch.manual_seed(0)
    backbone = build_backbone(name).eval()
    features = torch.rand(1, backbone.shared_channels, 8, 8, requires_grad=True)
    backbone.tail(features).square().sum().backward()
    assert features.grad is not None
    assert (features.grad.abs().sum(1) > 0).all()
