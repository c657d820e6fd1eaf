"""Try to break fdcnet: damaged and hostile inputs for every reader, flipped bits, links, kills. `make soak` runs it.

Each row is bounded by a number of tries and by seconds, and is merged into results/reliability.json. A failure is an
exception that is not a message for the user, a result from damaged input where damage must be noticed, more than
10 seconds, or more than 1 GB of memory for one try.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fdcnet.config import load, parse_overrides
from fdcnet.data.cache import PixelCache
from fdcnet.data.decode import BadImage, decode
from fdcnet.data.records import Record
from fdcnet.data.sources import read
from fdcnet.data.synthetic import make_synthetic
from fdcnet.errors import UserError
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State
from fdcnet.models.network import new_network
from fdcnet.store.bundle import load_bundle, save_bundle
from fdcnet.store.description import seal
from fdcnet.store.record import commit
from fdcnet.store.versions import add_version, rollback, versions, writing
from fdcnet.training.checkpoint import Position, read_checkpoint, save_checkpoint

RESULTS = Path(__file__).parents[1] / "results" / "reliability.json"
MAX_SECONDS, MAX_GROWTH_MB = 10.0, 1000
TOKENS = (
    *(
        b"9" * 400,
        b"-1",
        b"0",
        b"1e999",
        b"nan",
        b"null",
        b"[]",
        b"{}",
        b'"',
        b"'",
        b"\\",
        b"\0",
        b"\xff\xfe",
        b"\x1b[",
    ),
    *(
        b"../../",
        b"/etc/passwd",
        b",,,,",
        b"\n\n",
        b"\t",
        b"&a *a",
        b"!!int ''",
        b"2001-99-99",
        b"[" * 500,
        b"<a>",
        b"&lt;",
    ),
    *("é²\u202e".encode(), b"true", b"<?xml encoding='x'?>", b"%", b";", b":", b"- "),
)
SMALL = (
    *("model.backbone=tiny", "model.weights=none", "model.head_width=16", "data.size=40", "data.crop=32", "device=cpu"),
    *("data.base_classes=2", "data.step_classes=2", "train.base_epochs=2", "train.step_epochs=2", "drift.epochs=2"),
    *("train.batch_size=4", "memory.budget=9", "train.checkpoint_minutes=0"),
)


@dataclass
class Row:
    name: str
    tries: int = 0
    failures: int = 0
    examples: list[str] = field(default_factory=list)

    def fail(self, what: str) -> None:
        self.failures += 1
        if len(self.examples) < 5:
            self.examples.append(what)


Target = tuple[list[Path], Callable[[], object]]
Make = Callable[[Path, random.Random], Target]


def mutate(content: bytes, chance: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        place = chance.randrange(len(data) + 1)
        kind = chance.randrange(6)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[place:place] = chance.choice(TOKENS)
        elif kind == 2:
            del data[place : place + chance.choice((1, 4, 64))]
        elif kind == 3:
            data[place:place] = data[place : place + chance.choice((4, 64, 1024))]
        elif kind == 4:
            end = place + chance.choice((1, 8))
            data[place:end] = chance.choice(TOKENS)
        elif chance.random() < 0.2:
            del data[place:]
    return bytes(data)


def fuzz(name: str, make: Make, tries: int, seconds: float) -> Row:
    row, chance, started = Row(name), random.Random(name), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fdcnet-soak-") as folder:
        files, call = make(Path(folder), chance)
        originals = {file: file.read_bytes() for file in files}
        while row.tries < tries and time.monotonic() - started < seconds:
            file = chance.choice(files)
            content = mutate(originals[file], chance)
            file.write_bytes(content)
            attempt(row, call, lambda file=file, content=content: f"{file.name}: {content[:300]!r}")
            file.write_bytes(originals[file])
    return row


def attempt(row: Row, call: Callable[[], object], describe: Callable[[], str]) -> bool:
    """Whether the call returned normally."""
    row.tries += 1
    before, started = _peak_mb(), time.process_time()
    done = False
    try:
        call()
        done = True
    except (UserError, BadImage):
        pass
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        row.fail(
            f"{type(error).__name__}: {str(error)[:200]} at {Path(where.filename).name}:{where.lineno} {describe()}"
        )
    if time.process_time() - started > MAX_SECONDS:
        row.fail(f"{time.process_time() - started:.0f} s {describe()}")
    if _peak_mb() - before > MAX_GROWTH_MB:
        row.fail(f"{_peak_mb() - before:.0f} MB {describe()}")
    return done


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _photo(path: Path, grey: int = 90) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (60, 50), (grey, 20, 30)).save(path)
    return path


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def images(root: Path, chance: random.Random) -> Target:
    noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    files = []
    for suffix, options in (
        *(("jpg", {}), ("png", {}), ("webp", {}), ("bmp", {}), ("gif", {}), ("tif", {})),
        *(("tiff", {"compression": "tiff_lzw"}), ("jpeg", {"progressive": True}), ("avif", {})),
    ):
        files.append(root / f"photo.{suffix}")
        Image.fromarray(noise).save(files[-1], **options)
    Image.fromarray(noise[:, :, 0].astype(np.uint16) * 257).save(root / "deep.tif")
    files.append(root / "deep.tif")
    return files, lambda: [decode(file.read_bytes(), 32) for file in files if file.stat().st_mtime_ns > seen(file)]


_times: dict[Path, int] = {}


def seen(file: Path) -> int:
    """The time stamp at the last look: only the file that was changed is decoded."""
    last = _times.get(file, 0)
    _times[file] = file.stat().st_mtime_ns
    return last


def csv_list(root: Path, chance: random.Random) -> Target:
    _photo(root / "a.jpg"), _photo(root / "b.jpg")
    text = (
        "path,label,x0,y0,x1,y1,split\na.jpg,cat,1,2,30,40,train\nb.jpg,dog,1,2,30,40,train\na.jpg,cat,3,4,9,9,train\n"
    )
    return [_write(root / "photos.csv", text)], lambda: read(root)


def boxes_csv(root: Path, chance: random.Random) -> Target:
    _photo(root / "cat/a.jpg"), _photo(root / "dog/b.jpg")
    return [_write(root / "boxes.csv", "path,x0,y0,x1,y1\ncat/a.jpg,1,2,30,40\ndog/b.jpg,0,0,9,9\n")], lambda: read(
        root
    )


def coco(root: Path, chance: random.Random) -> Target:
    _photo(root / "a.jpg"), _photo(root / "b.jpg")
    document = {
        "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}],
        "annotations": [
            {"id": i, "image_id": i, "category_id": i, "bbox": [1, 2, 30, 40], "iscrowd": 0} for i in (1, 2)
        ],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    }
    return [_write(root / "coco.json", json.dumps(document))], lambda: read(root / "coco.json")


def voc(root: Path, chance: random.Random) -> Target:
    _photo(root / "cat/a.jpg"), _photo(root / "dog/b.jpg")
    text = (
        "<?xml version='1.0' encoding='utf-8'?><annotation><object><name>cat</name><bndbox><xmin>1</xmin>"
        "<ymin>2</ymin><xmax>30</xmax><ymax>40</ymax></bndbox></object></annotation>"
    )
    return [_write(root / "cat/a.xml", text)], lambda: read(root)


def cub(root: Path, chance: random.Random) -> Target:
    for name in ("001.A/a.jpg", "001.A/b.jpg", "002.B/c.jpg"):
        _photo(root / "images" / name)
    texts = {
        "images.txt": "1 001.A/a.jpg\n2 001.A/b.jpg\n3 002.B/c.jpg\n",
        "image_class_labels.txt": "1 1\n2 1\n3 2\n",
        "train_test_split.txt": "1 1\n2 0\n3 1\n",
        "bounding_boxes.txt": "1 1.0 2.0 30.0 40.0\n2 1.0 2.0 30.0 40.0\n3 1.0 2.0 30.0 40.0\n",
        "classes.txt": "1 001.A\n2 002.B\n",
    }
    return [_write(root / name, text) for name, text in texts.items()], lambda: read(root, "cub")


def wsol(root: Path, chance: random.Random) -> Target:
    files = []
    for split in ("train", "test"):
        for name in ("a/1.jpg", "b/2.jpg"):
            _photo(root / "images" / name)
        files += [
            _write(root / split / "image_ids.txt", "a/1.jpg\nb/2.jpg\n"),
            _write(root / split / "class_labels.txt", "a/1.jpg,0\nb/2.jpg,1\n"),
            _write(root / split / "localization.txt", "a/1.jpg,1,2,30,40\nb/2.jpg,1,2,30,40\n"),
        ]
    return files, lambda: read(root, "wsol")


def imagenet(root: Path, chance: random.Random) -> Target:
    for wnid in ("n00000001", "n00000002"):
        _photo(root / "train" / wnid / f"{wnid}_1.jpg")
    _photo(root / "val/ILSVRC2012_val_00000001.JPEG")
    text = "ImageId,PredictionString\nILSVRC2012_val_00000001,n00000001 1 2 30 40 n00000001 3 4 9 9\n"
    train = "ImageId,PredictionString\nn00000001_1,n00000001 1 2 30 40\n"
    files = [_write(root / "LOC_val_solution.csv", text), _write(root / "LOC_train_solution.csv", train)]
    return files, lambda: read(root, "imagenet")


def yolo(root: Path, chance: random.Random) -> Target:
    _photo(root / "images/a.jpg"), _photo(root / "images/b.jpg")
    files = [
        _write(root / "labels/a.txt", "0 0.5 0.5 0.2 0.2\n"),
        _write(root / "labels/b.txt", "1 0.1 0.1 0.5 0.1 0.5 0.5\n"),
        _write(root / "data.yaml", "train: images\nval: images\nnames:\n  0: cat\n  1: dog\n"),
    ]
    return files, lambda: read(root, "yolo")


def recipe(root: Path, chance: random.Random) -> Target:
    text = (
        "method: fdcnet\nseed: 3\ndata: {path: synthetic, size: 256}\ntrain:\n  batch_size: 32\n  optim: {lr: 0.01}\n"
        "protocols:\n  - &a {map: class, crops: 2}\n  - <<: *a\n    map: topk-mean\n"
    )
    return [_write(root / "recipe.yaml", text)], lambda: load(root / "recipe.yaml")


def setting(root: Path, chance: random.Random) -> Target:
    file = root / "setting"
    file.write_text("train.optim.lr=0.01")

    def call() -> None:
        text = file.read_bytes().decode("utf-8", "surrogateescape")
        parse_overrides([text])
        load(None, [text])

    return [file], call


def _state() -> State:
    config = load(None, SMALL, method="baseline")
    network = new_network(config.model, 7)
    network.grow(2)
    photos = torch.randint(0, 256, (3, 40, 40, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    memory = ExemplarMemory(9)
    memory.add(0, photos[:2], ["a.jpg", "b.jpg"])
    held_out = PixelCache((Record(Path("c.jpg"), "a"),), torch.tensor([[40, 40]]), photos[2:])
    return State(
        config, network.eval(), memory, ["a", "b"], [2], held_out=held_out, photo_history={"00": True, "11": False}
    )


def _forged(bundle: Path) -> None:
    """Half of the mutations come with valid checksums, as from somebody who means harm."""
    try:
        seal(bundle, json.loads((bundle / "fdcnet.json").read_bytes()))
    except Exception:
        return


def _bundle_part(name: str) -> Make:
    def make(root: Path, chance: random.Random) -> Target:
        bundle = root / "model"
        save_bundle(_state(), bundle, {"version": 1, "parent": None, "created": "2026-01-01T00:00:00+00:00"})
        description = (bundle / "fdcnet.json").read_bytes()

        def call() -> None:
            try:
                if chance.random() < 0.5:
                    _forged(bundle)
                load_bundle(bundle)
                versions(bundle)
            finally:
                if name != "fdcnet.json":
                    (bundle / "fdcnet.json").write_bytes(description)

        return [bundle / name], call

    return make


def checkpoint(root: Path, chance: random.Random) -> Target:
    save_checkpoint(root, Position(1, 0, 2), torch.nn.Linear(4, 3), {"weight": torch.ones(3, 4)})
    return [root / "checkpoint.safetensors"], lambda: read_checkpoint(root)


def flips(tries: int, seconds: float) -> Row:
    """Single flipped bits in every kind of file: each must be refused."""
    row, chance, started = Row("bit-flips"), random.Random("flips"), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fdcnet-soak-") as folder:
        bundle = Path(folder) / "model"
        save_bundle(_state(), bundle, {"version": 1, "parent": None, "created": "2026-01-01T00:00:00+00:00"})
        saved = Path(folder) / "run"
        save_checkpoint(saved, Position(1, 0, 2), torch.nn.Linear(4, 3), {"weight": torch.ones(3, 4)})
        files = sorted(file for file in bundle.rglob("*") if file.is_file())
        files.append(saved / "checkpoint.safetensors")

        def call() -> None:
            load_bundle(bundle)
            versions(bundle)
            read_checkpoint(saved)

        while row.tries < tries and time.monotonic() - started < seconds:
            file = files[row.tries % len(files)]
            content = file.read_bytes()
            place, bit = chance.randrange(len(content)), chance.randrange(8)
            file.write_bytes(content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :])
            if attempt(row, call, lambda file=file: file.name):
                row.fail(f"accepted: {file.name} byte {place} bit {bit}")
            file.write_bytes(content)
    return row


def links(tries: int, seconds: float) -> Row:
    """Each path of a model as a link: nothing that it points to may change or be copied."""
    row = Row("hostile-links")
    with tempfile.TemporaryDirectory(prefix="fdcnet-soak-") as folder:
        for versioned in (False, True):
            for name in _paths_of_a_model(Path(folder) / "sample", versioned):
                root = Path(folder) / "try"
                _try_link(row, root, name, versioned)
                shutil.rmtree(root)
    return row


def _new_model(path: Path, versioned: bool) -> None:
    if versioned:
        with writing(path):
            add_version(_state(), path, {}, 3)
    else:
        save_bundle(_state(), path)


def _paths_of_a_model(path: Path, versioned: bool) -> list[str]:
    _new_model(path, versioned)
    names = [file.relative_to(path).as_posix() for file in sorted(path.rglob("*"))]
    shutil.rmtree(path)
    return [*names, "lock", "unfinished", "versions/9", "versions/9.new", "memory/extra", "versions"]


def _try_link(row: Row, root: Path, name: str, versioned: bool) -> None:
    model, outside = root / "model", root / "outside"
    _new_model(model, versioned)
    target = outside / "target"
    target.parent.mkdir()
    link = model / name
    if link.exists():
        shutil.move(link, target)
    else:
        _write(target / "2019" / "photo.jpg", "precious")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    before = _contents(outside)

    def learn() -> None:
        with writing(model):
            add_version(_state(), model, {}, 0)

    for call in (lambda: load_bundle(model), lambda: rollback(model, 1), learn):
        attempt(row, call, lambda: name)
        if _contents(outside) != before:
            row.fail(f"changed what {name} points to")
        if any(b"precious" in file.read_bytes() for file in model.rglob("photo.jpg") if not file.is_symlink()):
            row.fail(f"copied what {name} points to")


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def kill_train(tries: int, seconds: float) -> Row:
    """SIGKILL at a random moment, then --resume until it is done: the weights must be the same to the last bit."""
    row, chance, started = Row("kill-train"), random.Random("kill-train"), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fdcnet-soak-") as folder:
        root = Path(folder)
        make_synthetic(root / "photos", num_classes=4, train_per_class=6, test_per_class=2, size=40)
        settings = [word for text in SMALL for word in ("--set", text)]
        command = [sys.executable, "-m", "fdcnet", "train", str(root / "photos"), "--method", "fdcnet", *settings]
        environment = os.environ | {"FDCNET_CACHE": str(root / "cache")}
        begun = time.monotonic()
        subprocess.run([*command, "--out", str(root / "whole")], env=environment, check=True, capture_output=True)
        length = time.monotonic() - begun
        wanted = (root / "whole/model/weights.safetensors").read_bytes()
        while row.tries < tries and time.monotonic() - started < seconds:
            run = root / f"run-{row.tries}"
            row.tries += 1
            for resume in ([], ["--resume"]):
                process = subprocess.Popen(
                    [*command, "--out", str(run), *resume],
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
                try:
                    _, said = process.communicate(timeout=None if resume else chance.uniform(0.3, 1.0) * length)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.communicate()
                    continue
                if process.returncode not in (0, -9) and not (resume and b"is complete" in said):
                    row.fail(said.decode()[-300:])
            if (run / "model/weights.safetensors").read_bytes() != wanted:
                row.fail(f"try {row.tries}: other weights")
            shutil.rmtree(run)
    return row


FUZZED: dict[str, Make] = {
    "images": images,
    "csv": csv_list,
    "boxes.csv": boxes_csv,
    "coco": coco,
    "voc": voc,
    "cub": cub,
    "wsol": wsol,
    "imagenet": imagenet,
    "yolo": yolo,
    "recipe": recipe,
    "set": setting,
    "bundle-json": _bundle_part("fdcnet.json"),
    "safetensors": _bundle_part("weights.safetensors"),
    "manifest": _bundle_part("memory/manifest.jsonl"),
    "learned-json": _bundle_part("learned.json"),
    "checkpoint": checkpoint,
}
OTHERS: dict[str, tuple[Callable[[int, float], Row], int]] = {
    "bit-flips": (flips, 1000),
    "hostile-links": (links, 1),
    "kill-train": (kill_train, 120),
}


def rows(wanted: str | None) -> Iterator[str]:
    names = [*(f"fuzz-{name}" for name in FUZZED), *OTHERS]
    if wanted and wanted not in names:
        sys.exit(f"There is no row {wanted}. Choose one of: {', '.join(names)}.")
    yield from [wanted] if wanted else names


def merge(row: Row, seconds: float) -> None:
    report: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"rows": []}
    kept = [other for other in report["rows"] if other["name"] != row.name]
    facts = {"name": row.name, "tries": row.tries, "failures": row.failures, "seconds": round(seconds, 1)}
    report["rows"] = sorted([*kept, facts | {"commit": commit()}], key=lambda other: other["name"])
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", help="run one row only")
    parser.add_argument("--tries", type=int, help="instead of 50,000 (readers), 1,000 (flips) or 120 (kills)")
    parser.add_argument("--seconds", type=float, default=1800, help="limit for each row")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Pillow warns about damaged metadata
    failures = 0
    for name in rows(options.row or None):
        started = time.monotonic()
        if name in OTHERS:
            run, tries = OTHERS[name]
            row = run(options.tries or tries, options.seconds)
        else:
            row = fuzz(name, FUZZED[name.removeprefix("fuzz-")], options.tries or 50_000, options.seconds)
        seconds = time.monotonic() - started
        merge(row, seconds)
        print(f"{row.name}: {row.tries} tries, {row.failures} failures, {seconds:.0f} s", flush=True)
        for example in row.examples:
            print(f"  {example}", flush=True)
        failures += row.failures
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
