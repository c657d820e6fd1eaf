"""From a photo's file to its box, against the bare network in the same run.

    python benchmarks/predict.py PHOTOS/ [--model runs/NAME/model] [--backbone mobilenet_v1] [--classes 200]
    python benchmarks/predict.py PHOTOS/ --engines [--backbone ...] [--json results/scale.json]

One photo: decoding, network, box, in milliseconds, and as a multiple of the network alone. A folder: photos per second,
as a share of what the network alone does on batches that are ready. Without --model a network of that backbone stands
for one: the values of its weights do not change the time. Start it with OMP_WAIT_POLICY=passive.

`--engines` compares PyTorch and ONNX Runtime on the CPU, in turns, with equally many threads: one photo in this
process, and the command `fdcnet predict` on the folder, with its peak memory.
"""

import argparse
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rows import Row, made, merge

from fdcnet.config import load
from fdcnet.data.sources.files import listing
from fdcnet.inference.localizer import Localizer, photos_at_a_time
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State
from fdcnet.models.network import new_network
from fdcnet.store.bundle import save_bundle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--backbone", default="mobilenet_v1")
    parser.add_argument("--weights", default="none")
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--folder", type=int, default=64, help="photos of the folder")
    parser.add_argument("--engines", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="runs of the command with each engine")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    localizer = Localizer.load(arguments.model, arguments.device) if arguments.model else untaught(arguments)
    photos = list(itertools.islice(itertools.cycle(listing(arguments.photos, deep=True).images), arguments.folder))
    batch = photos_at_a_time(localizer.device)
    print(f"{localizer.state.config.model.backbone}, {len(localizer.classes)} classes, {localizer.device}")
    if arguments.engines:
        rows = compare_engines(localizer, photos, arguments)
        if arguments.json:
            merge(arguments.json, [row | made(localizer.device) for row in rows])
        return

    one, bare = [], []
    forward_one = forward(localizer, 1)
    for i in range(arguments.repeats + 3):  # in turns, so that a busy machine slows both
        one.append(seconds(lambda i=i: localizer.predict(photos[i % len(photos)])))
        bare.append(seconds(forward_one))
    whole, network = statistics.median(one[3:]), statistics.median(bare[3:])
    print(f"one photo: {1000 * whole:.0f} ms, {whole / network:.2f} x the network alone ({1000 * network:.0f} ms)")
    print(f"  at best: {1000 * min(one):.0f} ms, {min(one) / min(bare):.2f} x ({1000 * min(bare):.0f} ms)")

    forward_batch, shares, rates = forward(localizer, batch), [], []
    for _ in range(3):
        alone = seconds(lambda: [forward_batch() for _ in range(len(photos) // batch)]) / (len(photos) // batch * batch)
        streamed = seconds(lambda: list(localizer.predict_many(photos))) / len(photos)
        shares.append(alone / streamed)
        rates.append(1 / streamed)
    share = statistics.median(shares)
    print(f"a folder: {statistics.median(rates):.1f} photos/s, {100 * share:.0f} % of the network's own rate")
    print(f"  at best: {max(rates):.1f} photos/s")


def compare_engines(localizer: Localizer, photos: list[Path], arguments: argparse.Namespace) -> list[Row]:
    backbone = localizer.state.config.model.backbone
    suffix = "" if backbone == "efficientnet_lite0" else f"_{backbone}"
    with tempfile.TemporaryDirectory() as name:
        os.environ["FDCNET_CACHE"] = str(Path(name) / "cache")
        model, folder = Path(name) / "model", Path(name) / "photos"
        save_bundle(localizer.state, model)
        folder.mkdir()
        for number, photo in enumerate(photos):
            shutil.copy(photo, folder / f"{number}{photo.suffix}")
        export = seconds(lambda: Localizer.load(model, "cpu", "onnx"))
        runs: dict[str, list[tuple[float, float, float]]] = {"torch": [], "onnx": []}
        for _ in range(arguments.rounds):
            for engine, found in runs.items():
                found.append(command(model, folder, engine))
        localizers = {engine: Localizer.load(model, "cpu", engine) for engine in runs}
    times: dict[str, list[tuple[float, float]]] = {engine: [] for engine in localizers}
    for i in range(3 + arguments.repeats):
        for engine, own in localizers.items():
            started = time.process_time()
            wall = seconds(lambda own=own, i=i: own.predict(photos[i % len(photos)]))
            times[engine].append((1000 * wall, 1000 * (time.process_time() - started)))
    rows = [
        row(f"predict_onnx_over_torch_cpu{suffix}", "ms, one photo, from file to box", medians(times, 3)),
        row(f"predict_{len(photos)}_onnx_over_torch_cpu{suffix}", "seconds, `fdcnet predict`", medians(runs)),
    ]
    rows[1] |= {"export_seconds": round(export, 1)}
    return [facts | {"backbone": backbone} for facts in rows]


def command(model: Path, photos: Path, engine: str) -> tuple[float, float, float]:
    """-> wall and CPU seconds, and the peak memory in MB"""
    words = ["predict", str(model), str(photos), "--device", "cpu", "--engine", engine]
    started, peak = time.perf_counter(), 0.0
    process = subprocess.Popen([sys.executable, "-m", "fdcnet", *words], stdout=subprocess.DEVNULL)
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        peak = max(peak, peak_memory(process.pid))
        time.sleep(0.05)
    _, status, usage = ended
    assert status == 0
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, peak


def peak_memory(process: int) -> float:
    """MB so far. What the system reports at the end is not less than the memory of the parent."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return max((int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM")), default=0.0)


def medians(measured: dict[str, list[tuple[float, ...]]], warm_up: int = 0) -> dict[str, list[float]]:
    return {
        engine: [statistics.median(kind) for kind in zip(*found[warm_up:], strict=True)]
        for engine, found in measured.items()
    }


def row(name: str, unit: str, found: dict[str, list[float]]) -> Row:
    """`found`: wall time, CPU time and, where it was measured, memory of each engine."""
    (wall, cpu, *memory), (peer_wall, peer_cpu, *peer_memory) = found["onnx"], found["torch"]
    facts = {
        "name": name,
        "value": round(wall, 1),
        "unit": unit,
        "peer": "PyTorch, same number of threads, in turns",
        "peer_value": round(peer_wall, 1),
        "ratio": round(peer_wall / wall, 2),
        "cpu_time": round(cpu, 1),
        "peer_cpu_time": round(peer_cpu, 1),
        "ratio_of_cpu_time": round(peer_cpu / cpu, 2),
    }
    facts |= {"memory_mb": round(memory[0]), "peer_memory_mb": round(peer_memory[0])} if memory else {}
    facts |= {"load_average": round(os.getloadavg()[0], 1)}
    print(facts, flush=True)
    return facts


def untaught(arguments: argparse.Namespace) -> Localizer:
    overrides = [f"model.backbone={arguments.backbone}", f"model.weights={arguments.weights}"]
    config = load(None, overrides, method="baseline")
    network = new_network(config.model, 0)
    network.grow(arguments.classes)
    names = [f"class {i}" for i in range(arguments.classes)]
    return Localizer(State(config, network.eval(), ExemplarMemory(0), names, [arguments.classes]), arguments.device)


def forward(localizer: Localizer, num_photos: int) -> Callable[[], None]:
    """Scores and the maps of all classes, for images that lie ready."""
    images = torch.randn(num_photos, 3, localizer.side, localizer.side, device=localizer.device)
    if localizer.device.type == "cuda":
        images = images.to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def run() -> None:
        localizer.method.outputs(localizer.state, images).masks.amax().item()

    return run


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
