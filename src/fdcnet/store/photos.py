"""The photos inside a bundle: PNG files of the decoded pixels, and a manifest with one JSON object per line."""

import io
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fdcnet.data.cache import PixelCache
from fdcnet.data.records import BoxXYXY, Record
from fdcnet.memory import ExemplarMemory
from fdcnet.store.description import has_file, read_file

MEMORY, HELD_OUT = "memory", "held_out"
MAX_SIDE = 4096
MAX_BYTES = 2**30  # of decoded photos that compress far better than photos do
MAX_RATIO = 100


def write_memory(memory: ExemplarMemory, bundle: Path) -> None:
    entries: list[dict[str, Any]] = []
    photos: list[Tensor] = []
    for label, pixels in memory.pixels.items():
        for rank, name in enumerate(memory.names[label]):
            entries.append({"label": label, "rank": rank, "name": name})
            photos.append(pixels[rank])
    _write(bundle / MEMORY, entries, photos)


def read_memory(bundle: Path, description: dict[str, Any], memory: ExemplarMemory, size: int, num_classes: int) -> None:
    entries, images = _read(bundle, MEMORY, description, size)
    if not all(type(entry["label"]) is int and 0 <= entry["label"] < num_classes for entry in entries):
        raise ValueError("a photo has an unknown class")
    rows_of: dict[int, list[int]] = {}
    for row, entry in enumerate(entries):
        rows_of.setdefault(entry["label"], []).append(row)
    for label, own in rows_of.items():
        memory.add(label, torch.from_numpy(np.stack([images[i] for i in own])), [entries[i]["name"] for i in own])


def write_held_out(photos: PixelCache, bundle: Path) -> None:
    entries = [
        {"class": record.label, "name": record.path.name, "size": size, "boxes_xyxy": record.boxes_xyxy}
        for record, size in zip(photos.records, photos.sizes.tolist(), strict=True)
    ]
    _write(bundle / HELD_OUT, entries, [photo.cpu() for photo in photos.pixels])


def read_held_out(bundle: Path, description: dict[str, Any], size: int) -> PixelCache | None:
    if not has_file(bundle, f"{HELD_OUT}/manifest.jsonl", description):
        return None
    entries, images = _read(bundle, HELD_OUT, description, size)
    if not entries:
        return None
    records = tuple(
        Record(Path(entry["name"]), entry["class"], tuple(_box(*box) for box in entry["boxes_xyxy"]))
        for entry in entries
    )
    return PixelCache(records, torch.tensor([entry["size"] for entry in entries]), torch.from_numpy(np.stack(images)))


def _write(folder: Path, entries: Sequence[dict[str, Any]], photos: Sequence[Tensor]) -> None:
    (folder / "images").mkdir(parents=True)
    files = [f"{number:06d}.png" for number in range(len(entries))]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda file, photo: _write_png(folder / "images" / file, photo), files, photos))
    lines = [json.dumps(e | {"file": f}, ensure_ascii=False) + "\n" for e, f in zip(entries, files, strict=True)]
    # A file name that is not UTF-8 becomes an escape, which JSON reads back.
    (folder / "manifest.jsonl").write_text("".join(lines), encoding="utf-8", errors="backslashreplace")


def _write_png(file: Path, photo: Tensor) -> None:
    Image.fromarray(photo.numpy()).save(file, compress_level=1)


def _read(
    bundle: Path, folder: str, description: dict[str, Any], size: int
) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    text = read_file(bundle, f"{folder}/manifest.jsonl", description).decode("utf-8")
    entries = [json.loads(line) for line in text.split("\n") if line]  # not splitlines(): names may hold line ends
    names = [entry["file"] for entry in entries]
    if len(set(names)) < len(names):
        raise ValueError("its manifest names a photo twice")
    if not 0 < size <= MAX_SIDE:
        raise ValueError(f"photos of {size} x {size} pixels are too large")
    if not all(isinstance(name, str) and Path(name).name == name and "\\" not in name for name in names):
        raise ValueError("its manifest names a file outside of the model")
    stored = sum((bundle / folder / "images" / name).stat().st_size for name in names)
    if size * size * 3 * len(names) > max(MAX_BYTES, MAX_RATIO * stored):
        raise ValueError(f"{len(names)} photos of {size} x {size} pixels take too much memory")
    with ThreadPoolExecutor() as pool:
        paths = [f"{folder}/images/{name}" for name in names]
        return entries, list(pool.map(lambda path: _read_png(read_file(bundle, path, description), path, size), paths))


def _read_png(content: bytes, name: str, size: int) -> np.ndarray:
    """Accept only what `_write_png` writes: a bundle may come from anywhere."""
    with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
        if (image.mode, image.size) != ("RGB", (size, size)):
            raise ValueError(f"{name} is not a photo of {size} x {size} pixels")
        return np.array(image)


def _box(x0: float, y0: float, x1: float, y1: float) -> BoxXYXY:
    return float(x0), float(y0), float(x1), float(y1)
