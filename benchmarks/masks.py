"""Do masks hold their objects with few and with many classes and photos? `fdcnet train` with its defaults, over a grid.

    python benchmarks/masks.py --cub CUB_200_2011 --pets oxford_pets --jobs 2 --json results/masks/grid.json

37 classes are Pets, other numbers CUB-200. The backbone `tiny` has no pretrained weights and learns generated photos.
`--only` selects cells by their names. Cells that the JSON file already has are left out.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw
from PIL.Image import Resampling
from rows import Row, made, merge

import fdcnet
from fdcnet.data.records import Record
from fdcnet.runtime.device import find_device

PHOTOS = (5, 15, 30)
CLASSES = (2, 5, 15, 37, 200)
MANY = 1000  # classes of generated photos
BACKBONES = ("tiny", "mobilenet_v1", "efficientnet_lite0", "inception_v3")
TINY = ("data.size=72", "data.crop=64", "model.weights=none", "model.head_width=64")
GENERATED_SIDE, GENERATED_TEST = 96, 5  # pixels, and test photos of a class
MEASURES = ("gt_known", "gt_known_best", "best_threshold", "max_box_acc_v2", "top1_cls")


class Cell(NamedTuple):
    backbone: str
    num_classes: int
    num_photos: int  # of each class

    @property
    def name(self) -> str:
        return f"{self.backbone}, {self.num_classes} classes, {self.num_photos} photos of each"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cub", type=Path, required=True)
    parser.add_argument("--pets", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of cells")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    done = {row["name"] for row in json.loads(options.json.read_text())["rows"]} if options.json.exists() else set()
    cells = [cell for cell in grid() if cell.name not in done and any(part in f"{cell.name}," for part in options.only)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda cell: measure(cell, Path(folder), options), cells):
            print(row, flush=True)
            merge(options.json, [row | made(find_device(options.device))])


def grid() -> Iterator[Cell]:
    """Cheap cells first."""
    for num_classes in CLASSES:
        for num_photos in PHOTOS:
            yield from (Cell(backbone, num_classes, num_photos) for backbone in BACKBONES)
    yield Cell("tiny", MANY, PHOTOS[0])


def measure(cell: Cell, folder: Path, options: argparse.Namespace) -> Row:
    data, out = folder / f"{cell.name} data", folder / cell.name
    records = write_photos(cell, data, options)
    overrides = ["protocols=[{crops: 2, frame: image}]", *(TINY if cell.backbone == "tiny" else ())]
    command = [sys.executable, "-m", "fdcnet", "train", str(data), "--backbone", cell.backbone, "--out", str(out)]
    command += ["--device", options.device, *(word for override in overrides for word in ("--set", override))]
    started = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        return {"name": cell.name, "failed": ended.stderr.strip().splitlines()[-1]}
    [task] = json.loads((out / "results.json").read_text())["tasks"]
    return {
        "name": cell.name,
        **{measure: task[measure] for measure in MEASURES},
        "gt_known_of_whole_photos": round(100 * float(np.mean([fills_half(record) for record in records])), 1),
        "test_photos": len(records),
        "seconds": round(time.perf_counter() - started),
    }


def fills_half(record: Record) -> bool:
    """Would a box around the whole photo be right?"""
    with Image.open(record.path) as image:
        width, height = image.size
    return any((x1 - x0) * (y1 - y0) > width * height / 2 for x0, y0, x1, y1 in record.boxes_xyxy)


# --- photos ---


def write_photos(cell: Cell, folder: Path, options: argparse.Namespace) -> list[Record]:
    """Write a set in the `folders` layout, and return its test photos."""
    if cell.backbone == "tiny":
        parts = generate(cell, folder)
    else:
        dataset = fdcnet.read_dataset(options.pets if cell.num_classes == 37 else options.cub).first(cell.num_classes)
        parts = {"train": first_photos(dataset.train, cell.num_photos), "test": list(dataset.test)}
    with (folder_of(folder) / "boxes.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "x0", "y0", "x1", "y1"])
        for part, records in parts.items():
            for record in records:
                path = folder_of(folder / part / record.label) / record.path.name
                if not path.exists():
                    path.symlink_to(record.path.resolve())
                table.writerows([path.relative_to(folder).as_posix(), *box] for box in record.boxes_xyxy)
    return parts["test"]


def folder_of(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def first_photos(records: Sequence[Record], num: int) -> list[Record]:
    """The first photos of each class."""
    seen = Counter[str]()
    kept = []
    for record in records:
        seen[record.label] += 1
        if seen[record.label] <= num:
            kept.append(record)
    return kept


def generate(cell: Cell, folder: Path) -> dict[str, list[Record]]:
    """Ellipses on smooth backgrounds. The class is the colours of a 3 x 3 pattern on the ellipse."""
    counts = {"train": cell.num_photos, "test": GENERATED_TEST}
    return {
        part: [
            draw(label, (label, number, part == "train"), folder_of(folder / part / f"class {label}") / f"{number}.png")
            for label in range(cell.num_classes)
            for number in range(num)
        ]
        for part, num in counts.items()
    }


def draw(label: int, seed: tuple[int, ...], path: Path) -> Record:
    generator, side = np.random.default_rng(seed), GENERATED_SIDE
    pattern = np.random.default_rng(label).integers(0, 256, (3, 3, 3), np.uint8)
    background = generator.integers(0, 256, (4, 4, 3), np.uint8)
    photo = Image.fromarray(background).resize((side, side), Resampling.BICUBIC)
    width, height = generator.integers(side // 4, 3 * side // 4, 2).tolist()
    x0, y0 = generator.integers(side - width), generator.integers(side - height)
    mask = Image.new("L", (width, height))
    ImageDraw.Draw(mask).ellipse((0, 0, width - 1, height - 1), fill=255)
    photo.paste(Image.fromarray(pattern).resize((width, height), Resampling.NEAREST), (int(x0), int(y0)), mask)
    photo.save(path)
    return Record(path, path.parent.name, ((float(x0), float(y0), float(x0 + width), float(y0 + height)),))


if __name__ == "__main__":
    main()
