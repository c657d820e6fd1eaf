"""Batch norm and the following activation as one Triton kernel. In PyTorch they take two fifths of a training step.

The kernels treat channels_last tensors as a table with one row per pixel, compute in float32 and use no atomics, so
results are bit-identical between runs. The activation is a clamp. Its mask is recomputed in the backward pass from the
input of the norm, so nothing else has to be stored.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fdcnet.models.kernels import in_use

try:
    import triton  # type: ignore
    import triton.language as tl  # type: ignore
except ImportError:  # a CPU build of torch comes without it
    triton = None

Bounds = tuple[float, float]
RELU: Bounds = (0.0, math.inf)
RELU6: Bounds = (0.0, 6.0)
LINEAR: Bounds = (-math.inf, math.inf)

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TILE = 64  # rows that a program processes at a time
PROGRAMS = 2048  # maximum number that sum up: at least eight for each of 128 multiprocessors
SUM_WARPS, MAP_WARPS = 8, 4


def norm_clamp(x: Tensor, norm: nn.BatchNorm2d, bounds: Bounds) -> Tensor:
    """Batch norm of x (B, C, H, W), clamped."""
    if not _triton_can(x, norm):
        y = norm(x)
        if bounds == LINEAR:
            return y
        return F.relu(y, inplace=True) if bounds == RELU else F.hardtanh(y, *bounds, inplace=True)
    if norm.training:
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
    return NormClamp.apply(
        x, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.training, norm.momentum, norm.eps, bounds
    )


def _triton_can(x: Tensor, norm: nn.BatchNorm2d) -> bool:
    return (
        triton is not None
        and in_use()
        and x.is_cuda
        and x.dtype in DTYPES
        and norm.affine
        and norm.track_running_stats
        and norm.momentum is not None
        and norm.weight.device == x.device
        and (type(norm) is nn.BatchNorm2d or not norm.training)  # other kinds have statistics of their own
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.numel() // x.shape[1] > 1
        and 0 < x.numel() < 2**31  # offsets are 32 bit
    )


class NormClamp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        training: bool,
        momentum: float,
        eps: float,
        bounds: Bounds,
    ) -> Tensor:
        if training:
            mean, rstd = _statistics(x, running_mean, running_var, momentum, eps)
        else:
            mean, rstd = running_mean, (running_var + eps).rsqrt()
        y = torch.empty_like(x)
        rows, channels, block_c, _, _ = _table(x)
        grid = (_parts(rows, TILE), _parts(channels, block_c))
        with torch.cuda.device_of(x):
            forward_kernel[grid](
                x, y, mean, rstd, weight, bias, rows, channels, *bounds, TILE, block_c, num_warps=MAP_WARPS
            )
        ctx.save_for_backward(x, mean, rstd, weight, bias)
        ctx.training, ctx.bounds = training, bounds
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, rstd, weight, bias = ctx.saved_tensors
        x_needed, weight_needed, bias_needed = ctx.needs_input_grad[:3]
        grad = grad.contiguous(memory_format=torch.channels_last)
        rows, channels, block_c, chunks, tiles = _table(x)
        common = (x, grad, mean, rstd, weight, bias)
        sums, x_grad = None, None
        with torch.cuda.device_of(x):
            if ctx.training or weight_needed or bias_needed:
                partial = torch.empty((chunks, 2, channels), dtype=torch.float32, device=x.device)
                backward_sums_kernel[(chunks, _parts(channels, block_c))](
                    *common, partial, rows, channels, *ctx.bounds, tiles, TILE, block_c, num_warps=SUM_WARPS
                )
                sums = partial.sum(0)  # of the gradient, and of the gradient times the normalised input
            if x_needed:
                x_grad = torch.empty_like(x)
                backward_kernel[(_parts(rows, TILE), _parts(channels, block_c))](
                    *common,
                    sums if ctx.training else mean,
                    x_grad,
                    rows,
                    channels,
                    *ctx.bounds,
                    ctx.training,
                    TILE,
                    block_c,
                    num_warps=MAP_WARPS,
                )
        weight_grad = sums[1].to(weight.dtype) if weight_needed and sums is not None else None
        bias_grad = sums[0].to(bias.dtype) if bias_needed and sums is not None else None
        return x_grad, weight_grad, bias_grad, *(None,) * 6


def _statistics(
    x: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor]:
    """Mean and 1 / standard deviation of each channel; the running averages move."""
    rows, channels, block_c, chunks, tiles = _table(x)
    blocks = _parts(channels, block_c)
    partial = torch.empty((chunks, 2, channels), dtype=torch.float32, device=x.device)
    mean, rstd = torch.empty((2, channels), dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        sums_kernel[(chunks, blocks)](x, partial, rows, channels, tiles, TILE, block_c, num_warps=SUM_WARPS)
        statistics_kernel[(blocks,)](
            x,
            partial,
            mean,
            rstd,
            running_mean,
            running_var,
            rows,
            channels,
            chunks,
            float(momentum),
            float(eps),
            _power_of_two(_parts(chunks, TILE)),
            TILE,
            block_c,
            num_warps=SUM_WARPS,
        )
    return mean, rstd


def _table(x: Tensor) -> tuple[int, int, int, int, int]:
    """-> rows, channels, channels of a program, programs that share the rows of a channel, tiles of each of them"""
    channels = x.shape[1]
    rows = x.numel() // channels
    block_c = 64 if channels > 32 else 32
    tiles = _parts(rows, TILE)
    tiles_each = _power_of_two(_parts(tiles * _parts(channels, block_c), PROGRAMS))
    return rows, channels, block_c, _parts(tiles, tiles_each), tiles_each


def _power_of_two(number: int) -> int:
    """Round up, so that loops have few different lengths, because each is compiled separately."""
    return 1 << (number - 1).bit_length()


def _parts(whole: int, part: int) -> int:
    return -(-whole // part)


def _jit(kernel: Any) -> Any:
    """Compile once for all sizes. Only the channels are specialized, because their divisibility allows wide loads."""
    sizes = [name for name in ("rows", "chunks") if name in kernel.__code__.co_varnames]
    return kernel if triton is None else triton.jit(kernel, do_not_specialize=sizes)


@_jit
def sums_kernel(
    x: tl.tensor,
    partial: tl.tensor,
    rows: int,
    channels: int,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """partial[program] = sum and sum of squares of each channel, as differences from its first value."""
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    first = tl.load(x + c, mask=c < channels, other=0.0).to(tl.float32)
    total = tl.full((TILE, BLOCK_C), 0.0, tl.float32)
    squares = tl.full((TILE, BLOCK_C), 0.0, tl.float32)
    for tile in tl.range(TILES, loop_unroll_factor=2):
        row = (tl.program_id(0) * TILES + tile) * TILE + tl.arange(0, TILE)[:, None]
        inside = (row < rows) & (c < channels)
        value = tl.load(x + row * channels + c, mask=inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - first, 0.0)
        total += value
        squares += value * value
    store_sums(partial, total, squares, c, channels)


@_jit
def statistics_kernel(
    x: tl.tensor,
    partial: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    running_mean: tl.tensor,
    running_var: tl.tensor,
    rows: int,
    channels: int,
    chunks: int,
    momentum: float,
    eps: float,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """From all programs' sums; the running variance is the unbiased one."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    total = tl.full((TILE, BLOCK_C), 0.0, tl.float32)
    squares = tl.full((TILE, BLOCK_C), 0.0, tl.float32)
    for tile in tl.range(TILES):
        row = tile * TILE + tl.arange(0, TILE)[:, None]
        inside = (row < chunks) & (c < channels)
        total += tl.load(partial + row * 2 * channels + c, mask=inside, other=0.0)
        squares += tl.load(partial + (row * 2 + 1) * channels + c, mask=inside, other=0.0)
    shift = tl.reduce(total, 0, add, keep_dims=True) / rows
    variance = tl.reduce(squares, 0, add, keep_dims=True) / rows - shift * shift
    variance = tl.where(variance < 0.0, 0.0, variance)
    centre = tl.load(x + c, mask=c < channels, other=0.0).to(tl.float32) + shift
    tl.store(mean + c, centre, mask=c < channels)
    tl.store(rstd + c, 1.0 / tl.sqrt(variance + eps), mask=c < channels)
    kept_mean = tl.load(running_mean + c, mask=c < channels, other=0.0)
    kept_var = tl.load(running_var + c, mask=c < channels, other=0.0)
    unbiased = variance * (rows / (rows - 1.0))
    tl.store(running_mean + c, kept_mean + momentum * (centre - kept_mean), mask=c < channels)
    tl.store(running_var + c, kept_var + momentum * (unbiased - kept_var), mask=c < channels)


@_jit
def forward_kernel(
    x: tl.tensor,
    y: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    rows: int,
    channels: int,
    low: float,
    high: float,
    TILE: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    row, c, inside = tile_of(rows, channels, TILE, BLOCK_C)
    value = tl.load(x + row * channels + c, mask=inside, other=0.0).to(tl.float32)
    centre, spread, scale, offset = channel_values(mean, rstd, weight, bias, c, channels)
    z = (value - centre) * spread * scale + offset
    z = tl.where(z < low, low, z)  # NaN propagates
    z = tl.where(z > high, high, z)
    tl.store(y + row * channels + c, z.to(y.dtype.element_ty), mask=inside)


@_jit
def backward_sums_kernel(
    x: tl.tensor,
    grad: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    partial: tl.tensor,
    rows: int,
    channels: int,
    low: float,
    high: float,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """partial[program] = sums of the gradient that passes the clamp, and of it times the normalised input."""
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    centre, spread, scale, offset = channel_values(mean, rstd, weight, bias, c, channels)
    total = tl.full((TILE, BLOCK_C), 0.0, tl.float32)
    products = tl.full((TILE, BLOCK_C), 0.0, tl.float32)
    for tile in tl.range(TILES):
        row = (tl.program_id(0) * TILES + tile) * TILE + tl.arange(0, TILE)[:, None]
        inside = (row < rows) & (c < channels)
        cell = row * channels + c
        normal, passed = passed_back(x + cell, grad + cell, inside, centre, spread, scale, offset, low, high)
        total += passed
        products += passed * normal
    store_sums(partial, total, products, c, channels)


@_jit
def backward_kernel(
    x: tl.tensor,
    grad: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    sums: tl.tensor,
    x_grad: tl.tensor,
    rows: int,
    channels: int,
    low: float,
    high: float,
    TRAINING: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """In training mode, each value also changes the statistics of the batch."""
    row, c, inside = tile_of(rows, channels, TILE, BLOCK_C)
    centre, spread, scale, offset = channel_values(mean, rstd, weight, bias, c, channels)
    cell = row * channels + c
    normal, passed = passed_back(x + cell, grad + cell, inside, centre, spread, scale, offset, low, high)
    if TRAINING:
        total = tl.load(sums + c, mask=c < channels, other=0.0)
        products = tl.load(sums + channels + c, mask=c < channels, other=0.0)
        passed -= (total + normal * products) / rows
    tl.store(x_grad + cell, (passed * scale * spread).to(x_grad.dtype.element_ty), mask=inside)


@_jit
def tile_of(rows: int, channels: int, TILE: tl.constexpr, BLOCK_C: tl.constexpr) -> tl.tensor:
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    return row, c, (row < rows) & (c < channels)


@_jit
def channel_values(
    mean: tl.tensor, rstd: tl.tensor, weight: tl.tensor, bias: tl.tensor, c: tl.tensor, channels: int
) -> tl.tensor:
    inside = c < channels
    return (
        tl.load(mean + c, mask=inside, other=0.0),
        tl.load(rstd + c, mask=inside, other=0.0),
        tl.load(weight + c, mask=inside, other=0.0),
        tl.load(bias + c, mask=inside, other=0.0),
    )


@_jit
def passed_back(
    x: tl.tensor,
    grad: tl.tensor,
    inside: tl.tensor,
    centre: tl.tensor,
    spread: tl.tensor,
    scale: tl.tensor,
    offset: tl.tensor,
    low: float,
    high: float,
) -> tl.tensor:
    """-> normalised input, gradient where the clamp let the output through"""
    normal = (tl.load(x, mask=inside, other=0.0).to(tl.float32) - centre) * spread
    passed = tl.load(grad, mask=inside, other=0.0).to(tl.float32)
    z = normal * scale + offset
    return normal, tl.where((z > low) & (z < high), passed, 0.0)


@_jit
def store_sums(partial: tl.tensor, first: tl.tensor, second: tl.tensor, c: tl.tensor, channels: int) -> None:
    """Store both sums over the rows of this program."""
    partial += tl.program_id(0) * 2 * channels + c
    tl.store(partial, tl.reduce(first, 0, add, keep_dims=True), mask=c < channels)
    tl.store(partial + channels, tl.reduce(second, 0, add, keep_dims=True), mask=c < channels)


@_jit
def add(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a + b
