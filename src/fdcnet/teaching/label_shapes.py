"""Read the shapes in COCO, Label Studio and YOLO files, without checking them against the photos."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fdcnet.data.records import BoxXYXY
from fdcnet.data.sources.tables import text_lines
from fdcnet.errors import UserError
from fdcnet.files import parse_yaml
from fdcnet.inference.annotation import Polygon

FORMS = "Give COCO JSON, a Label Studio export (JSON), or a YOLO folder with labels/ and data.yaml."


@dataclass(frozen=True)
class Shape:
    """An object as the file gives it: in pixels, or as fractions of the photo."""

    class_name: str
    points: Polygon  # two opposite corners of a box, or a polygon
    fractions: bool


Entry = tuple[str, list[Shape], bool]
"""Name of the photo, its shapes, and whether a person submitted them."""


def read_shapes(file: Path) -> Iterator[Entry]:
    if not file.exists():
        raise UserError(f"There is no file or folder {file}.", FORMS)
    if file.is_dir() or file.suffix.lower() in (".yaml", ".yml"):
        return _read_yolo(file if file.is_dir() else file.parent)
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not valid JSON: {error}.", FORMS) from error
    try:
        if isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys():
            return iter(list(_read_coco(content)))
        if isinstance(content, list) and all(isinstance(task, dict) and "data" in task for task in content):
            return iter(list(_read_labelstudio(content)))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UserError(f"{file} lacks a value, or one has the wrong type: {error!r}.", FORMS) from error
    raise UserError(f"Unrecognized corrections format: {file}.", FORMS)


def _read_coco(content: Mapping[str, Any]) -> Iterator[Entry]:
    names = {category["id"]: str(category["name"]) for category in content["categories"]}
    shapes: dict[Any, list[Shape]] = {image["id"]: [] for image in content["images"]}
    for annotation in content["annotations"]:
        x, y, w, h = map(float, annotation["bbox"])
        box = ((x, y), (x + w, y + h))
        polygon = _coco_polygon(annotation.get("segmentation"))
        points = polygon if polygon and is_same_box(bounds(polygon), (*box[0], *box[1]), 2) else box
        shapes[annotation["image_id"]].append(Shape(names[annotation["category_id"]], points, fractions=False))
    for image in content["images"]:
        yield str(image["file_name"]), shapes[image["id"]], False


def _coco_polygon(segmentation: Any) -> Polygon:
    """The largest polygon. Run-length masks are ignored: the box says enough."""
    if not isinstance(segmentation, list) or not segmentation:
        return ()
    values = [float(value) for value in max(segmentation, key=len)]
    return tuple(zip(values[::2], values[1::2], strict=True))


def _read_labelstudio(tasks: Sequence[Mapping[str, Any]]) -> Iterator[Entry]:
    for task in tasks:
        done = [entry for entry in task.get("annotations", ()) if not entry.get("was_cancelled")]
        if done:
            regions = (_labelstudio_shape(region) for region in done[-1]["result"])
            address = photo_address(task["data"])
            if address is None:
                raise ValueError("a task names no photo")
            yield _photo_of_address(address), [shape for shape in regions if shape], True


def photo_address(data: Mapping[str, Any], field: str = "image") -> str | None:
    """The photo of a Label Studio task: what this field of its data holds, or else the first text."""
    texts = {key: value for key, value in data.items() if isinstance(value, str)}
    return texts.get(field) or next(iter(texts.values()), None)


def _labelstudio_shape(region: Mapping[str, Any]) -> Shape | None:
    """Label Studio's coordinates are percent of the photo."""
    value = region["value"]
    if region["type"] == "polygonlabels":
        points = tuple((float(x) / 100, float(y) / 100) for x, y in value["points"])
        return Shape(str(value["polygonlabels"][0]), points, fractions=True)
    if region["type"] != "rectanglelabels":
        return None  # for example the choice of a class
    sides = (float(region["original_width"]), float(region["original_height"]))
    corners = _rotated(value, sides)
    xs, ys = [x / 100 for x, _ in corners], [y / 100 for _, y in corners]
    box = ((min(xs), min(ys)), (max(xs), max(ys)))
    return Shape(str(value["rectanglelabels"][0]), box, fractions=True)


def _rotated(value: Mapping[str, Any], sides: tuple[float, float]) -> list[tuple[float, float]]:
    """Corners in percent. Label Studio rotates clockwise around the upper left corner, in pixels."""
    angle = math.radians(float(value.get("rotation") or 0))
    cos, sin = math.cos(angle), math.sin(angle)
    corners = []
    for across, down in ((0, 0), (1, 0), (1, 1), (0, 1)):
        dx, dy = across * float(value["width"]) * sides[0], down * float(value["height"]) * sides[1]
        x, y = dx * cos - dy * sin, dx * sin + dy * cos
        corners.append((float(value["x"]) + x / sides[0], float(value["y"]) + y / sides[1]))
    return corners


def _photo_of_address(address: str) -> str:
    parts = urlsplit(address)
    local = parse_qs(parts.query).get("d")
    return local[0] if local else unquote(parts.path)


def _read_yolo(folder: Path) -> Iterator[Entry]:
    labels = folder / "labels" if (folder / "labels").is_dir() else folder
    names = _yolo_names(folder, labels)
    for file in sorted(labels.rglob("*.txt")):
        if file.name != "classes.txt":
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            shapes = [_yolo_shape(line, names, f"{file} line {n}") for n, line in enumerate(lines, 1) if line.strip()]
            yield file.relative_to(labels).with_suffix("").as_posix(), shapes, False


def _yolo_names(folder: Path, labels: Path) -> dict[int, str]:
    for file in (folder / "data.yaml", folder.parent / "data.yaml"):
        if file.is_file():
            try:
                content = parse_yaml(file.read_text(encoding="utf-8"))
                names = content.get("names") if isinstance(content, dict) else None
                if isinstance(names, (list, dict)):
                    pairs = enumerate(names) if isinstance(names, list) else names.items()
                    return {int(label): str(name) for label, name in pairs}
            except (ValueError, TypeError) as error:
                raise UserError(f"{file} cannot be read: {error}", "Correct the file, or export it again.") from error
    if (labels / "classes.txt").is_file():
        return {label: name for label, name in enumerate(text_lines(labels / "classes.txt")) if name}
    raise UserError(f"{folder} does not name the classes of its labels.", "Add data.yaml or labels/classes.txt.")


def _yolo_shape(line: str, names: Mapping[int, str], where: str) -> Shape:
    try:
        label, *values = line.split()
        name, numbers = names[int(label)], [float(value) for value in values]
        if len(numbers) > 4 and len(numbers) % 2 == 0:
            return Shape(name, tuple(zip(numbers[::2], numbers[1::2], strict=True)), fractions=True)
        x, y, w, h = numbers
    except (KeyError, ValueError) as error:
        problem = f"{where} is not a YOLO label: {line.strip()[:80]}"
        raise UserError(problem, "A line is: class cx cy w h, or class x1 y1 x2 y2 x3 y3 ...") from error
    return Shape(name, ((x - w / 2, y - h / 2), (x + w / 2, y + h / 2)), fractions=True)


def bounds(points: Polygon) -> BoxXYXY:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return min(xs), min(ys), max(xs), max(ys)


def is_same_box(first: BoxXYXY, second: BoxXYXY, tolerance: float) -> bool:
    return all(abs(a - b) <= tolerance for a, b in zip(first, second, strict=True))
