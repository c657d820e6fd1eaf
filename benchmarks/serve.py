"""Latency of predictions by the server, idle and during a lesson, against the library in the same run.

    python benchmarks/serve.py MODEL PHOTOS/ NEW_PHOTOS/

Prints the milliseconds from sending a photo to the answer with its map, median and slowest. The lesson on NEW_PHOTOS
(a folder per class) is cancelled afterwards, so MODEL stays unchanged. Run it with OMP_WAIT_POLICY=passive.
"""

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from fdcnet.data.sources.files import listing
from fdcnet.inference.localizer import Localizer

WARM_UP = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--repeats", type=int, default=30)
    arguments = parser.parse_args()
    photos = [path.read_bytes() for path in listing(arguments.photos, deep=True).images[: arguments.repeats]]
    localizer = Localizer.load(arguments.model)
    report("library", photos, arguments.repeats, lambda photo: localizer.predict(photo).to_dict(heat=True))

    command = [sys.executable, "-m", "fdcnet", "serve", str(arguments.model), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            measure(server.stdout.readline().strip(), photos, arguments)
        finally:
            server.terminate()


def measure(link: str, photos: list[bytes], arguments: argparse.Namespace) -> None:
    with httpx.Client(base_url=link.partition("?")[0], timeout=120) as client:
        client.get(link)  # the token becomes a cookie

        def predict(photo: bytes) -> object:
            return client.post("api/predict?heat=true", content=photo).raise_for_status().json()

        report("server", photos, arguments.repeats, predict)
        start_lesson(client, arguments.new)
        report("server during a lesson", photos, arguments.repeats, predict)
        client.delete("api/lesson")


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
