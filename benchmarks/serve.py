"""Latency of predictions by the server, idle and during a lesson, against the library in the same run.

    python benchmarks/serve.py MODEL PHOTOS/ NEW_PHOTOS/

    python benchmarks/serve.py MODEL PHOTOS/ --workers 1 2 [--engines torch onnx] [--clients 4]

Prints the milliseconds from sending a photo to the answer with its map, median and slowest. The lesson on NEW_PHOTOS
(a folder per class) is cancelled afterwards, so MODEL stays unchanged. With --workers: photos per second for several
clients at once, a server for each number of workers and each engine, in turns. Run it with OMP_WAIT_POLICY=passive.
"""

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from fdcnet.data.sources.files import listing
from fdcnet.inference.localizer import Localizer

WARM_UP = 10
ROUNDS = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("new", type=Path, nargs="?")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--workers", type=int, nargs="+")
    parser.add_argument("--engines", nargs="+", default=["torch"])
    parser.add_argument("--clients", type=int, default=4)
    arguments = parser.parse_args()
    photos = [path.read_bytes() for path in listing(arguments.photos, deep=True).images[: arguments.repeats]]
    if arguments.workers:
        throughput(photos, arguments)
    else:
        latency(photos, arguments)


def latency(photos: list[bytes], arguments: argparse.Namespace) -> None:
    localizer = Localizer.load(arguments.model)
    report("library", photos, arguments.repeats, lambda photo: localizer.predict(photo).to_dict(heat=True))

    with serving(arguments.model) as client:
        report("server", photos, arguments.repeats, lambda photo: predict(client, photo))
        start_lesson(client, arguments.new)
        report("server during a lesson", photos, arguments.repeats, lambda photo: predict(client, photo))
        client.delete("api/lesson")


def throughput(photos: list[bytes], arguments: argparse.Namespace) -> None:
    kinds = list(itertools.product(arguments.workers, arguments.engines))
    rates: dict[tuple[int, str], list[float]] = {kind: [] for kind in kinds}
    if "onnx" in arguments.engines:
        Localizer.load(arguments.model, "cpu", "onnx")  # so that no server has to export it
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(serving(arguments.model, *kind)) for kind in kinds}
        pool = stack.enter_context(ThreadPoolExecutor(arguments.clients))
        for _ in range(1 + ROUNDS):  # the first one warms up
            for kind, client in servers.items():
                started = time.perf_counter()
                list(pool.map(predict, [client] * len(photos), photos))
                rates[kind].append(len(photos) / (time.perf_counter() - started))
    for (num, engine), found in rates.items():
        print(
            f"{num} workers, {engine}, {arguments.clients} clients: {statistics.median(found[1:]):.1f} photos/s "
            f"({min(found[1:]):.1f} to {max(found[1:]):.1f})"
        )


@contextmanager
def serving(model: Path, num_workers: int = 1, engine: str = "torch") -> Iterator[httpx.Client]:
    command = [sys.executable, "-m", "fdcnet", "serve", str(model), "--port", "0", "--workers", str(num_workers)]
    command += ["--engine", engine, *(["--device", "cpu"] if engine == "onnx" else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        link = server.stdout.readline().strip()
        try:
            with httpx.Client(base_url=link.partition("?")[0], timeout=120) as client:
                client.get(link)  # the token becomes a cookie
                yield client
        finally:
            server.terminate()


def predict(client: httpx.Client, photo: bytes) -> object:
    return client.post("api/predict?heat=true", content=photo).raise_for_status().json()


def start_lesson(client: httpx.Client, folder: Path) -> None:
    """Returns after the first epoch."""
    fields: list[tuple[str, tuple[str | None, bytes | str]]] = []
    for own in sorted(path for path in folder.iterdir() if path.is_dir()):
        fields.append(("class", (None, own.name)))
        fields += [("photo", (path.name, path.read_bytes())) for path in listing(own, deep=True).images]
    client.post("api/lesson", files=fields).raise_for_status()
    while not (lesson := client.get("api/lesson").json())["epochs"]:
        assert lesson["state"] == "learning", lesson
        time.sleep(1)


def report(name: str, photos: list[bytes], repeats: int, work: Callable[[bytes], object]) -> None:
    milliseconds = []
    for photo in itertools.islice(itertools.cycle(photos), WARM_UP + repeats):
        started = time.perf_counter()
        work(photo)
        milliseconds.append(1000 * (time.perf_counter() - started))
    kept = milliseconds[WARM_UP:]
    print(f"{name}: {statistics.median(kept):.0f} ms, slowest {max(kept):.0f} ms")


if __name__ == "__main__":
    main()
