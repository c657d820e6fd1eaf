"""Many processes, many photos, many classes: what each costs, against the small case in the same run.

    PYTHONPATH=src python3 -u benchmarks/scale.py [--rows NAME ...] [--json results/scale.json]

On a GPU all rows take about three minutes. `--tiny` checks the script itself in a minute on a CPU; its numbers mean
nothing and are not written.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rows import Row, made, merge

from fdcnet.config import load
from fdcnet.data.batches import Batches, epoch_indices
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Batch, Record, Task
from fdcnet.data.synthetic import make_synthetic
from fdcnet.evaluation.measure import measure
from fdcnet.memory import ExemplarMemory
from fdcnet.methods import METHODS, find_method
from fdcnet.methods.base import Phase, State
from fdcnet.models.network import new_network
from fdcnet.models.shared_norm import share_statistics
from fdcnet.runtime import distributed
from fdcnet.runtime.device import autocast_for
from fdcnet.runtime.runtime import Runtime
from fdcnet.store.bundle import save_bundle
from fdcnet.training import optim
from fdcnet.training.step import RecordedStep, Step

WARM_UP = 8
UNIQUE = 2000  # generated photo files; each is decoded and stored many times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=sorted(ROWS), default=list(ROWS))
    parser.add_argument("--photos", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--backbone", default="mobilenet_v1", help="tiny: also narrow heads and small photos")
    parser.add_argument("--tiny", action="store_true", help="small numbers everywhere, to test the script")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--process", type=Path, help=argparse.SUPPRESS)  # one of two that torchrun has started
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    if arguments.tiny:
        arguments.photos, arguments.steps, arguments.batch, arguments.backbone = 600, 2, 4, "tiny"
    if arguments.process:
        shared_step(arguments)
        return
    rows: list[Row] = []
    for name in arguments.rows:
        started = time.perf_counter()
        found = ROWS[name](arguments)
        rows += [facts | made(device()) for facts in found]
        for facts in found:
            print(json.dumps(facts), f"({time.perf_counter() - started:.0f} s)", flush=True)
        if arguments.json and not arguments.tiny:
            merge(arguments.json, rows)


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


# --- several processes ---


def same_losses(arguments: argparse.Namespace) -> list[Row]:
    """Every method, on generated photos: the losses of two processes against those of one, on the CPU."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_synthetic(folder / "photos", num_classes=4, train_per_class=6, test_per_class=3, size=40)
        methods = ["fdcnet"] if arguments.tiny else sorted(METHODS)
        worst = 0.0
        for method in methods:
            for run, num in (("one", 1), ("two", 2)):
                train(folder, method, run, num)
            worst = max(worst, relative_difference(folder / "one" / method, folder / "two" / method))
            print(f"{method}: largest relative difference so far {worst:.1e}", flush=True)
    return [{"name": "ddp_2_equals_1", "value": worst, "unit": "largest relative difference of the losses of an epoch"}]


SHRUNK = "data.size=40 data.crop=32 model.backbone=tiny model.weights=none model.head_width=16 train.batch_size=4 "
SHRUNK += "drift.epochs=2 memory.budget=9 train.optim.lr=0.003"


def train(folder: Path, method: str, run: str, num_processes: int) -> None:
    overrides = [*SHRUNK.split(), f"model.classifier={find_method(method).classifier or 'linear'}"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
    command += ["-m", "fdcnet", "train", str(folder / "photos"), "--method", method, "--base", "2", "--step", "2"]
    command += ["--epochs", "2", "--device", "cpu", "--out", str(folder / run / method)]
    command += [part for override in overrides for part in ("--set", override)]
    environment = os.environ | {"FDCNET_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, capture_output=True)


def relative_difference(first: Path, second: Path) -> float:
    curves = [[json.loads(line)["losses"] for line in (run / "metrics.jsonl").open()] for run in (first, second)]
    pairs = [(a[name], b[name]) for a, b in zip(*curves, strict=True) for name in a]
    return max(abs(a - b) / max(abs(a), 1e-3) for a, b in pairs)


def overhead(arguments: argparse.Namespace) -> list[Row]:
    """The same batch by one process and by two on the same device, steps not recorded."""
    phase = phase_of("fdcnet", 180, 20, arguments)
    one = arguments.batch / seconds_per_step(arguments, phase, arguments.batch, 200, Step)
    torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "rate.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
        command += ["--process", str(out), "--steps", str(arguments.steps), "--batch", str(arguments.batch)]
        subprocess.run([*command, *(["--tiny"] if arguments.tiny else [])], check=True)
        shared = json.loads(out.read_text())
    return [
        {
            "name": "ddp_overhead_2_on_1_gpu",
            "value": round(shared["rate"], 1),
            "unit": "photos/s",
            "peer": "one process with the whole batch, steps not recorded",
            "peer_value": round(one, 1),
            "ratio": round(one / shared["rate"], 2),
            "gradient_megabytes": round(shared["megabytes"], 1),
        }
    ]


def shared_step(arguments: argparse.Namespace) -> None:
    """One of two processes."""
    own = distributed.join_processes(device())
    assert own.type == device().type
    half = arguments.batch // distributed.num_processes()
    phase = phase_of("fdcnet", 180, 20, arguments)
    for module in phase.training:
        share_statistics(module)
    step_time = seconds_per_step(arguments, phase, half, 200, Step, share=1 / distributed.num_processes())
    if distributed.is_first():
        megabytes = sum(parameter.numel() for parameter in phase.parameters.values()) * 4 / 1e6
        arguments.process.write_text(json.dumps({"rate": arguments.batch / step_time, "megabytes": megabytes}))
    distributed.wait_for_all()


def phase_of(method_name: str, num_old: int, num_new: int, arguments: argparse.Namespace) -> Phase:
    """The main phase of a later task, with random weights."""
    return later_task(method_name, num_old, num_new, arguments)[1][0]


def later_task(
    method_name: str, num_old: int, num_new: int, arguments: argparse.Namespace
) -> tuple[State, list[Phase]]:
    """A later task with random weights, and its phases."""
    config = load(None, [*overrides_of(arguments), f"memory.budget={num_old + num_new}"], method=method_name)
    network = new_network(config.model, 0)
    network.grow(num_old)
    network.to(device(), memory_format=torch.channels_last)  # type: ignore[call-overload]
    names = [str(label) for label in range(num_old + num_new)]
    state = State(config, network, ExemplarMemory(num_old + num_new), names, [num_old, num_new])
    task = Task(2, tuple(map(str, range(num_new))), num_old, (), ())
    method = find_method(method_name)()
    method.begin_task(state, task)
    network.to(device(), memory_format=torch.channels_last)  # type: ignore[call-overload]
    phases = method.phases(state, task)
    for phase in phases:
        for module in phase.training:
            module.train()
    return state, [replace(phase, warmup={}) for phase in phases]


def overrides_of(arguments: argparse.Namespace) -> list[str]:
    small = ["model.head_width=16", "data.crop=64"] if arguments.backbone == "tiny" else []
    return [f"model.backbone={arguments.backbone}", "model.weights=none", *small]


def seconds_per_step(
    arguments: argparse.Namespace, phase: Phase, num_photos: int, num_classes: int, kind: type[Step], share: float = 1.0
) -> float:
    """Of random photos that are ready."""
    side = 64 if arguments.backbone == "tiny" else 224
    images = torch.randn(num_photos, 3, side, side, device=device()).to(memory_format=torch.channels_last)
    labels = torch.randint(num_classes, (num_photos,), device=device())
    batch = Batch(images, labels, labels % 2 == 0, share)
    return timed(stepper(phase, kind), batch, arguments.steps)


def stepper(phase: Phase, kind: type[Step]) -> Callable[[Batch], None]:
    optimizer, autocast = optim.make_optimizer(phase), autocast_for(device(), "auto")
    recorded = kind is RecordedStep and torch.cuda.is_available()
    step = RecordedStep(optimizer, autocast, 1000) if recorded else Step(optimizer, autocast)

    def run(batch: Batch) -> None:
        optim.set_rate(optimizer, 0.5)
        step(phase, batch, 0.5)

    return run


def timed(run: Callable[[Batch], None], batch: Batch, num_steps: int) -> float:
    """Seconds per step."""
    for _ in range(WARM_UP if torch.cuda.is_available() else 1):
        run(batch)
    synchronize()
    started = time.perf_counter()
    for _ in range(num_steps):
        run(batch)
    synchronize()
    return (time.perf_counter() - started) / num_steps


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# --- many photos ---


def encoded(arguments: argparse.Namespace) -> list[Row]:
    """One epoch of photos that are stored as JPEG, against photos on the GPU. Also the disk that they take."""
    side, crop = (64, 64) if arguments.tiny else (256, 224)
    with tempfile.TemporaryDirectory() as name:
        started = time.perf_counter()
        records = generated(Path(name) / "photos", arguments.photos, side)
        os.environ["FDCNET_CACHE_GB"] = cache_limit(arguments.photos, side)
        cache = PixelCache.build(records, side, Path(name) / "cache", device())
        assert not isinstance(cache.pixels, torch.Tensor), "stored as raw pixels"
        stored = sum(file.stat().st_size for file in (Path(name) / "cache").glob("*.pixels"))
        print(f"cached in {time.perf_counter() - started:.0f} s", flush=True)
        raw = cache.pixels[: min(len(cache), 4096)].to(device())
        run = stepper(phase_of("finetune", 80, 20, arguments), RecordedStep)
        rates = {}
        for kind, pixels in (("raw", raw), ("encoded", cache.pixels)):
            num = len(pixels)
            labels = torch.arange(num) % 100
            steps = epoch_indices(num, arguments.batch, (0,), True)
            epoch = Batches(
                *(pixels, labels, labels < 80, steps, crop, True, (0,)), (127.0,) * 3, (60.0,) * 3, device()
            )
            rates[kind] = rate_of(epoch, run, arguments.batch)
    return [
        {"name": "cache_bytes_per_photo", "value": round(stored / arguments.photos), "unit": "bytes, generated photos"},
        {
            "name": "encoded_over_raw_step",
            "value": round(rates["encoded"]),
            "unit": "photos/s",
            "peer": "photos on the GPU as raw pixels",
            "peer_value": round(rates["raw"]),
            "ratio": round(rates["raw"] / rates["encoded"], 3),
            "cores": os.cpu_count(),
        },
    ]


def cache_limit(num_photos: int, side: int) -> str:
    """GB that hold only half of the raw pixels, so that photos are stored as JPEG."""
    return str(num_photos * side * side * 3 / 2e9)


def memory_of_run(arguments: argparse.Namespace) -> list[Row]:
    """Main memory of `fdcnet train` with FDCNet on two tasks, from reading the photos to the report."""
    with tempfile.TemporaryDirectory() as name, PeakMemory() as peak:
        folder, side = Path(name), 64 if arguments.tiny else 256
        for number, record in enumerate(generated(folder / "generated", arguments.photos, side)):
            part = "test" if number // 100 % 100 == 0 else "train"  # 1 % of each class
            link = folder / "photos" / part / record.label / f"{number}.jpg"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.hardlink_to(record.path)
        command = [sys.executable, "-m", "fdcnet", "train", str(folder / "photos"), "--method", "fdcnet", "--full"]
        command += ["--base", "80", "--step", "20", "--epochs", "1", "--out", str(folder / "run")]
        overrides = [*overrides_of(arguments), "drift.epochs=1", "protocols=[{crops: 1}]"]
        command += [part for override in overrides for part in ("--set", override)]
        limit = {"FDCNET_CACHE": str(folder / "cache"), "FDCNET_CACHE_GB": cache_limit(arguments.photos, side)}
        subprocess.run(command, env=os.environ | limit, check=True, stdout=subprocess.DEVNULL)
        seconds = json.loads((folder / "run" / "run.json").read_text())["seconds_by_phase"]
    return [
        {
            "name": "rss_peak_gb_200k",
            "value": round(peak.gigabytes, 2),
            "unit": f"GB at most, all processes of `fdcnet train`, {arguments.photos} photos",
            "without_files": round(peak.own_gigabytes, 2),
            "backbone": arguments.backbone,
            "seconds_by_phase": seconds,
        }
    ]


def rate_of(epoch: Batches, run: Callable[[Batch], None], batch_size: int) -> float:
    """Photos per second after the first steps."""
    started, num = time.perf_counter(), 0
    for number, batch in enumerate(epoch):
        if number == min(WARM_UP, len(epoch) - 1):
            synchronize()
            started = time.perf_counter()
        run(batch)
        num += number >= WARM_UP
    synchronize()
    return max(num, 1) * batch_size / (time.perf_counter() - started)


def generated(folder: Path, num: int, side: int) -> list[Record]:
    """Records of files that look like photos to JPEG: smooth parts, edges and some noise."""
    folder.mkdir()

    def write(number: int) -> Path:
        generator = np.random.default_rng(number)
        coarse = generator.integers(0, 256, (24, 24, 3), np.uint8)
        picture = np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)).astype(np.int16)
        noisy = picture + generator.integers(-12, 13, picture.shape, np.int16)
        path = folder / f"{number}.jpg"
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)
        return path

    with ThreadPoolExecutor() as pool:
        paths = list(pool.map(write, range(min(num, UNIQUE))))
    return [Record(paths[i % len(paths)], str(i % 100)) for i in range(num)]


class PeakMemory:
    """The largest sum over this process and its children, sampled twice a second. Shared memory is counted once."""

    gigabytes = own_gigabytes = 0.0

    @property
    def here(self) -> float:
        """GB on the GPU, or of main memory without one."""
        return torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else self.gigabytes

    def __enter__(self) -> "PeakMemory":
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(0.5):
            sizes = [memory_of(process) for process in family(os.getpid())]
            self.gigabytes = max(self.gigabytes, sum(size for size, _ in sizes))
            self.own_gigabytes = max(self.own_gigabytes, sum(size - cached for size, cached in sizes))


def family(process: int) -> Iterator[int]:
    yield process
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from family(int(child))


def memory_of(process: int) -> tuple[float, float]:
    """-> proportional size, and the part of it that is file cache, in GB"""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1e6 for line in lines if line.endswith("kB")}
    return sizes.get("Pss", 0.0), sizes.get("Pss_File", 0.0)


# --- many classes ---


def classes(arguments: argparse.Namespace) -> list[Row]:
    """Phases, saved model and evaluation with 10,000 classes against 100. A tenth of the classes is new."""
    many = 200 if arguments.tiny else 10_000
    costs = {num: costs_of(num, arguments) for num in (100, many)}

    def row(name: str, cost: str, unit: str, **facts: float) -> Row:
        value, peer = costs[many][cost], costs[100][cost]
        ratio = round(value / peer, 2)
        return {
            "name": name,
            "value": value,
            "unit": unit,
            "peer": "100 classes",
            "peer_value": peer,
            "ratio": ratio,
        } | facts

    step = f"ms per step of {arguments.batch} photos, {arguments.backbone}"
    parts = [
        ("step_10000_over_100_classes", "main_ms", step, ("main_gb", "main_parameters")),
        ("drift_step_10000_over_100_classes", "drift_ms", step, ("drift_gb", "drift_parameters")),
        ("bundle_10000_over_100_classes", "bundle_mb", "MB without exemplars", ()),
        ("evaluate_10000_over_100_classes", "evaluate_ms", "ms per photo, two protocols", ("evaluate_gb",)),
    ]
    return [row(name, cost, unit, **{fact: costs[many][fact] for fact in facts}) for name, cost, unit, facts in parts]


def costs_of(num: int, arguments: argparse.Namespace) -> dict[str, float]:
    costs: dict[str, float] = {}
    for number, name in enumerate(("main", "drift")):
        state, phases = later_task("fdcnet", num - num // 10, num // 10, arguments)
        with PeakMemory() as peak:
            seconds = seconds_per_step(arguments, phases[number], arguments.batch, num, RecordedStep)
        costs[f"{name}_ms"], costs[f"{name}_gb"] = round(1000 * seconds, 1), round(peak.here, 2)
        costs[f"{name}_parameters"] = sum(parameter.numel() for parameter in phases[number].parameters.values())
    with tempfile.TemporaryDirectory() as folder, PeakMemory() as peak:
        save_bundle(state, Path(folder) / "model")
        files = (Path(folder) / "model").rglob("*")
        costs["bundle_mb"] = round(sum(file.stat().st_size for file in files if file.is_file()) / 1e6, 1)
        photos = generated(Path(folder) / "photos", 4 * arguments.batch, 256)
        config, method = state.config, find_method("fdcnet")()
        runtime = Runtime(device(), autocast_for(device(), "auto"))
        cache = PixelCache.build(photos, config.data.size, None, device())
        protocols = [replace(config.protocols[0], classifier="head", compensated=kind) for kind in (True, False)]
        state.network.eval()
        started = time.perf_counter()
        measure(state, method, runtime, cache, protocols)
        costs["evaluate_ms"] = round(1000 * (time.perf_counter() - started) / len(photos), 1)
    costs["evaluate_gb"] = round(peak.here, 2)
    return costs


ROWS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "ddp_2_equals_1": same_losses,
    "ddp_overhead_2_on_1_gpu": overhead,
    "step_10000_over_100_classes": classes,
    "encoded_over_raw_step": encoded,
    "rss_peak_gb_200k": memory_of_run,
}


if __name__ == "__main__":
    main()
