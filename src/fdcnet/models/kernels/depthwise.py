"""Depthwise 3x3 convolution in Triton. cuDNN's bfloat16 version, above all its weight gradient, is much slower.

The kernels use channels_last tensors, sum in float32 and use no atomics, so results are bit-identical between runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fdcnet.models.kernels import in_use

try:
    import triton  # type: ignore
    import triton.language as tl  # type: ignore
except ImportError:  # a CPU build of torch comes without it
    triton = None

Padding = tuple[int, int, int, int]  # top, bottom, left, right

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TILES = ((2, 64), (4, 32), (8, 16), (16, 8))  # rows and columns of outputs and input gradients for one program
GATHER_WARPS = 8  # with 64 channels, 32 sums for each thread
STRIP, ROWS = 16, 14  # columns and rows of a weight gradient program: 1000 programs for 256 channels, 28x28, batch 64
STRIP_WARPS = 4  # with 64 channels, 8 sums per tap for each thread
STRIP_REGISTERS = 128  # so that four programs fit on a multiprocessor
UNROLL = 2


def depthwise_conv2d(x: Tensor, weight: Tensor, stride: int, padding: Padding, dilation: int) -> Tensor:
    """Convolve each channel of x (B, C, H, W) with its own kernel in weight (C, 1, k, k).

    `padding` is top, bottom, left, right. Autocast applies as in F.conv2d, but the weight gradient stays in float32.
    """
    if _triton_can(x, weight):
        return DepthwiseConv.apply(x.to(_compute_dtype(x)), weight, stride, padding, dilation)
    top, bottom, left, right = padding
    if (top, left) != (bottom, right):
        x, top, left = F.pad(x, (left, right, top, bottom)), 0, 0
    return F.conv2d(x, weight, None, stride, (top, left), dilation, groups=x.shape[1])


def _triton_can(x: Tensor, weight: Tensor) -> bool:
    return (
        triton is not None
        and in_use()
        and x.is_cuda
        and weight.device == x.device
        and x.dtype in DTYPES
        and weight.dtype in DTYPES
        and (weight.dtype == x.dtype or torch.is_autocast_enabled("cuda"))
        and weight.shape == (x.shape[1], 1, 3, 3)
        and x.is_contiguous(memory_format=torch.channels_last)
        and 0 < x.shape[0] < 2**16  # the last axis of a grid
        and 0 < x.numel() // x.shape[0] < 2**30  # offsets inside an image are 32 bit
    )


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


class Shape(NamedTuple):
    """Arguments of both kernels that describe a convolution."""

    channels: int
    height: int
    width: int
    out_height: int
    out_width: int
    stride: int
    dilation: int
    top: int
    left: int


class DepthwiseConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: Padding, dilation: int) -> Tensor:
        channels, height, width = x.shape[1:]
        top, bottom, left, right = padding
        out_height = (height + top + bottom - 2 * dilation - 1) // stride + 1
        out_width = (width + left + right - 2 * dilation - 1) // stride + 1
        assert min(out_height, out_width) > 0, "the image and its padding are smaller than the kernel"
        shape = Shape(channels, height, width, out_height, out_width, stride, dilation, top, left)

        taps = torch.empty((9, channels), dtype=x.dtype, device=x.device)
        taps.copy_(weight.reshape(channels, 9).t())
        x_needed, weight_needed = ctx.needs_input_grad[:2]
        ctx.save_for_backward(x if weight_needed else None, taps if x_needed else None)
        ctx.shape, ctx.weight_dtype = shape, weight.dtype
        return _gather(x, taps, shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        x, taps = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        x_grad = None if taps is None else _input_grad(grad, taps, ctx.shape)
        weight_grad = None if x is None else _weight_grad(x, grad, ctx.shape).to(ctx.weight_dtype)
        return x_grad, weight_grad, None, None, None


def _input_grad(grad: Tensor, taps: Tensor, shape: Shape) -> Tensor:
    """Input cell i meets tap k in output cell (i + pad - k * dilation) / stride: a convolution, its kernel turned."""
    reach = 2 * shape.dilation
    turned = Shape(
        shape.channels,
        shape.out_height,
        shape.out_width,
        shape.height,
        shape.width,
        stride=1,
        dilation=shape.dilation,
        top=reach - shape.top,
        left=reach - shape.left,
    )
    return _gather(grad, taps, turned, up=shape.stride, turn=True)


def _gather(x: Tensor, taps: Tensor, shape: Shape, up: int = 1, turn: bool = False) -> Tensor:
    size = (x.shape[0], shape.channels, shape.out_height, shape.out_width)
    y = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    rows, columns = _parts(shape.out_height, up), _parts(shape.out_width, up)
    block_h, block_w = best_tile(rows, columns, shape.dilation)
    block_c = channel_block(shape.channels)
    blocks = _parts(columns, block_w) * up * up * _parts(shape.channels, block_c)
    grid = (blocks, _parts(rows, block_h), x.shape[0])
    with torch.cuda.device_of(x):
        gather_kernel[grid](x, taps, y, *shape, up, turn, block_h, block_w, block_c, num_warps=GATHER_WARPS)
    return y


def _weight_grad(x: Tensor, grad: Tensor, shape: Shape) -> Tensor:
    block_c = channel_block(shape.channels)
    blocks, strips = _parts(shape.channels, block_c), _parts(shape.out_width, STRIP)
    chunks = _parts(shape.out_height, ROWS)
    partial = torch.empty((x.shape[0] * chunks * strips, 9, shape.channels), dtype=torch.float32, device=x.device)
    grid = (strips * blocks, chunks, x.shape[0])
    with torch.cuda.device_of(x):
        weight_grad_kernel[grid](
            x, grad, partial, *shape, STRIP, ROWS, block_c, UNROLL, num_warps=STRIP_WARPS, maxnreg=STRIP_REGISTERS
        )
    return partial.sum(0).t().reshape(shape.channels, 1, 3, 3)


def _parts(whole: int, part: int) -> int:
    return -(-whole // part)


def best_tile(rows: int, columns: int, dilation: int) -> tuple[int, int]:
    """The tile that computes and loads the fewest cells, those over the edge and in the halo included."""

    def cost(tile: tuple[int, int]) -> int:
        height, width = tile
        with_halo = (height + 2 * dilation) * (width + 2 * dilation)
        return _parts(rows, height) * _parts(columns, width) * (height * width + with_halo)

    return min(TILES, key=cost)


def channel_block(channels: int) -> int:
    return 64 if channels % 64 == 0 else 32


def _jit(kernel: Any) -> Any:
    """Compile once for all sizes. Only the channels are specialized, because their divisibility allows wide loads."""
    sizes = [name for name in Shape._fields if name != "channels"]
    return kernel if triton is None else triton.jit(kernel, do_not_specialize=sizes)


@_jit
def gather_kernel(
    x: tl.tensor,
    taps: tl.tensor,
    y: tl.tensor,
    channels: int,
    height: int,
    width: int,
    out_height: int,
    out_width: int,
    stride: int,
    dilation: int,
    top: int,
    left: int,
    UP: tl.constexpr,
    TURN: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """y[i] = sum of taps[k] * x[(i * stride - pad + k * dilation) / UP] over the taps k where UP divides.

    UP or stride is 1. The cells of a program are UP apart: a tap reaches all of them or none, and then is skipped.
    """
    blocks = (channels + BLOCK_C - 1) // BLOCK_C
    place = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    row_phase = place % (UP * UP) // UP
    column_phase = place % UP
    pixel = tl.arange(0, BLOCK_H * BLOCK_W)[:, None]
    row = tl.program_id(1) * BLOCK_H + pixel // BLOCK_W
    column = place // (UP * UP) * BLOCK_W + pixel % BLOCK_W

    image = tl.program_id(2).to(tl.int64)
    x += image * height * width * channels
    y += image * out_height * out_width * channels
    cell = (row * width + column) * stride * channels + c
    total = tl.full((BLOCK_H * BLOCK_W, BLOCK_C), 0.0, tl.float32)
    for kh in tl.range(3):  # not unrolled: the loads of all nine taps at once would take too many registers
        up_row = row_phase * stride - top + kh * dilation
        in_row = row * stride + up_row // UP
        for kw in tl.static_range(3):
            up_column = column_phase * stride - left + kw * dilation
            in_column = column * stride + up_column // UP
            if (up_row % UP == 0) & (up_column % UP == 0):
                inside = (in_row >= 0) & (in_row < height) & (in_column >= 0) & (in_column < width)
                shift = (up_row // UP * width + up_column // UP) * channels
                value = tl.load(x + shift + cell, mask=inside & (c < channels), other=0.0)
                k = 8 - (kh * 3 + kw) if TURN else kh * 3 + kw
                tap = tl.load(taps + k * channels + c, mask=c < channels, other=0.0)
                total += value.to(tl.float32) * tap.to(tl.float32)

    out_row = row * UP + row_phase
    out_column = column * UP + column_phase
    inside = (out_row < out_height) & (out_column < out_width) & (c < channels)
    tl.store(y + (out_row * out_width + out_column) * channels + c, total.to(y.dtype.element_ty), mask=inside)


@_jit
def weight_grad_kernel(
    x: tl.tensor,
    grad: tl.tensor,
    partial: tl.tensor,
    channels: int,
    height: int,
    width: int,
    out_height: int,
    out_width: int,
    stride: int,
    dilation: int,
    top: int,
    left: int,
    BLOCK_W: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    UNROLL: tl.constexpr,
) -> None:
    """partial[program, k] = sum of grad * x under tap k, over the rows of one strip of columns of one image."""
    blocks = (channels + BLOCK_C - 1) // BLOCK_C
    strip = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    column = strip * BLOCK_W + tl.arange(0, BLOCK_W)[:, None]

    image = tl.program_id(2).to(tl.int64)
    x += image * height * width * channels
    grad += image * out_height * out_width * channels
    inside = (column < out_width) & (c < channels)
    out_cell = column * channels + c
    column0 = column * stride - left
    column1 = column0 + dilation
    column2 = column1 + dilation
    inside0 = inside & (column0 >= 0) & (column0 < width)
    inside1 = inside & (column1 >= 0) & (column1 < width)
    inside2 = inside & (column2 >= 0) & (column2 < width)
    cell0 = column0 * channels + c
    cell1 = column1 * channels + c
    cell2 = column2 * channels + c

    step = width * channels
    sum00 = tl.full((BLOCK_W, BLOCK_C), 0.0, tl.float32)
    sum01 = tl.full((BLOCK_W, BLOCK_C), 0.0, tl.float32)
    sum02 = tl.full((BLOCK_W, BLOCK_C), 0.0, tl.float32)
    sum10 = tl.full((BLOCK_W, BLOCK_C), 0.0, tl.float32)
    sum11 = tl.full((BLOCK_W, BLOCK_C), 0.0, tl.float32)
    sum12 = tl.full((BLOCK_W, BLOCK_C), 0.0, tl.float32)
    sum20 = tl.full((BLOCK_W, BLOCK_C), 0.0, tl.float32)
    sum21 = tl.full((BLOCK_W, BLOCK_C), 0.0, tl.float32)
    sum22 = tl.full((BLOCK_W, BLOCK_C), 0.0, tl.float32)
    for i in tl.range(ROWS, loop_unroll_factor=UNROLL):
        row = tl.program_id(1) * ROWS + i
        value = row_under(grad, row, out_height, out_width * channels, out_cell, inside)
        in_row = row * stride - top
        sum00 += value * row_under(x, in_row, height, step, cell0, inside0)
        sum01 += value * row_under(x, in_row, height, step, cell1, inside1)
        sum02 += value * row_under(x, in_row, height, step, cell2, inside2)
        sum10 += value * row_under(x, in_row + dilation, height, step, cell0, inside0)
        sum11 += value * row_under(x, in_row + dilation, height, step, cell1, inside1)
        sum12 += value * row_under(x, in_row + dilation, height, step, cell2, inside2)
        sum20 += value * row_under(x, in_row + 2 * dilation, height, step, cell0, inside0)
        sum21 += value * row_under(x, in_row + 2 * dilation, height, step, cell1, inside1)
        sum22 += value * row_under(x, in_row + 2 * dilation, height, step, cell2, inside2)

    strips = tl.num_programs(0) // blocks
    program = (image * tl.num_programs(1) + tl.program_id(1)) * strips + strip
    partial += program * 9 * channels + c
    tl.store(partial, tl.reduce(sum00, 0, add, keep_dims=True), mask=c < channels)
    tl.store(partial + channels, tl.reduce(sum01, 0, add, keep_dims=True), mask=c < channels)
    tl.store(partial + 2 * channels, tl.reduce(sum02, 0, add, keep_dims=True), mask=c < channels)
    tl.store(partial + 3 * channels, tl.reduce(sum10, 0, add, keep_dims=True), mask=c < channels)
    tl.store(partial + 4 * channels, tl.reduce(sum11, 0, add, keep_dims=True), mask=c < channels)
    tl.store(partial + 5 * channels, tl.reduce(sum12, 0, add, keep_dims=True), mask=c < channels)
    tl.store(partial + 6 * channels, tl.reduce(sum20, 0, add, keep_dims=True), mask=c < channels)
    tl.store(partial + 7 * channels, tl.reduce(sum21, 0, add, keep_dims=True), mask=c < channels)
    tl.store(partial + 8 * channels, tl.reduce(sum22, 0, add, keep_dims=True), mask=c < channels)


@_jit
def row_under(x: tl.tensor, in_row: int, height: int, step: int, cell: tl.tensor, inside: tl.tensor) -> tl.tensor:
    inside = inside & (in_row >= 0) & (in_row < height)
    return tl.load(x + in_row * step + cell, mask=inside, other=0.0).to(tl.float32)


@_jit
def add(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a + b
