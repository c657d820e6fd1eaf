"""Training speed: recorded steps and our kernels against plain PyTorch, a public-style loop and an earlier commit.

    python benchmarks/training.py [--rows NAME ...] [--batch 64] [--json results/performance.json]
    python benchmarks/training.py --rows run_cub_fdcnet --peer CHECKOUT_OF_1ac9fca --data CUB_200_2011 [--json ...]

Each row is a ratio to a peer in the same run. Plain PyTorch means: bfloat16, channels last, data on the GPU, one kernel
after the other. `--tiny` checks the script itself on a CPU; its numbers mean nothing and are not written.
"""

import argparse
import copy
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rows import Row, made, merge
from scale import device, generated, synchronize
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from fdcnet.config import load
from fdcnet.data.batches import Batches, epoch_indices
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Batch, Record, Task
from fdcnet.data.synthetic import make_synthetic
from fdcnet.memory import ExemplarMemory
from fdcnet.methods import find_method
from fdcnet.methods.base import Phase, State
from fdcnet.models.kernels import own_kernels
from fdcnet.models.network import new_network
from fdcnet.runtime.device import autocast_for
from fdcnet.training import optim
from fdcnet.training.step import RecordedStep, Step

OLD, NEW = 180, 20  # classes
WARM_UP, STEPS = 8, 30
MEAN, STD = (127.0,) * 3, (60.0,) * 3
EPOCHS = ("train.base_epochs=25", "train.step_epochs=12", "drift.epochs=5")  # of the run that is timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=sorted(ROWS), default=[name for name in ROWS if name != RUN])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--peer", type=Path, help="checkout of the commit to compare a whole run with")
    parser.add_argument("--data", type=Path, default=Path("data/CUB_200_2011"))
    parser.add_argument("--tiny", action="store_true", help="small numbers everywhere, to test the script")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    if arguments.tiny:
        arguments.batch = 2
    elif not torch.cuda.is_available():
        raise SystemExit("These rows need a GPU. --tiny checks the script without one.")
    for name in arguments.rows:
        row = ROWS[name](name, arguments)
        print(row, flush=True)
        if arguments.json and not arguments.tiny:
            merge(arguments.json, [row | made(device())])


def row_of(name: str, value: float, unit: str, peer: str, peer_value: float, ratio: float) -> Row:
    values = {"value": round(value, 1), "unit": unit, "peer": peer, "peer_value": round(peer_value, 1)}
    return {"name": name, **values, "ratio": round(ratio, 2)}


# --- steps ---


def against_pytorch(method: str, backbone: str) -> Callable[[str, argparse.Namespace], Row]:
    def measure(name: str, arguments: argparse.Namespace) -> Row:
        rates = {}
        for way, kind, own in (
            ("PyTorch", Step, False),
            ("our kernels", Step, True),
            ("our kernels, recorded", RecordedStep, True),
        ):
            with own_kernels(own):
                rates[way] = photos_per_second(phase_of(method, backbone, OLD, arguments), OLD, kind, arguments)
            print(f"{method}, {backbone}, batch {arguments.batch}, {way}: {rates[way]:.0f} photos/s", flush=True)
        value, peer = rates["our kernels, recorded"], rates["PyTorch"]
        name = name.replace("b64", f"b{arguments.batch}")
        return row_of(name, value, "photos/s", "PyTorch, bf16, channels last, not recorded", peer, value / peer)

    return measure


def more_classes(name: str, arguments: argparse.Namespace) -> Row:
    milliseconds = {}
    for num in (100, 1000):
        phase = phase_of("fdcnet", "mobilenet_v1", num - NEW, arguments)
        rate = photos_per_second(phase, num - NEW, RecordedStep, arguments)
        milliseconds[num] = 1000 * arguments.batch / rate
    ratio = milliseconds[1000] / milliseconds[100]
    return row_of(name, milliseconds[1000], "ms per step", "100 classes", milliseconds[100], ratio)


def state_of(method_name: str, backbone: str, num_old: int, arguments: argparse.Namespace) -> tuple[State, list[Phase]]:
    """A later task with random weights, and its phases."""
    overrides = [f"model.backbone={'tiny' if arguments.tiny else backbone}", "model.weights=none"]
    overrides += ["model.head_width=16"] if arguments.tiny else []
    config = load(None, overrides, method=method_name)
    network = new_network(config.model, 0)
    network.grow(num_old)
    state = State(config, network.to(device()), ExemplarMemory(2000))
    task = Task(2, tuple(map(str, range(NEW))), num_old, (), ())
    method = find_method(method_name)()
    method.begin_task(state, task)
    network.to(device())
    return state, method.phases(state, task)


def phase_of(method_name: str, backbone: str, num_old: int, arguments: argparse.Namespace) -> Phase:
    state, phases = state_of(method_name, backbone, num_old, arguments)
    for network in (state.network, state.previous):
        if network is not None:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return phases[0]


def photos_per_second(phase: Phase, num_old: int, kind: type[Step], arguments: argparse.Namespace) -> float:
    """With random photos that are ready on the device."""
    side = 64 if arguments.tiny else 224
    images = torch.randn(arguments.batch, 3, side, side, device=device()).to(memory_format=torch.channels_last)
    labels = torch.randint(num_old + NEW, (arguments.batch,), device=device())
    steps = 1 + 2 if arguments.tiny else WARM_UP + STEPS
    return rate_of(phase, [Batch(images, labels, labels < num_old)] * steps, kind, "auto", arguments)


def rate_of(
    phase: Phase, batches: Iterable[Batch], kind: type[Step], precision: str, arguments: argparse.Namespace
) -> float:
    """Photos per second after the first steps."""
    for module in phase.training:
        module.train()
    optimizer, autocast = optim.make_optimizer(phase), autocast_for(device(), precision)
    recorded = kind is RecordedStep and torch.cuda.is_available()
    step = RecordedStep(optimizer, autocast, 1000) if recorded else Step(optimizer, autocast)
    warm_up, started, num = (1 if arguments.tiny else WARM_UP), 0.0, 0
    for number, batch in enumerate(batches):
        if number == warm_up:
            synchronize()
            started = time.perf_counter()
        optim.set_rate(optimizer, 0.0)
        step(phase, batch, 0.1)
        num += len(batch.labels) if number >= warm_up else 0
    synchronize()
    return num / (time.perf_counter() - started)


# --- a loop in the style of the public code ---


class PhotoFiles(TorchDataset[tuple[Tensor, int]]):
    """Decodes, resizes, crops and flips one photo at a time."""

    def __init__(self, records: list[Record], side: int, crop: int) -> None:
        self.records, self.side, self.crop = records, side, crop

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        with Image.open(self.records[row].path) as image:
            pixels = np.asarray(image.convert("RGB").resize((self.side, self.side), Image.Resampling.BILINEAR))
        top, left = torch.randint(self.side - self.crop + 1, (2,)).tolist()
        part = torch.from_numpy(pixels[top : top + self.crop, left : left + self.crop].copy()).permute(2, 0, 1)
        photo = (part.float() - MEAN[0]) / STD[0]
        return photo.flip(2) if torch.rand(()) < 0.5 else photo, int(self.records[row].label)


def public_style(name: str, arguments: argparse.Namespace) -> Row:
    """Files in a DataLoader, eager float32, a loop over samples for their class's map, and a deep copy per batch."""
    side, crop, stored = (72, 64, 80) if arguments.tiny else (256, 224, 500)
    steps = 1 + 2 if arguments.tiny else WARM_UP + STEPS
    with tempfile.TemporaryDirectory() as folder:
        records = generated(Path(folder) / "photos", steps * arguments.batch, stored)
        state, phases = state_of("fdcnet", "mobilenet_v1", OLD, arguments)
        method = find_method("fdcnet")()

        def losses(batch: Batch) -> dict[str, Tensor]:
            outputs = state.network(batch.images)  # the maps of all classes
            maps = [outputs.loc_map[row, label] for row, label in enumerate(batch.labels.tolist())]
            copy.deepcopy(state.network.classifier)  # which the erased features go through
            return method.losses(state, replace(outputs, loc_map=torch.stack(maps)[:, None]), batch)

        loader = DataLoader(
            PhotoFiles(records, side, crop), arguments.batch, shuffle=True, num_workers=os.cpu_count() or 1
        )
        batches = (
            Batch(images.to(device()), labels.to(device()), (labels < OLD).to(device()))
            for images, labels in islice(loader, steps)
        )
        public = rate_of(replace(phases[0], losses=losses), batches, Step, "fp32", arguments)

        cache = PixelCache.build(records, side, None, device())
        labels = torch.tensor([int(record.label) for record in cache.records])
        order = epoch_indices(len(cache), arguments.batch, (0,), True)
        epoch = Batches(cache.pixels, labels, labels < OLD, order, crop, True, (0,), MEAN, STD, device())
        ours = rate_of(phase_of("fdcnet", "mobilenet_v1", OLD, arguments), epoch, RecordedStep, "auto", arguments)
    return row_of(name, ours, "photos/s", "public-style loop: files in a DataLoader, eager fp32", public, ours / public)


# --- a whole run ---


def whole_run(name: str, arguments: argparse.Namespace) -> Row:
    """The same recipe, at this commit and at another one that is checked out in `--peer`."""
    if arguments.peer is None:
        raise SystemExit("Name a checkout of the other commit: --peer PATH")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.tiny:
            make_synthetic(Path(folder) / "photos", num_classes=4, train_per_class=6, test_per_class=3, size=40)
            arguments.data = Path(folder) / "photos"
        peer, own = (
            seconds_of_run(root.resolve(), Path(folder) / kind, arguments)
            for kind, root in (("peer", arguments.peer), ("own", Path(__file__).parents[1]))
        )
    return row_of(name, own, "s", f"the same recipe at {arguments.peer.name}", peer, peer / own)


def seconds_of_run(root: Path, out: Path, arguments: argparse.Namespace) -> float:
    recipe = next(root.rglob("cub200-mobilenet_v1-fdcnet.yaml"))
    overrides: tuple[str, ...] = EPOCHS
    if arguments.tiny:
        overrides = ("train.base_epochs=1", "train.step_epochs=1", "drift.epochs=1", "data.format=auto", "data.size=40")
        overrides += ("data.crop=32", "model.backbone=tiny", "model.weights=none", "model.head_width=16")
        overrides += ("train.batch_size=4", "data.base_classes=2", "data.step_classes=2")
    command = [sys.executable, "-m", "fdcnet", "train", str(arguments.data.resolve()), "-r", str(recipe)]
    command += ["--out", str(out), *(part for override in overrides for part in ("--set", override))]
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "FDCNET_CACHE": str(out.parent / f"cache-{out.name}")}
    started = time.perf_counter()
    subprocess.run(command, env=environment, cwd=root, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


RUN = "run_cub_fdcnet"
ROWS: dict[str, Callable[[str, argparse.Namespace], Row]] = {
    "step_fdcnet_b64": against_pytorch("fdcnet", "mobilenet_v1"),
    "step_finetune_b64": against_pytorch("finetune", "mobilenet_v1"),
    "step_inception_fdcnet": against_pytorch("fdcnet", "inception_v3"),
    "classes_1000_over_100": more_classes,
    "step_fdcnet_public": public_style,
    RUN: whole_run,
}


if __name__ == "__main__":
    main()
