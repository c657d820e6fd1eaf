"""From a photo's file to its box, against the bare network in the same run.

    python benchmarks/predict.py PHOTOS/ [--model runs/NAME/model] [--backbone mobilenet_v1] [--classes 200]
    python benchmarks/predict.py PHOTOS/ --onnx [--backbone ...] [--json results/scale.json]

One photo: decoding, network, box, in milliseconds, and as a multiple of the network alone. A folder: photos per second,
as a share of what the network alone does on batches that are ready. Without --model a network of that backbone stands
for one: the values of its weights do not change the time. Start it with OMP_WAIT_POLICY=passive.

`--onnx` compares the network alone in PyTorch and, exported, in ONNX Runtime, in turns, with equally many threads.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from rows import made, merge

from fdcnet.config import load
from fdcnet.data.sources.files import listing
from fdcnet.inference.export import export_onnx
from fdcnet.inference.localizer import BATCH, Localizer
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
    parser.add_argument("--onnx", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    localizer = Localizer.load(arguments.model, arguments.device) if arguments.model else untaught(arguments)
    photos = list(itertools.islice(itertools.cycle(listing(arguments.photos, deep=True).images), arguments.folder))
    batch = BATCH[localizer.device.type]
    print(f"{localizer.state.config.model.backbone}, {len(localizer.classes)} classes, {localizer.device}")
    if arguments.onnx:
        compare_onnx(localizer, arguments)
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


def compare_onnx(localizer: Localizer, arguments: argparse.Namespace) -> None:
    """Scores and the maps of all classes of one photo, on the CPU."""
    pixels = np.random.default_rng(0).integers(0, 256, (1, localizer.side, localizer.side, 3), np.uint8)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "model.onnx"
        save_bundle(localizer.state, Path(name) / "model")
        export_onnx(Path(name) / "model", file)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # as with OMP_WAIT_POLICY=passive
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    ways: dict[str, Callable[[], object]] = {
        "PyTorch": forward(localizer, 1),
        "ONNX Runtime": lambda: session.run(None, {"photos": pixels}),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}  # wall and CPU
    for _ in range(3 + arguments.repeats):
        for name, call in ways.items():
            started = time.process_time()
            times[name].append((seconds(call), time.process_time() - started))
    [torch_ms, torch_cpu], [onnx_ms, onnx_cpu] = (
        [1000 * statistics.median(kind) for kind in zip(*times[name][3:], strict=True)] for name in ways
    )
    print(f"PyTorch {torch_ms:.1f} ms, ONNX Runtime {onnx_ms:.1f} ms, median of {arguments.repeats}: ", end="")
    print(f"{torch_ms / onnx_ms:.2f} x as fast, with {torch_cpu / onnx_cpu:.2f} x less CPU time")
    if arguments.json:
        backbone = localizer.state.config.model.backbone
        row = {
            "name": "predict_onnx_over_torch_cpu" + ("" if backbone == "efficientnet_lite0" else f"_{backbone}"),
            "value": round(onnx_ms, 1),
            "unit": "ms, network alone, one photo",
            "peer": "PyTorch, same number of threads, in turns",
            "peer_value": round(torch_ms, 1),
            "ratio": round(torch_ms / onnx_ms, 2),
            "ratio_of_cpu_time": round(torch_cpu / onnx_cpu, 2),
            "backbone": backbone,
        }
        merge(arguments.json, [row | made(localizer.device)])


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
