"""Training speed on one GPU: recorded steps and our kernels against plain PyTorch, and the share of the GPU's peak.

    python benchmarks/training.py [--batch 64] [--json results/performance.json]

Each row is a ratio to a peer in the same run. The peer is plain PyTorch: bfloat16, channels last, data on the GPU, one
kernel after the other.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch

from fdcnet.config import load
from fdcnet.data.records import Batch, Task
from fdcnet.memory import ExemplarMemory
from fdcnet.methods import find_method
from fdcnet.methods.base import State
from fdcnet.models.kernels import depthwise, norm
from fdcnet.models.network import new_network
from fdcnet.store.record import commit
from fdcnet.training import optim
from fdcnet.training.step import RecordedStep, Step

OWN = (depthwise, norm)
WAYS = {"PyTorch": (Step, ()), "our kernels": (Step, OWN), "our kernels, recorded": (RecordedStep, OWN)}
ROWS = {
    "step_fdcnet_b{batch}": ("fdcnet", "mobilenet_v1"),
    "step_finetune_b{batch}": ("finetune", "mobilenet_v1"),
    "step_inception_fdcnet": ("fdcnet", "inception_v3"),
}
OLD, NEW = 180, 20  # classes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    rows = []
    for name, (method, backbone) in ROWS.items():
        rates = {}
        for way, (kind, modules) in WAYS.items():
            with only_in(modules):
                rates[way] = photos_per_second(method, backbone, arguments.batch, kind)
            print(f"{method}, {backbone}, batch {arguments.batch}, {way}: {rates[way]:.0f} photos/s", flush=True)
        value, peer = rates["our kernels, recorded"], rates["PyTorch"]
        rows.append(row(name.format(batch=arguments.batch), value, peer))
    if arguments.json:
        merge(arguments.json, rows)


def row(name: str, value: float, peer_value: float) -> dict[str, object]:
    return {
        "name": name,
        "value": round(value),
        "unit": "photos/s",
        "peer": "PyTorch, bf16, channels last, not recorded",
        "peer_value": round(peer_value),
        "ratio": round(value / peer_value, 2),
        "device": torch.cuda.get_device_name(),
        "commit": commit(),
        "command": f"python {' '.join(sys.argv)}",
    }


def merge(file: Path, rows: list[dict[str, object]]) -> None:
    """Replace the rows of these names, and keep the others."""
    present = json.loads(file.read_text())["rows"] if file.exists() else []
    names = {row["name"] for row in rows}
    kept = [row for row in present if row["name"] not in names]
    file.write_text(json.dumps({"rows": [*kept, *rows]}, indent=1) + "\n")


def photos_per_second(method_name: str, backbone: str, batch: int, kind: type[Step]) -> float:
    """Of the first phase of a later task, with random photos on the GPU."""
    overrides = [f"model.backbone={backbone}", "model.weights=none", f"train.batch_size={batch}"]
    config = load(None, overrides, method=method_name)
    network = new_network(config.model, 0)
    network.grow(OLD)
    network.to("cuda", memory_format=torch.channels_last)
    state, task = State(config, network, ExemplarMemory(2000)), Task(2, tuple(map(str, range(NEW))), OLD, (), ())
    method = find_method(method_name)()
    method.begin_task(state, task)
    network.to("cuda", memory_format=torch.channels_last)
    phase = method.phases(state, task)[0]
    for module in phase.training:
        module.train()
    autocast = torch.autocast("cuda", torch.bfloat16)
    optimizer = optim.make_optimizer(phase)
    step = kind(optimizer, autocast, 1000) if kind is RecordedStep else kind(optimizer, autocast)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(OLD + NEW, (batch,), device="cuda")
    data, num_steps = Batch(images, labels, labels < OLD), 30
    started = 0.0
    for number in range(8 + num_steps):
        if number == 8:
            torch.cuda.synchronize()
            started = time.perf_counter()
        optim.set_rate(optimizer, 0.0)
        step(phase, data, 0.1)
    torch.cuda.synchronize()
    return num_steps * batch / (time.perf_counter() - started)


@contextmanager
def only_in(modules: tuple[ModuleType, ...]) -> Iterator[None]:
    """Use our kernels in these modules only."""
    kept = {module: module._triton_can for module in OWN}
    for module in set(OWN) - set(modules):
        module._triton_can = lambda *_: False
    try:
        yield
    finally:
        for module, can in kept.items():
            module._triton_can = can


if __name__ == "__main__":
    main()
