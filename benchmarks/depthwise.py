"""Depthwise convolutions of MobileNetV1 as BAS cuts it: our Triton kernels against cuDNN, on one GPU.

    python benchmarks/depthwise.py [--batch 64] [--sweep]

Times are GPU times of CUDA graphs, the cache emptied before each replay. `--sweep` tries other tile sizes instead.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fdcnet.models.kernels import depthwise, own_kernels
from fdcnet.models.kernels.depthwise import Padding, depthwise_conv2d

Conv = Callable[[Tensor, Tensor, int, Padding, int], Tensor]
TOLERANCE = 1e-2


class Layer(NamedTuple):
    blocks: int
    channels: int
    side: int
    stride: int
    dilation: int

    @property
    def padding(self) -> Padding:
        total = 2 * self.dilation + 1 - self.stride  # TensorFlow's SAME on an even side
        before, after = total // 2, total - total // 2
        return before, after, before, after

    def __str__(self) -> str:
        return f"{self.blocks} x {self.channels:4d} ch {self.side:3d}^2 stride {self.stride} dilation {self.dilation}"


LAYERS = (
    Layer(1, 32, 112, 1, 1),
    Layer(1, 64, 112, 2, 1),
    Layer(1, 128, 56, 1, 1),
    Layer(1, 128, 56, 2, 1),
    Layer(2, 256, 28, 1, 1),
    Layer(5, 512, 28, 1, 2),
    Layer(1, 512, 28, 2, 2),
    Layer(1, 1024, 14, 1, 2),
)


class Problem(NamedTuple):
    layer: Layer
    x: Tensor
    weight: Tensor
    y_grad: Tensor

    @classmethod
    def random(cls, layer: Layer, batch: int) -> "Problem":
        def tensor(side: int) -> Tensor:
            values = torch.randn(batch, layer.channels, side, side, device="cuda")
            return values.to(torch.bfloat16, memory_format=torch.channels_last)

        weight = torch.randn(layer.channels, 1, 3, 3, device="cuda")
        x = tensor(layer.side)
        return cls(layer, x.requires_grad_(), weight.requires_grad_(), tensor(layer.side // layer.stride))

    def forward(self, conv: Conv) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            return conv(self.x, self.weight, self.layer.stride, self.layer.padding, self.layer.dilation)

    def inference(self, conv: Conv) -> Tensor:
        with torch.no_grad():
            return self.forward(conv)

    def training(self, conv: Conv) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.forward(conv), (self.x, self.weight), self.y_grad)

    def gigabytes(self) -> float:
        """What a forward pass must move at least; with both gradients three times that."""
        return 2 * (self.x.numel() + self.y_grad.numel()) / 1e9


def cudnn(x: Tensor, weight: Tensor, stride: int, padding: Padding, dilation: int) -> Tensor:
    top, bottom, left, right = padding
    if (top, left) != (bottom, right):
        x, top, left = F.pad(x, (left, right, top, bottom)), 0, 0
    return F.conv2d(x, weight, None, stride, (top, left), dilation, groups=x.shape[1])


def errors(problem: Problem) -> list[float]:
    """Relative errors of the output, input gradient and weight gradient against float32."""
    x = problem.x.detach().float().contiguous().requires_grad_()
    weight = problem.weight.detach().bfloat16().float().requires_grad_()
    layer = problem.layer
    truth = cudnn(x, weight, layer.stride, layer.padding, layer.dilation)
    truths = (truth.detach(), *torch.autograd.grad(truth, (x, weight), problem.y_grad.float().contiguous()))
    y = problem.forward(depthwise_conv2d)
    assert type(y.grad_fn).__name__ == "DepthwiseConvBackward", "the Triton kernels were not used"
    ours = (y.detach(), *torch.autograd.grad(y, (problem.x, problem.weight), problem.y_grad))
    return [float((a.float() - b).norm() / b.norm()) for a, b in zip(ours, truths, strict=True)]


def milliseconds(work: Callable[[], object], flush: Tensor, repeats: int = 30) -> float:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(repeats):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        times.append((start, end))
    torch.cuda.synchronize()
    return median(start.elapsed_time(end) for start, end in times)


def eager_milliseconds(problems: Sequence[Problem], conv: Conv, repeats: int = 10) -> float:
    """One training pass over all layers as Python launches it, by the clock on the wall."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for problem in problems:
            for _ in range(problem.layer.blocks):
                problem.training(conv)
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return median(times)


def compare(batch: int) -> None:
    flush = torch.empty(2**26, device="cuda")  # 256 MB, several times the cache
    start = time.perf_counter()
    for layer in LAYERS:
        Problem.random(layer, 1).training(depthwise_conv2d)
    torch.cuda.synchronize()
    print(f"compiled in {time.perf_counter() - start:.1f} s (less when Triton finds its cache)")

    print(f"\nbatch {batch}, bfloat16, channels_last; ms and GB/s")
    columns = "   forward cuDNN        ours   ratio     + backward cuDNN        ours   ratio   errors y, dx, dw"
    print(f"{'layer':40s}{columns}")
    problems, totals, wrong = [], [0.0] * 4, []
    for layer in LAYERS:
        problem = Problem.random(layer, batch)
        problems.append(problem)
        found = errors(problem)
        if not all(error < TOLERANCE for error in found):
            wrong.append(layer)
        times = [
            milliseconds(partial(run, conv), flush)
            for run in (problem.inference, problem.training)
            for conv in (cudnn, depthwise_conv2d)
        ]
        totals = [total + layer.blocks * t for total, t in zip(totals, times, strict=True)]
        cells = []
        for part, moved in ((times[:2], problem.gigabytes()), (times[2:], 3 * problem.gigabytes())):
            cells.append("".join(f"{t:9.3f} {1000 * moved / t:5.0f}" for t in part) + f"{part[0] / part[1]:7.1f}x")
        print(f"{layer!s:40s}{'    '.join(cells)}   {', '.join(f'{error:.1e}' for error in found)}")
    print(f"{'all 13 layers, ms':40s}{totals[0]:9.3f}      {totals[1]:9.3f}      {totals[0] / totals[1]:7.1f}x", end="")
    print(f"    {totals[2]:9.3f}      {totals[3]:9.3f}      {totals[2] / totals[3]:7.1f}x")
    eager = [eager_milliseconds(problems, conv) for conv in (cudnn, depthwise_conv2d)]
    print(f"the same, launched from Python: cuDNN {eager[0]:.3f} ms, ours {eager[1]:.3f} ms")
    if wrong:
        raise SystemExit(f"WRONG: error above {TOLERANCE} for {', '.join(map(str, wrong))}")


def sweep(batch: int) -> None:
    """Time each kernel alone over all layers for other tile sizes; the settings in use come first."""
    flush = torch.empty(2**26, device="cuda")
    problems = [Problem.random(layer, batch) for layer in LAYERS]
    halves = tuple((h, w) for h, w in itertools.product((2, 4, 8, 16), (4, 8, 16, 32)) if h * w == 64)
    gathers = [
        {"TILES": tiles, "GATHER_WARPS": warps}
        for tiles, warps in ((depthwise.TILES, 8), (depthwise.TILES, 4), (halves, 8), (halves, 4))
    ]
    strips = [
        {"STRIP": strip, "ROWS": rows, "STRIP_WARPS": 4, "STRIP_REGISTERS": registers, "UNROLL": unroll}
        for strip, rows, registers, unroll in (
            (16, 14, 128, 2),
            (16, 14, 128, 1),
            (16, 14, 168, 2),
            (8, 14, 96, 2),
            (8, 28, 96, 2),
            (16, 7, 128, 1),
            (16, 28, 128, 2),
            (32, 14, 255, 1),
        )
    ]
    for name, needs_x, needs_weight, settings in (
        ("forward", False, False, gathers),
        ("forward + input gradient", True, False, gathers),
        ("forward + weight gradient", False, True, strips),
    ):
        print(f"\n{name}, ms for each layer once, then for all 13")
        for setting in settings:
            before = {key: getattr(depthwise, key) for key in setting}
            for key, value in setting.items():
                setattr(depthwise, key, value)
            times = []
            for problem in problems:
                wanted = [t for t, needed in ((problem.x, needs_x), (problem.weight, needs_weight)) if needed]
                problem.x.requires_grad_(needs_x)
                problem.weight.requires_grad_(needs_weight)

                def work(problem: Problem = problem, wanted: list[Tensor] = wanted) -> None:
                    y = problem.forward(depthwise_conv2d)
                    if wanted:
                        torch.autograd.grad(y, wanted, problem.y_grad)

                times.append(milliseconds(work, flush))
            for key, value in before.items():
                setattr(depthwise, key, value)
            total = sum(layer.blocks * t for layer, t in zip(LAYERS, times, strict=True))
            print(" ".join(f"{t:6.3f}" for t in times), f"= {total:6.3f}  ", setting)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--sweep", action="store_true", help="try other tile sizes")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() or depthwise.triton is None:
        raise SystemExit("This benchmark needs a GPU and triton.")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", depthwise.triton.__version__)
    with own_kernels():
        (sweep if arguments.sweep else compare)(arguments.batch)
