"""Each layer of a backbone with our Triton kernels against PyTorch's, on one GPU: recorded, and launched from Python.

    python benchmarks/kernels.py [--backbones mobilenet_v1 inception_v3] [--batches 64 256]

A layer is a convolution with its batch norm and activation, forward and backward, in bfloat16 and channels last.
Training uses our kernels only in recorded steps. The last row is the whole network in evaluation (not recorded).
Without a GPU both ways are PyTorch's, which checks the script only.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

from fdcnet.config import load
from fdcnet.models.backbones.base import ConvUnit
from fdcnet.models.kernels import own_kernels
from fdcnet.models.network import LocalizationNetwork, new_network

REPEATS = 5
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbones", nargs="+", default=["mobilenet_v1", "inception_v3"])
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--side", type=int, default=224)
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    for backbone in arguments.backbones:
        config = load(None, [f"model.backbone={backbone}", "model.weights=none"], method="finetune")
        network = new_network(config.model, 0).to(DEVICE, memory_format=torch.channels_last)  # type: ignore[call-overload]
        network.grow(1)
        for batch in arguments.batches:
            compare(network, backbone, batch, arguments.side)


def compare(network: LocalizationNetwork, backbone: str, batch: int, side: int) -> None:
    print(
        f"\n{backbone}, batch {batch}: milliseconds of PyTorch's kernels and ours, and how many times faster ours are"
    )
    print(f"{'layer':58s}{'recorded':>26s}{'from Python':>26s}")
    totals = Counter[str]()
    for name, (unit, shape, times) in layers(network, side).items():
        unit.train()
        x = torch.randn(batch, *shape, device=DEVICE).to(torch.bfloat16, memory_format=torch.channels_last)
        x.requires_grad_()

        def step(unit: nn.Module = unit, x: Tensor = x) -> None:
            with torch.autocast(DEVICE.type, torch.bfloat16, cache_enabled=False):
                y = unit(x)
            torch.autograd.grad(y, [x, *unit.parameters()], torch.ones_like(y))

        found = timed_both(step)
        print_row(f"{times} x {name}", found)
        for way, milliseconds in found.items():
            totals[way] += times * milliseconds
    print_row("all layers", totals)
    images = torch.randn(batch, 3, side, side, device=DEVICE).to(memory_format=torch.channels_last)
    network.eval()

    @torch.inference_mode()
    def evaluate() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            network(images, maps=False)

    print_row("whole network, evaluation", timed_both(evaluate))


def layers(network: LocalizationNetwork, side: int) -> dict[str, tuple[ConvUnit, tuple[int, ...], int]]:
    """Different layers only: description -> (unit, input shape without batch, how many there are)"""
    found: dict[str, tuple[ConvUnit, tuple[int, ...], int]] = {}

    def note(unit: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        assert isinstance(unit, ConvUnit)
        conv, shape = unit.conv, tuple(inputs[0].shape[1:])
        kind = "depthwise" if unit.depthwise else f"{conv.in_channels} to"
        name = f"{kind} {conv.out_channels}, {conv.kernel_size}, stride {conv.stride[0]}, dilation {conv.dilation[0]}"
        name += f", side {shape[1]}"
        found[name] = unit, shape, found[name][2] + 1 if name in found else 1

    hooks = [unit.register_forward_hook(note) for unit in network.modules() if isinstance(unit, ConvUnit)]
    with torch.inference_mode():
        network.eval()(torch.zeros(1, 3, side, side, device=DEVICE), maps=False)
    for hook in hooks:
        hook.remove()
    return found


def timed_both(work: Callable[[], None]) -> dict[str, float]:
    """Milliseconds by way: recorded and launched from Python, each with PyTorch's kernels and with ours."""
    found = {}
    for kernels, own in (("PyTorch", False), ("ours", True)):
        with own_kernels(own):
            found[f"{kernels}, recorded"] = milliseconds(recorded(work))
            found[f"{kernels}, from Python"] = milliseconds(work)
    return found


def recorded(work: Callable[[], None]) -> Callable[[], None]:
    if DEVICE.type != "cuda":
        return work
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def milliseconds(work: Callable[[], None]) -> float:
    """Median, by the clock on the wall, of ten calls in a row."""
    calls, repeats = (10, REPEATS) if DEVICE.type == "cuda" else (1, 1)
    times = []
    for _ in range(1 + repeats):
        synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            work()
        synchronize()
        times.append(1000 * (time.perf_counter() - started) / calls)
    return median(times[1:])


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def print_row(name: str, found: dict[str, float]) -> None:
    cells = []
    for way in ("recorded", "from Python"):
        theirs, ours = found[f"PyTorch, {way}"], found[f"ours, {way}"]
        cells.append(f"{theirs:9.3f}{ours:9.3f}{theirs / ours:7.2f}x")
    print(f"{name:58s}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
