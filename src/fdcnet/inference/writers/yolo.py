"""YOLO labels, as read by Ultralytics and labelImg."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Self

import yaml

from fdcnet.files import write_bytes
from fdcnet.inference.annotation import AnnotatedPhoto, Annotation, xywh
from fdcnet.inference.writers.base import Writer, make_folder


class YoloWriter(Writer):
    """A folder with labels/NAME.txt per photo, and the class names in data.yaml and labels/classes.txt.

    A line is `class cx cy w h` as fractions of the photo. With `masks` it is `class x1 y1 x2 y2 ...` (YOLO-seg).
    """

    def __init__(self, path: Path, classes: Sequence[str], masks: bool = False) -> None:
        super().__init__(path, classes)
        self.masks = masks

    def __enter__(self) -> Self:
        make_folder(self.path / "labels")
        self.photo_of = {"classes.txt": "the list of classes"}  # label file -> its photo
        # Without `path`, Ultralytics looks for the photos beside data.yaml.
        facts = {"train": "images", "val": "images", "names": dict(enumerate(self.classes))}
        write_bytes(self.path / "data.yaml", yaml.safe_dump(facts, allow_unicode=True, sort_keys=False).encode())
        write_bytes(self.path / "labels" / "classes.txt", "".join(f"{name}\n" for name in self.classes).encode())
        return self

    def add(self, photo: AnnotatedPhoto) -> None:
        name = str(PurePosixPath(photo.name).with_suffix(".txt"))
        if (other := self.photo_of.setdefault(name, photo.name)) != photo.name:
            self.skipped.append(f"no YOLO labels for {photo.name}: {other} has the same label file, {name}")
            return
        lines = [self._line(annotation, photo.image_size) for annotation in photo.annotations]
        write_bytes(self.path / "labels" / name, "".join(lines).encode())

    def _line(self, annotation: Annotation, image_size: tuple[int, int]) -> str:
        width, height = image_size
        if self.masks:
            fractions = [value for x, y in _outline(annotation) for value in (x / width, y / height)]
        else:
            x, y, w, h = xywh(annotation.box_xyxy)
            fractions = [(x + w / 2) / width, (y + h / 2) / height, w / width, h / height]
        return f"{self.label_of[annotation.class_name]} {' '.join(f'{value:.6f}' for value in fractions)}\n"


def _outline(annotation: Annotation) -> Sequence[tuple[float, float]]:
    """The mask's polygon; the corners of the box where there is no mask."""
    x0, y0, x1, y1 = annotation.box_xyxy
    return annotation.polygon or ((x0, y0), (x1, y0), (x1, y1), (x0, y1))
