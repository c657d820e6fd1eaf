from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fdcnet.models.kernels import norm as norm_module
from fdcnet.models.kernels import own_kernels
from fdcnet.models.kernels.norm import LINEAR, RELU, RELU6, Bounds, norm_clamp

CASES = [  # batch, channels, height, width, bounds, training
    pytest.param(2, 5, 7, 6, RELU6, True, id="fewer channels than a block"),
    pytest.param(3, 40, 9, 8, RELU, True, id="a part of a block of channels, several tiles"),
    pytest.param(2, 70, 5, 5, LINEAR, True, id="two blocks of channels"),
    pytest.param(2, 33, 6, 5, RELU6, False, id="kept statistics"),
    pytest.param(2, 3, 6, 5, RELU, False, id="kept statistics, relu"),
]


def make(channels: int, training: bool) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, eps=1e-3)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 3)
        norm.bias.uniform_(-1, 3)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    return norm.train(training)


def test_a_norm_and_a_clamp_by_hand() -> None:
    norm = nn.BatchNorm2d(1, eps=1e-12)
    with torch.no_grad():
        norm.weight.fill_(4.0)
        norm.bias.fill_(3.0)
    x = torch.tensor([1.0, 1.0, 3.0, 3.0]).reshape(1, 1, 2, 2)  # mean 2, deviation 1: 4 * -1 + 3 and 4 * 1 + 3
    for bounds, truth in (
        (LINEAR, [-1.0, -1.0, 7.0, 7.0]),
        (RELU, [0.0, 0.0, 7.0, 7.0]),
        (RELU6, [0.0, 0.0, 6.0, 6.0]),
    ):
        assert norm_clamp(x, norm, bounds).flatten().tolist() == pytest.approx(truth)


@pytest.fixture(scope="module")
def interpreted(interpret: Callable[[ModuleType], ModuleType]) -> ModuleType:
    module = interpret(norm_module)
    module._triton_can = lambda x, norm: True  # type: ignore[attr-defined]
    module.PROGRAMS = 3  # type: ignore[attr-defined]  # so that few rows have several programs with several tiles
    return module


@pytest.mark.parametrize(("batch", "channels", "height", "width", "bounds", "training"), CASES)
def test_kernels_interpreted(
    interpreted: ModuleType, batch: int, channels: int, height: int, width: int, bounds: Bounds, training: bool
) -> None:
    torch.manual_seed(0)
    x = (torch.randn(batch, channels, height, width) + 10).to(memory_format=torch.channels_last)
    check_against_float64(interpreted.norm_clamp, x - 10 if not training else x, bounds, training, tolerance=1e-5)


def test_bfloat16_interpreted(interpreted: ModuleType) -> None:
    x = torch.randn(2, 3, 6, 5).to(torch.bfloat16, memory_format=torch.channels_last)
    check_against_float64(interpreted.norm_clamp, x, RELU6, True, tolerance=1e-2)


def test_what_is_no_number_stays_none(interpreted: ModuleType) -> None:
    x = torch.full((1, 2, 2, 2), float("nan")).to(memory_format=torch.channels_last)
    assert interpreted.norm_clamp(x, make(2, True), RELU6).isnan().all()


def test_a_constant_channel(interpreted: ModuleType) -> None:
    x = torch.full((1, 2, 4, 4), 1e4).to(memory_format=torch.channels_last)
    norm = make(2, True)
    y = interpreted.norm_clamp(x, norm, LINEAR)
    torch.testing.assert_close(y, norm.bias.detach().view(1, 2, 1, 1).expand_as(y))


@pytest.mark.parametrize("training", [True, False])
def test_only_the_gradient_that_is_needed(interpreted: ModuleType, training: bool) -> None:
    x = torch.randn(1, 2, 4, 4).to(memory_format=torch.channels_last)
    norm = make(2, training)
    interpreted.norm_clamp(x, norm, RELU6).sum().backward()
    assert norm.weight.grad is not None
    x.requires_grad_()
    norm = make(2, training).requires_grad_(False)
    interpreted.norm_clamp(x, norm, RELU6).sum().backward()
    assert x.grad is not None
    with torch.inference_mode():
        interpreted.norm_clamp(x, norm, RELU6)


@pytest.mark.skipif(not torch.cuda.is_available() or norm_module.triton is None, reason="needs a GPU and triton")
@pytest.mark.parametrize(("batch", "channels", "height", "width", "bounds", "training"), CASES)
def test_kernels_compiled(batch: int, channels: int, height: int, width: int, bounds: Bounds, training: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(8 * batch, channels, 4 * height, 4 * width, device="cuda").to(memory_format=torch.channels_last)
    with own_kernels():
        assert norm_module._triton_can(x, make(channels, training).cuda())
        check_against_float64(norm_clamp, x, bounds, training, tolerance=1e-5)
        check_against_float64(norm_clamp, x.bfloat16(), bounds, training, tolerance=1e-2)


def check_against_float64(function: object, x: Tensor, bounds: Bounds, training: bool, tolerance: float) -> None:
    assert callable(function)
    norm = make(x.shape[1], training).to(x.device)
    truth_norm = nn.BatchNorm2d(x.shape[1], eps=norm.eps).double().train(training)
    truth_norm.load_state_dict({name: value.cpu() for name, value in norm.state_dict().items()})
    truth_x = x.detach().cpu().double().requires_grad_()
    x = x.detach().requires_grad_()
    y = function(x, norm, bounds)
    truth = F.hardtanh(truth_norm(truth_x), *bounds)
    assert y.dtype == x.dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    upstream = torch.randn(truth.shape).to(y.dtype)
    truth.backward(upstream.double())
    y.backward(upstream.to(y.device))
    assert torch.equal(norm.num_batches_tracked.cpu(), truth_norm.num_batches_tracked)  # type: ignore[union-attr]
    for value, expected in (
        (norm.running_mean, truth_norm.running_mean),
        (norm.running_var, truth_norm.running_var),
        (y, truth),
        (x.grad, truth_x.grad),
        (norm.weight.grad, truth_norm.weight.grad),
        (norm.bias.grad, truth_norm.bias.grad),
    ):
        assert value is not None
        assert expected is not None
        assert relative_error(value, expected) < tolerance


def relative_error(value: Tensor, truth: Tensor) -> float:
    assert value.shape == truth.shape
    truth = truth.detach().double().cpu()
    return float((value.detach().double().cpu() - truth).norm() / truth.norm())
