"""Training steps per second on one GPU: our kernels against PyTorch's and cuDNN's, and the share of the GPU's peak.

    python benchmarks/training.py [--backbones mobilenet_v1 inception_v3] [--batch 64] [--profile]

The limit in the same run is a large bfloat16 matrix product: a step's arithmetic at that rate is the floor.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from fdcnet.config import Config, ModelConfig
from fdcnet.data.records import Batch
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State
from fdcnet.methods.finetune import Finetune
from fdcnet.models.kernels import depthwise, norm
from fdcnet.models.network import new_network
from fdcnet.training.optim import make_optimizer

CLASSES = 200
OURS = {"none": (), "depthwise": (depthwise,), "depthwise and norm": (depthwise, norm)}


def backward_flops(gradient, x, weight, *rest, **_) -> int:
    """Each of the two gradients costs what the forward pass does. (PyTorch's own count takes groups for dense.)"""
    wanted = rest[-1]
    return sum(wanted[:2]) * conv_flop_count(x, weight, gradient)


BACKWARD = {torch.ops.aten.convolution_backward: backward_flops}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbones", nargs="+", default=["mobilenet_v1", "inception_v3"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    peak = matmul_rate()
    print(f"matrix product: {peak / 1e12:.0f} TFLOP/s")
    for backbone in arguments.backbones:
        rates = {}
        for name, modules in OURS.items():
            step = make_step(backbone, arguments.batch)
            with only_in(modules):
                if not rates:
                    with FlopCounterMode(display=False, custom_mapping=BACKWARD) as counter:
                        step()
                    flops = counter.get_total_flops() / arguments.batch
                rates[name] = images_per_second(step, arguments.batch, arguments.steps)
                if arguments.profile:
                    print_profile(step)
            share = rates[name] * flops / peak
            ratio = rates[name] / rates["none"]
            speed = f"{rates[name]:.0f} images/s, {ratio:.2f}x, {100 * share:.0f} % of the limit"
            print(f"{backbone}, own kernels: {name}: {speed}")


def make_step(backbone: str, batch: int):
    config = Config(model=ModelConfig(backbone=backbone, weights="none"))
    network = new_network(config.model, 0)
    network.grow(CLASSES)
    network.to("cuda", memory_format=torch.channels_last).train()
    state = State(config, network, ExemplarMemory(0))
    [phase] = Finetune().phases(state, FakeTask())  # type: ignore[arg-type]
    optimizer = make_optimizer(phase)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, (batch,), device="cuda")
    data = Batch(images, labels, labels < 0)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            total = torch.stack(list(phase.losses(data).values())).sum()
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        optimizer.step()

    return step


class FakeTask:
    number = 1
    num_old = 0


@contextmanager
def only_in(modules: tuple[ModuleType, ...]) -> Iterator[None]:
    """Our kernels in these modules alone."""
    kept = {module: module._triton_can for module in (depthwise, norm)}
    for module in kept.keys() - set(modules):
        module._triton_can = lambda *_: False
    try:
        yield
    finally:
        for module, can in kept.items():
            module._triton_can = can


def images_per_second(step, batch: int, steps: int) -> float:
    for _ in range(8):
        step()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return steps * batch / (time.perf_counter() - started)


def matmul_rate(side: int = 8192, repeats: int = 10) -> float:
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        a @ b
    torch.cuda.synchronize()
    return repeats * 2 * side**3 / (time.perf_counter() - started)


def print_profile(step) -> None:
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    print(profiler.key_averages().table(sort_by="cuda_time_total", row_limit=25, max_name_column_width=90))


if __name__ == "__main__":
    main()
