"""The folder that `fdcnet label` writes: its own record, and annotation files for other tools."""

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdcnet.errors import UserError
from fdcnet.files import LOCK, creating, is_temporary, write_bytes
from fdcnet.inference.annotation import Annotation
from fdcnet.inference.writers.base import FileWriter, Writer
from fdcnet.inference.writers.coco import CocoWriter
from fdcnet.inference.writers.labelstudio import LabelStudioWriter
from fdcnet.inference.writers.voc import VocWriter
from fdcnet.inference.writers.yolo import YoloWriter
from fdcnet.teaching.label_boxes import LabelledPhoto

RECORD = "labels.json"
MODEL = "model"  # folder of the model that was learned from the photos
SCHEMA = 1
ANNOTATION_SUFFIXES = (".csv", ".json", ".txt", ".xml")


@dataclass(frozen=True)
class LabelFormat:
    """`target` is relative to the output folder. Formats whose tools look for photos in a folder get links there."""

    summary: str
    target: str
    photos: str | None
    writer: Callable[[Path, Sequence[str]], Writer]


class BoxTable(FileWriter):
    """CSV with the columns of a data set, so that `fdcnet train` and `fdcnet evaluate` can read it."""

    def begin(self) -> None:
        self.rows = csv.writer(self.file, lineterminator="\n")
        self.rows.writerow(["path", "label", "x0", "y0", "x1", "y1", "confidence", "reviewed"])

    def add(self, photo: LabelledPhoto) -> None:  # type: ignore[override]
        path = Path(os.path.relpath(photo.path, self.path.parent)).as_posix()
        for annotation in photo.annotations:
            box = [round(value, 2) for value in annotation.box_xyxy]
            self.rows.writerow([path, annotation.class_name, *box, round(annotation.score, 4), int(photo.reviewed)])


FORMATS: Mapping[str, LabelFormat] = {
    "coco": LabelFormat("COCO with masks; also FiftyOne's folder layout", "coco/labels.json", "coco/data", CocoWriter),
    "yolo": LabelFormat("YOLO boxes", "yolo", "yolo/images", YoloWriter),
    "yolo-seg": LabelFormat(
        "YOLO masks", "yolo-seg", "yolo-seg/images", lambda path, classes: YoloWriter(path, classes, masks=True)
    ),
    "voc": LabelFormat("Pascal VOC", "voc", "voc/JPEGImages", VocWriter),
    "labelstudio": LabelFormat("Label Studio tasks", "labelstudio.json", None, LabelStudioWriter),
    "csv": LabelFormat("a table of boxes", "boxes.csv", None, BoxTable),
}


@dataclass(frozen=True)
class LabelRecord:
    """What an earlier run wrote."""

    model: str  # checksum of the model that made the boxes
    photos: dict[str, tuple[tuple[int, int], tuple[Annotation, ...], bool]]  # name -> size, annotations, reviewed
    checksums: dict[str, str]  # format -> checksum of its annotation files; empty if they were not completed


def check_output(out: Path, photos: Path) -> None:
    """Refuse a folder that holds something else, and one in which the next run would find classes and photos."""
    if photos.is_dir() and out.resolve().is_relative_to(photos.resolve()):
        raise UserError(f"{out} is inside the folder of photos, {photos}.", "Name a folder elsewhere.")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file.", "Name a folder.")
    if out.is_dir() and not (out / RECORD).is_file():
        foreign = [path for path in out.iterdir() if path.name not in (MODEL, LOCK) and not is_temporary(path)]
        if foreign:
            problem = f"{out} holds something else, such as {foreign[0].name}."
            raise UserError(problem, "Name a new or empty folder, or one that 'fdcnet label' wrote.")


def read_record(out: Path) -> LabelRecord:
    file = out / RECORD
    if not file.is_file():
        return LabelRecord("", {}, {})
    try:
        content = json.loads(file.read_bytes())
        if content["schema"] != SCHEMA:
            raise UserError(f"{file} was written by another version of fdcnet.", "Name another output folder.")
        photos = {entry["name"]: _read_entry(entry) for entry in content["photos"]}
        checksums = dict(content["checksums"])
        if unknown := checksums.keys() - FORMATS.keys():
            raise ValueError(f"unknown formats {unknown}")
        return LabelRecord(str(content["model"]), photos, checksums)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{file} is damaged.", "Restore it, or name another output folder.") from error


def refuse_edited(out: Path, record: LabelRecord, corrections: Path | None) -> None:
    """Annotation files that were edited after they were written are not overwritten, unless they are read now."""
    for name, checksum in record.checksums.items():
        target = out / FORMATS[name].target
        if not checksum or not target.exists() or _checksum(target) == checksum:
            continue
        if corrections is None or not _overlap(corrections.resolve(), target.resolve()):
            problem = f"{target} was edited after 'fdcnet label' wrote it."
            raise UserError(problem, f"Add --corrections {target} to keep the changes, or name another --out.")


def _overlap(first: Path, second: Path) -> bool:
    return first == second or first in second.parents or second in first.parents


def write_format(
    name: str, out: Path, classes: Sequence[str], photos: Sequence[LabelledPhoto], copy_photos: bool, prefix: str | None
) -> list[str]:
    """Write one format; -> photos that it cannot hold, and why. `prefix` is that of photo names in Label Studio."""
    form = FORMATS[name]
    target = out / form.target
    with nullcontext(target) if target.suffix else creating(target, replace=True) as path:
        writer = form.writer(path, classes)
        if prefix and isinstance(writer, LabelStudioWriter):
            writer.prefix = prefix
        with writer:
            for photo in photos:
                writer.add(photo)  # type: ignore[arg-type]
    if form.photos:
        place_photos(out / form.photos, photos, copy_photos)
    return writer.skipped


def write_record(
    out: Path,
    model: str,
    classes: Sequence[str],
    photos: Sequence[LabelledPhoto],
    formats: Sequence[str],
    complete: bool,
) -> None:
    """Written before the annotation files as well, so that a run that was stopped among them can be repeated."""
    checksums = {name: _checksum(out / FORMATS[name].target) if complete else "" for name in formats}
    content = {"schema": SCHEMA, "model": model, "classes": list(classes), "checksums": checksums}
    text = json.dumps(content | {"photos": [_entry(photo) for photo in photos]}, indent=1, allow_nan=False)
    write_bytes(out / RECORD, text.encode())


def place_photos(folder: Path, photos: Sequence[LabelledPhoto], copy: bool) -> None:
    """Link the photos where the tools of a format look for them; copy them where links are not possible."""
    for photo in photos:
        place = folder / photo.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        try:
            if copy:
                raise OSError
            place.symlink_to(photo.path.resolve())
        except OSError:
            shutil.copyfile(photo.path, place)


def _checksum(target: Path) -> str:
    """A checksum of the annotation files alone, because tools put caches beside them."""
    files = sorted(target.rglob("*")) if target.is_dir() else [target]
    digest = hashlib.sha256()
    for file in files:
        if file.suffix in ANNOTATION_SUFFIXES and file.is_file() and not file.is_symlink():
            digest.update(os.fsencode(file.relative_to(target.parent)) + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _entry(photo: LabelledPhoto) -> dict[str, Any]:
    objects = [
        {"class": a.class_name, "box": list(a.box_xyxy), "confidence": a.score, "polygon": [list(p) for p in a.polygon]}
        for a in photo.annotations
    ]
    return {"name": photo.name, "size": list(photo.image_size), "reviewed": photo.reviewed, "objects": objects}


def _read_entry(entry: Mapping[str, Any]) -> tuple[tuple[int, int], tuple[Annotation, ...], bool]:
    width, height = entry["size"]
    annotations = []
    for found in entry["objects"]:
        x0, y0, x1, y1 = map(float, found["box"])
        polygon = tuple((float(x), float(y)) for x, y in found["polygon"])
        annotations.append(Annotation(str(found["class"]), (x0, y0, x1, y1), float(found["confidence"]), polygon))
    return (int(width), int(height)), tuple(annotations), bool(entry["reviewed"])
