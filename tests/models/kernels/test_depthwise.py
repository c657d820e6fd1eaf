from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fdcnet.models.kernels import depthwise, own_kernels
from fdcnet.models.kernels.depthwise import Padding, best_tile, channel_block, depthwise_conv2d

CASES = [  # batch, channels, height, width, stride, padding (top, bottom, left, right), dilation
    pytest.param(2, 5, 7, 6, 1, (1, 1, 1, 1), 1, id="stride 1"),
    pytest.param(1, 3, 8, 8, 2, (0, 1, 0, 1), 1, id="stride 2, TF SAME on even sides"),
    pytest.param(1, 3, 7, 9, 2, (1, 1, 1, 1), 1, id="stride 2, odd sides"),
    pytest.param(1, 40, 6, 5, 1, (2, 2, 2, 2), 2, id="dilation 2, two blocks of channels"),
    pytest.param(1, 3, 10, 8, 2, (1, 2, 1, 2), 2, id="stride 2, dilation 2, TF SAME"),
    pytest.param(1, 2, 7, 6, 2, (0, 1, 3, 2), 2, id="stride 2, dilation 2, four different pads"),
    pytest.param(1, 2, 5, 6, 1, (0, 0, 0, 0), 1, id="no padding"),
    pytest.param(1, 2, 4, 4, 1, (3, 0, 0, 4), 1, id="more padding than the kernel reaches"),
    pytest.param(1, 2, 19, 21, 1, (1, 1, 1, 1), 1, id="several tiles, strips and chunks"),
    pytest.param(1, 2, 37, 36, 2, (0, 1, 0, 1), 1, id="several tiles, strips and chunks at stride 2"),
]


def reference(x: Tensor, weight: Tensor, stride: int, padding: Padding, dilation: int) -> Tensor:
    top, bottom, left, right = padding
    return F.conv2d(F.pad(x, (left, right, top, bottom)), weight, None, stride, 0, dilation, groups=x.shape[1])


def relative_error(value: Tensor, truth: Tensor) -> float:
    assert value.shape == truth.shape
    return float((value.detach().double().cpu() - truth.detach()).norm() / truth.detach().norm())


def test_asymmetric_padding_by_hand() -> None:
    x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    weight = torch.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    # Padded at the bottom and right alone, the kernel's top left meets the image: 1*1 + 2*2 + 4*3 + 5*4
    assert depthwise_conv2d(x, weight, 2, (0, 1, 0, 1), 1).tolist() == [[[[37.0]]]]
    # Padded at the top and left alone, its bottom right does: 5*1 + 6*2 + 8*3 + 9*4
    assert depthwise_conv2d(x, weight, 2, (1, 0, 1, 0), 1).tolist() == [[[[77.0]]]]
    # At the bottom and left: 2*1 + 3*2 + 5*3 + 6*4
    assert depthwise_conv2d(x, weight, 2, (0, 1, 1, 0), 1).tolist() == [[[[47.0]]]]


def test_each_channel_has_its_own_kernel() -> None:
    x = torch.ones(1, 2, 3, 3)
    weight = torch.stack([torch.full((1, 3, 3), 1.0), torch.full((1, 3, 3), 10.0)])
    y = depthwise_conv2d(x, weight, 2, (1, 1, 1, 1), 1)
    assert y.tolist() == [[[[4.0, 4.0], [4.0, 4.0]], [[40.0, 40.0], [40.0, 40.0]]]]


def test_other_kernel_sizes_and_autocast_on_the_cpu() -> None:
    x, weight = torch.randn(2, 4, 9, 9), torch.randn(4, 1, 5, 5)
    y = depthwise_conv2d(x, weight, 2, (1, 2, 1, 2), 1)
    torch.testing.assert_close(y, reference(x, weight, 2, (1, 2, 1, 2), 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert depthwise_conv2d(x, weight, 1, (2, 2, 2, 2), 1).dtype == torch.bfloat16


def test_tiles_waste_little() -> None:
    assert best_tile(28, 28, 1) == (4, 32)  # 7 whole tiles, no halo to the sides
    assert best_tile(112, 112, 1) == (8, 16)
    assert channel_block(128) == 64
    assert channel_block(96) == 32


@pytest.fixture(scope="module")
def interpreted(interpret: Callable[[ModuleType], ModuleType]) -> ModuleType:
    return interpret(depthwise)


@pytest.mark.parametrize(("batch", "channels", "height", "width", "stride", "padding", "dilation"), CASES)
def test_kernels_interpreted(
    interpreted: ModuleType,
    batch: int,
    channels: int,
    height: int,
    width: int,
    stride: int,
    padding: Padding,
    dilation: int,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(batch, channels, height, width).to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(channels, 1, 3, 3, requires_grad=True)
    y = interpreted.DepthwiseConv.apply(x, weight, stride, padding, dilation)
    check_against_float64(x, weight, y, stride, padding, dilation, tolerance=1e-6)


def test_bfloat16_interpreted(interpreted: ModuleType) -> None:
    x = torch.randn(1, 3, 6, 5).to(torch.bfloat16, memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(3, 1, 3, 3).to(torch.bfloat16).float().requires_grad_()
    y = interpreted.DepthwiseConv.apply(x, weight, 1, (1, 1, 1, 1), 1)
    assert y.dtype == torch.bfloat16
    check_against_float64(x, weight, y, 1, (1, 1, 1, 1), 1, tolerance=4e-3)
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


@pytest.mark.parametrize("needed", ["x", "weight"])
def test_only_the_gradient_that_is_needed(interpreted: ModuleType, needed: str) -> None:
    x = torch.randn(1, 2, 4, 4).to(memory_format=torch.channels_last).requires_grad_(needed == "x")
    weight = torch.randn(2, 1, 3, 3, requires_grad=needed == "weight")
    y = interpreted.DepthwiseConv.apply(x, weight, 1, (1, 1, 1, 1), 1)
    saved_x, saved_taps = y.grad_fn.saved_tensors
    assert (saved_x is None, saved_taps is None) == (needed == "x", needed == "weight")
    y.sum().backward()
    assert (x.grad is None, weight.grad is None) == (needed == "weight", needed == "x")
    with torch.inference_mode():
        assert torch.equal(interpreted.DepthwiseConv.apply(x, weight, 1, (1, 1, 1, 1), 1), y)


@pytest.mark.skipif(not torch.cuda.is_available() or depthwise.triton is None, reason="needs a GPU and triton")
@pytest.mark.parametrize(("batch", "channels", "height", "width", "stride", "padding", "dilation"), CASES)
def test_kernels_compiled(
    batch: int, channels: int, height: int, width: int, stride: int, padding: Padding, dilation: int
) -> None:
    torch.manual_seed(0)
    x = torch.randn(batch, channels, height, width, device="cuda").to(memory_format=torch.channels_last)
    x.requires_grad_()
    weight = torch.randn(channels, 1, 3, 3, device="cuda", requires_grad=True)
    assert type(depthwise_conv2d(x, weight, stride, padding, dilation).grad_fn).__name__ != "DepthwiseConvBackward"
    with own_kernels():
        y = depthwise_conv2d(x, weight, stride, padding, dilation)
    assert type(y.grad_fn).__name__ == "DepthwiseConvBackward"
    check_against_float64(x, weight, y, stride, padding, dilation, tolerance=1e-6)
    x.grad = weight.grad = None
    with own_kernels(), torch.autocast("cuda", dtype=torch.bfloat16):
        y = depthwise_conv2d(x, weight, stride, padding, dilation)
    assert y.dtype == torch.bfloat16
    check_against_float64(x, weight, y, stride, padding, dilation, tolerance=1e-2)


def check_against_float64(
    x: Tensor, weight: Tensor, y: Tensor, stride: int, padding: Padding, dilation: int, tolerance: float
) -> None:
    truth_x, truth_weight = (t.detach().cpu().double().requires_grad_() for t in (x, weight))
    truth = reference(truth_x, truth_weight, stride, padding, dilation)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert relative_error(y, truth) < tolerance
    upstream = torch.randn(truth.shape).to(y.dtype)
    truth.backward(upstream.double())
    y.backward(upstream.to(y.device))
    for tensor, expected in ((x, truth_x), (weight, truth_weight)):
        assert tensor.grad is not None
        assert expected.grad is not None
        assert tensor.grad.dtype == tensor.dtype
        assert relative_error(tensor.grad, expected.grad) < tolerance
