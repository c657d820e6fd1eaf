"""A generated data set: patterned shapes on clutter of the same colours. Shape and pattern together are the class.

It is written as ordinary files in the `folders` layout, so that the demo reads them like real photos.
"""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter
from PIL.Image import Resampling

from fdcnet.data.batches import rng
from fdcnet.data.records import BoxXYXY, Dataset, Record
from fdcnet.errors import UserError
from fdcnet.files import creating

VERSION = 2  # increase it when the pictures change
MARKER = "synthetic.json"
FINE = 4  # outlines are drawn this much larger, for smooth edges


def _outline(num_points: int, *radii: float) -> np.ndarray:
    angles = np.arange(num_points) * (2 * np.pi / num_points)
    return np.resize(radii, num_points)[:, None] * np.stack([np.sin(angles), -np.cos(angles)], axis=1)  # (P, 2)


SHAPES = {
    "disc": _outline(72, 1.0),
    "square": _outline(4, 1.0),
    "triangle": _outline(3, 1.0),
    "star": _outline(10, 1.0, 0.5),
}
PATTERNS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {  # of period 1; the second colour where positive
    "ringed": lambda u, v: np.cos(2 * np.pi * np.hypot(u, v)),
    "dotted": lambda u, v: np.cos(2 * np.pi * u) + np.cos(2 * np.pi * v) - 0.7,
    "checked": lambda u, v: 2 * np.sin(np.pi * u) * np.sin(np.pi * v),
    "striped": lambda u, v: np.cos(2 * np.pi * u),
}


def make_synthetic(
    root: Path,
    num_classes: int = 8,
    train_per_class: int = 80,
    test_per_class: int = 20,
    size: int = 128,
    seed: int = 0,
) -> Dataset:
    """Write the set to `root` unless it already exists. The same arguments give the same pictures."""
    classes = class_names(num_classes)
    counts = {"train": train_per_class, "test": test_per_class}
    settings = {"version": VERSION, "classes": list(classes), "counts": counts, "size": size, "seed": seed}
    if not root.exists() or not any(root.iterdir()):
        _write(root, settings)
    if _settings(root) != settings:
        raise UserError(f"{root} holds something other than this generated set.", "Name another folder, or remove it.")
    return Dataset("synthetic", classes, tuple(_records(root / "train")), tuple(_records(root / "test")))


def class_names(num_classes: int) -> tuple[str, ...]:
    """Each group of four has every shape and pattern once: one of them identifies four classes, but not all eight."""
    patterns = list(PATTERNS)
    names = [
        f"{patterns[(i + turn) % len(patterns)]} {shape}"
        for turn in range(len(patterns))
        for i, shape in enumerate(SHAPES)
    ]
    if not 1 <= num_classes <= len(names):
        raise UserError(f"The generated set cannot have {num_classes} classes.", f"Ask for 1 to {len(names)}.")
    return tuple(names[:num_classes])


def draw(class_name: str, size: int, generator: np.random.Generator) -> tuple[Image.Image, BoxXYXY]:
    """One picture, and the box around its object, by the outer edges of the pixels."""
    pattern, shape = class_name.split()
    dark, light = _two_colours(generator)
    mask, centre, radius = _place(SHAPES[shape], size, generator)
    canvas = _background(dark, light, size, generator)
    canvas *= 1 - 0.5 * _shadow(mask)[:, :, None]
    canvas += mask[:, :, None] * (_surface(PATTERNS[pattern], dark, light, centre, radius, size, generator) - canvas)
    canvas += 3 * generator.standard_normal(canvas.shape, np.float32)
    return Image.fromarray(np.rint(canvas.clip(0, 255)).astype(np.uint8)), _box(mask)


def _two_colours(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random hues, but always one dark and one light, so that the pattern can be seen."""
    hue = generator.random()
    dark = _rgb(hue, generator.uniform(0.55, 0.95), generator.uniform(0.3, 0.5))
    light = _rgb(hue + generator.uniform(0.25, 0.75), generator.uniform(0.15, 0.6), generator.uniform(0.9, 1.0))
    return dark, light


def _rgb(hue: float, saturation: float, value: float) -> np.ndarray:
    ramps = np.clip(np.abs((hue * 6 + np.array([0, 4, 2])) % 6 - 3) - 1, 0, 1)
    return (255 * value * (1 + saturation * (ramps - 1))).astype(np.float32)


def _background(dark: np.ndarray, light: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """Soft clouds between two muted tones, with strokes and patches in the object's own colours."""
    middle = (dark + light) / 2
    grey = np.full(3, middle.mean())
    tones = [(0.5 * (middle + grey) + generator.uniform(-32, 32, 3)).astype(np.float32) for _ in range(2)]
    clouds = Image.fromarray(generator.random((5, 5), np.float32)).resize((size, size), Resampling.BICUBIC)
    share = np.asarray(clouds)[:, :, None]
    canvas = Image.fromarray((tones[0] + share * (tones[1] - tones[0])).clip(0, 255).astype(np.uint8))
    canvas = canvas.resize((2 * size, 2 * size), Resampling.NEAREST)
    pen = ImageDraw.Draw(canvas, "RGBA")
    for _ in range(generator.integers(14, 21)):
        colour = dark + generator.choice([0.0, 0.5, 1.0]) * (light - dark)
        fill = (*colour.astype(int).tolist(), int(generator.integers(110, 200)))
        spot = generator.uniform(0, 2 * size, 2)
        if generator.random() < 0.5:
            stroke = np.array([spot, spot + generator.normal(0, 0.5 * size, 2)])
            pen.line(stroke.flatten().tolist(), fill, width=int(generator.integers(size // 40, size // 14)))
        else:
            angles = np.sort(generator.uniform(0, 2 * np.pi, generator.integers(5, 9)))
            radius = generator.uniform(0.06, 0.2) * size
            blob = spot + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
            pen.polygon(blob.flatten().tolist(), fill)
    return np.array(canvas.reduce(2), np.float32)  # (S, S, 3)


def _place(outline: np.ndarray, size: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    """The turned outline somewhere inside, 45 to 70 % of the picture long: its mask (S, S) in 0..1, centre, radius."""
    points = outline @ _rotation(generator)
    low, high = points.min(axis=0), points.max(axis=0)
    scale = generator.uniform(0.45, 0.7) * size / float((high - low).max())
    margin = 0.02 * size
    centre = generator.uniform(margin - scale * low, size - margin - scale * high).astype(np.float32)
    mask = Image.new("L", (FINE * size, FINE * size))
    ImageDraw.Draw(mask).polygon((FINE * (centre + scale * points)).flatten().tolist(), fill=255)
    return np.array(mask.reduce(FINE), np.float32) / 255, centre, scale


def _surface(
    pattern: Callable[[np.ndarray, np.ndarray], np.ndarray],
    dark: np.ndarray,
    light: np.ndarray,
    centre: np.ndarray,
    radius: float,
    size: int,
    generator: np.random.Generator,
) -> np.ndarray:
    steps = np.arange(size, dtype=np.float32) + 0.5
    x, y = np.meshgrid(steps - centre[0], steps - centre[1])  # (S, S)
    period = max(generator.uniform(0.36, 0.5) * radius, 0.06 * size)
    u, v = _rotation(generator).T @ np.stack([x, y]).reshape(2, -1) / period
    first, second = (dark, light) if generator.random() < 0.5 else (light, dark)
    share = np.clip(0.5 + pattern(u, v) * period / (2 * np.pi), 0, 1).reshape(size, size, 1)  # an edge one pixel wide
    lighting = 1 - 0.12 * (x + y)[:, :, None] / radius  # from the upper left
    return (first + share * (second - first)) * lighting.clip(0.7, 1.2)  # (S, S, 3)


def _rotation(generator: np.random.Generator) -> np.ndarray:
    angle = generator.uniform(0, 2 * np.pi)
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]], np.float32)


def _shadow(mask: np.ndarray) -> np.ndarray:
    shift = round(len(mask) / 40)
    moved = np.zeros_like(mask)
    moved[shift:, shift:] = mask[:-shift, :-shift]
    blurred = Image.fromarray((255 * moved).astype(np.uint8)).filter(ImageFilter.GaussianBlur(shift))
    return np.asarray(blurred, np.float32) / 255


def _box(mask: np.ndarray) -> BoxXYXY:
    rows, columns = np.flatnonzero(mask.max(axis=1) >= 0.5), np.flatnonzero(mask.max(axis=0) >= 0.5)
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


def _write(root: Path, settings: dict[str, Any]) -> None:
    try:
        with creating(root) as folder:
            for split, count in settings["counts"].items():
                _write_split(folder / split, settings["classes"], count, settings["size"], (settings["seed"], split))
            (folder / MARKER).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        if not (root / MARKER).is_file():  # it exists if another process was faster
            raise UserError(f"Cannot write {root}: {error.strerror}.", "Choose another folder.") from error


def _write_split(folder: Path, classes: list[str], count: int, size: int, key: tuple[int, str]) -> None:
    folder.mkdir(parents=True)
    with (folder / "boxes.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["path", "x0", "y0", "x1", "y1"])
        for name in classes:
            (folder / name).mkdir()
            for i in range(count):
                image, box = draw(name, size, rng("synthetic", *key, name, i))
                path = f"{name}/{i:03d}.jpg"
                image.save(folder / path, quality=95, subsampling=0)  # colours keep their sharp edges
                table.writerow([path, *box])


def _settings(root: Path) -> Any:
    try:
        return json.loads((root / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _records(folder: Path) -> Iterator[Record]:
    with (folder / "boxes.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            box = (float(row["x0"]), float(row["y0"]), float(row["x1"]), float(row["y1"]))
            yield Record(folder / row["path"], row["path"].split("/")[0], (box,))
