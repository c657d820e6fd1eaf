"""Boxes: four numbers, a boxes.csv, or a Pascal VOC file."""

import math
import os
import reprlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from fdcnet.data.records import BoxXYXY
from fdcnet.data.sources.files import FileIndex
from fdcnet.data.sources.tables import rows
from fdcnet.errors import UserError

COLUMNS = ("x0", "y0", "x1", "y1")
_REMEDY = "A box is x0,y0,x1,y1 in pixels of the photo, with x0 < x1 and y0 < y1."


def make_box(values: Sequence[str | float], where: str) -> BoxXYXY:
    """Four numbers as a box; `where` names the file and row for the error."""
    try:
        x0, y0, x1, y1 = map(float, values)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where}: {reprlib.repr(list(values))} is not a box.", _REMEDY) from None
    box = (x0, y0, x1, y1)
    if fault := impossible(box):
        raise UserError(f"{where}: the box {x0:g},{y0:g},{x1:g},{y1:g} {fault}.", _REMEDY)
    return box


def impossible(box: BoxXYXY) -> str | None:
    """Why this box is wrong in any photo, or None."""
    x0, y0, x1, y1 = box
    if not all(map(math.isfinite, box)):
        return "is not finite"
    if x1 <= x0 or y1 <= y0:
        return "is empty or inverted"
    if min(x0, y0) < -1:  # rounding may put a box one pixel outside
        return "starts outside of the photo"
    return None


def table_boxes(table: Path, exists: FileIndex) -> dict[str, list[BoxXYXY]]:
    """Boxes of a `path,x0,y0,x1,y1` table, by the photo's normalised path."""
    boxes: dict[str, list[BoxXYXY]] = defaultdict(list)
    for number, row in rows(table, ("path", *COLUMNS)):
        image = table.parent / row["path"].replace("\\", "/")
        if image not in exists:
            raise UserError(
                f"{table} row {number}: there is no photo {image}.", f"Paths are relative to {table.parent}."
            )
        boxes[path_key(image)].append(make_box([row[c] for c in COLUMNS], f"{table} row {number}"))
    return boxes


def path_key(path: Path) -> str:
    return os.path.normpath(path)


def voc_objects(file: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Names and raw coordinates of a Pascal VOC annotation."""
    try:
        tree = ElementTree.parse(file)
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise UserError(f"{file} is not valid XML: {error}.", "Export it again, or delete it.") from error
    found = []
    for thing in tree.iter("object"):
        corners = tuple(thing.findtext(f"bndbox/{tag}", "").strip() for tag in ("xmin", "ymin", "xmax", "ymax"))
        found.append((thing.findtext("name", "").strip(), corners))
    return found


def voc_boxes(file: Path, label: str) -> tuple[BoxXYXY, ...]:
    """The boxes of the photo's own class, or all boxes if the annotation uses other names."""
    objects = voc_objects(file)
    own = [corners for name, corners in objects if name == label] or [corners for _, corners in objects]
    return tuple(make_box(corners, str(file)) for corners in own)
