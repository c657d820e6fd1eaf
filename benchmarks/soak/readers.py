"""Damaged and hostile inputs for every reader: a valid file is mutated, read, and restored."""

import functools
import importlib.metadata
import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rows import Row, attempt, scratch

from fdcnet.config import load, parse_overrides
from fdcnet.data.decode import decode
from fdcnet.data.sources import read
from fdcnet.data.synthetic import make_synthetic
from fdcnet.memory import ExemplarMemory
from fdcnet.report.page import write_report
from fdcnet.runtime.listener import Listener
from fdcnet.store.bundle import load_bundle, save_bundle
from fdcnet.store.description import read_description, seal
from fdcnet.store.layout import reading
from fdcnet.store.photos import read_held_out, read_memory
from fdcnet.store.versions import versions
from fdcnet.training.checkpoint import Position, read_checkpoint, save_checkpoint
from fdcnet.training.run import train
from models import SMALL, new_state

# Most of the time of a try would be the search for plug-ins, which are always the same.
importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)

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
    with scratch() as folder:
        files, call = make(Path(folder), chance)
        originals = {file: file.read_bytes() for file in files}
        while row.tries < tries and time.monotonic() - started < seconds:
            file = chance.choice(files)
            content = mutate(originals[file], chance)
            file.write_bytes(content)
            attempt(row, call, lambda file=file, content=content: f"{file.name}: {content[:300]!r}")
            file.write_bytes(originals[file])
    return row


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
    originals = {file: file.read_bytes() for file in files}

    def call() -> None:
        for file, original in originals.items():
            if (content := file.read_bytes()) != original:
                decode(content, 32)

    return files, call


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


def _forged(bundle: Path) -> None:
    """Half of the mutations come with valid checksums, as from somebody who means harm."""
    try:
        seal(bundle, json.loads((bundle / "fdcnet.json").read_bytes()))
    except Exception:
        return


def _bundle_part(read_it: Callable[[Path], object], *names: str) -> Make:
    def make(root: Path, chance: random.Random) -> Target:
        bundle = root / "model"
        save_bundle(new_state(), bundle, {"version": 1, "parent": None, "created": "2026-01-01T00:00:00+00:00"})
        description = (bundle / "fdcnet.json").read_bytes()

        def call() -> None:
            try:
                if chance.random() < 0.5:
                    _forged(bundle)
                read_it(bundle)
            finally:
                if "fdcnet.json" not in names:
                    (bundle / "fdcnet.json").write_bytes(description)

        return [bundle / name for name in names], call

    return make


def _read_photos(bundle: Path) -> None:
    """What `load_bundle` does besides building the network, which would take most of the time."""
    description = read_description(bundle)
    with reading(bundle / "memory"):
        read_memory(bundle, description, ExemplarMemory(9), 40, 2)
    with reading(bundle / "held_out"):
        read_held_out(bundle, description, 40)


def report_json(root: Path, chance: random.Random) -> Target:
    photos = make_synthetic(root / "photos", num_classes=4, train_per_class=6, test_per_class=2, size=40)
    run = root / "run"
    train(load(None, SMALL, method="finetune"), photos, run, listener=Listener(), cache_dir=root / "cache")
    shutil.rmtree(run / "examples" / "images")  # without photos and tables a page takes a fraction of the time
    shutil.rmtree(run / "predictions")
    files = [*run.glob("*.json"), run / "metrics.jsonl", *run.glob("examples/*.json")]
    return files, lambda: write_report([run], root / "report.html")


def checkpoint(root: Path, chance: random.Random) -> Target:
    save_checkpoint(root, Position(1, 0, 2), torch.nn.Linear(4, 3), {"weight": torch.ones(3, 4)})
    return [root / "checkpoint.safetensors"], lambda: read_checkpoint(root)


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
    "bundle-json": _bundle_part(load_bundle, "fdcnet.json"),
    "safetensors": _bundle_part(lambda bundle: load_bundle(bundle, memory=False), "weights.safetensors"),
    "manifest": _bundle_part(_read_photos, "memory/manifest.jsonl", "held_out/manifest.jsonl"),
    "learned-json": _bundle_part(versions, "learned.json"),
    "checkpoint": checkpoint,
    "report-json": report_json,
}
