"""How close a training step comes to what the GPU can do, and which kernels take its time.

    python benchmarks/ceiling.py [--backbone mobilenet_v1] [--batch 64] [--json results/performance.json]

The ceilings are measured in the same run: a large bfloat16 matrix product (FLOP/s) and a large copy (bytes/s). The
work of a step is counted from plain PyTorch: FLOP of products and convolutions, and the bytes that convolutions and
norms must read and write. The ceiling that asks for more time binds. `--tiny` checks the script itself on a CPU.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from rows import Row, made, merge
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from fdcnet.data.records import Batch
from fdcnet.methods.base import Phase
from fdcnet.models.kernels import own_kernels
from fdcnet.runtime.device import autocast_for, device_name
from fdcnet.training import optim
from fdcnet.training.step import RecordedStep, Step
from training import OLD, phase_of, photos_per_second, synchronize

COUNTED = ("convolution", "batch_norm", "layer_norm", "addmm", "mm", "bmm")
KINDS = {  # by parts of kernel names, the first that fits
    "our depthwise convolutions": ("gather_kernel", "weight_grad_kernel"),
    "our norms": ("sums_kernel", "statistics_kernel", "forward_kernel", "backward_kernel"),
    "convolutions and products": ("conv", "gemm", "cutlass", "xmma", "wgrad", "dgrad", "nvjet", "sm90", "cudnn"),
    "norms": ("norm",),
    "copies": ("copy", "memcpy", "memset", "cat"),
    "optimizer": ("multi_tensor", "foreach"),
    "reductions": ("reduce",),
    "elementwise": ("elementwise",),
}
REPLAYS = 20


class Traffic(TorchDispatchMode):
    """Counts the bytes of the inputs and outputs of convolutions, norms and products."""

    num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if any(part in func.name() for part in COUNTED):
            self.num += sum(tensor.nbytes for tensor in tensors([args, found]))
        return found


def tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fdcnet")
    parser.add_argument("--backbone", default="mobilenet_v1")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tiny", action="store_true", help="small numbers everywhere, to test the script")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.batch = 2 if options.tiny else options.batch
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    flops, num_bytes = ceilings(device, options.tiny)
    work, traffic = work_of(phase_of(options.method, options.backbone, OLD, options), options, device)
    seconds = options.batch / photos_per_second(
        phase_of(options.method, options.backbone, OLD, options), OLD, RecordedStep, options
    )
    least = {"FLOP/s": work / flops, "bytes/s": traffic / num_bytes}
    binding = max(least, key=lambda kind: least[kind])
    print(f"ceilings: {flops / 1e12:.0f} TFLOP/s, {num_bytes / 1e12:.2f} TB/s")
    print(f"a step: {work / 1e9:.0f} GFLOP, {traffic / 1e9:.2f} GB, {1000 * seconds:.2f} ms")
    print({kind: f"{1000 * own:.2f} ms" for kind, own in least.items()}, flush=True)
    row: Row = {
        "name": f"ceiling_{options.method}_{options.backbone}_b{options.batch}",
        "value": round(1000 * seconds, 2),
        "unit": "ms per step",
        "peer": f"the GPU's {binding}, measured in the same run",
        "peer_value": round(1000 * least[binding], 2),
        "ratio": round(least[binding] / seconds, 3),
        **{f"least_ms_by_{kind.split('/')[0]}": round(1000 * own, 2) for kind, own in least.items()},
    }
    print(row, flush=True)
    if device.type == "cuda":
        print_profile(phase_of(options.method, options.backbone, OLD, options), options, device)
    if options.json and not options.tiny:
        merge(options.json, [row | made(device)])


def ceilings(device: torch.device, tiny: bool) -> tuple[float, float]:
    """-> FLOP/s of a bfloat16 product, bytes/s of a copy (read and written)"""
    side, length = (64, 10**5) if tiny else (8192, 2 * 10**9)
    a = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    source = torch.empty(length, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * side**3 / fastest(lambda: a @ a), 2 * length / fastest(lambda: target.copy_(source))


def fastest(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(10):
        synchronize()
        started = time.perf_counter()
        work()
        synchronize()
        times.append(time.perf_counter() - started)
    return min(times)


def work_of(phase: Phase, options: argparse.Namespace, device: torch.device) -> tuple[float, float]:
    """-> FLOP and bytes of a step"""
    batch = random_batch(options, device)
    for module in phase.training:
        module.train()
    with own_kernels(False), FlopCounterMode(display=False) as counter, Traffic() as traffic:
        Step(optim.make_optimizer(phase), autocast_for(device, "auto"))(phase, batch, 0.1)
    return float(counter.get_total_flops()), float(traffic.num)


def random_batch(options: argparse.Namespace, device: torch.device) -> Batch:
    side = 64 if options.tiny else 224
    images = torch.randn(options.batch, 3, side, side, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(OLD, (options.batch,), device=device)
    return Batch(images, labels, labels < OLD // 2)


def print_profile(phase: Phase, options: argparse.Namespace, device: torch.device) -> None:
    """Milliseconds of a recorded step by kind of kernel, and the kernels that take longest."""
    batch, optimizer = random_batch(options, device), optim.make_optimizer(phase)
    step = RecordedStep(optimizer, autocast_for(device, "auto"), 1000)
    for module in phase.training:
        module.train()
    for _ in range(8):
        step(phase, batch, 0.1)
    synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPLAYS):
            step(phase, batch, 0.1)
        synchronize()
    own = {
        event.key: event.self_device_time_total / 1000 / REPLAYS
        for event in profiler.key_averages()
        if event.device_type == DeviceType.CUDA
    }
    by_kind = Counter[str]()
    for name, milliseconds in own.items():
        by_kind[kind_of(name)] += milliseconds
    print(f"\n{device_name(device)}, {options.backbone}, batch {options.batch}: ms per step by kind of kernel")
    for kind, milliseconds in by_kind.most_common():
        print(f"{milliseconds:8.3f}  {kind}")
    for name, milliseconds in sorted(own.items(), key=lambda item: -item[1])[:25]:
        print(f"{milliseconds:8.3f}  {kind_of(name):26s} {name[:100]}")


def kind_of(kernel: str) -> str:
    return next((kind for kind, parts in KINDS.items() if any(part in kernel.lower() for part in parts)), "other")


if __name__ == "__main__":
    main()
