"""ILSVRC: train/<wnid>/ and val/ (flat or by wnid), also as Kaggle packs it. Boxes: LOC_*_solution.csv or VOC files."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fdcnet.data.records import BoxXYXY, Dataset, Record
from fdcnet.data.sources.boxes import make_box, voc_objects
from fdcnet.data.sources.files import files_named, listing, set_name, subfolders
from fdcnet.data.sources.splits import Split, assemble, first
from fdcnet.data.sources.tables import rows
from fdcnet.errors import UserError, count


class Annotation(NamedTuple):
    """The objects of one photo, and where they are written."""

    file: Path
    row: int
    objects: list[tuple[str, tuple[str, ...]]]  # wnid and raw corners

    def boxes(self, label: str) -> list[BoxXYXY]:
        where = f"{self.file} row {self.row}" if self.row else str(self.file)
        return [make_box(corners, where) for name, corners in self.objects if name == label]


Annotations = dict[str, Annotation]  # by file stem

_WNID = re.compile(r"n\d{8}")
_KAGGLE = Path("Data/CLS-LOC")


def recognises(root: Path) -> bool:
    base = _base(root)
    return base is not None and not _other_folders(base / "train")


def read(root: Path, limit: int) -> Dataset:
    base = _base(root)
    if base is None:
        raise UserError(f"{root} is not laid out like ILSVRC.", "It needs train/<wnid>/ with photos, and val/.")
    notes = [f"Skipped {folder}, whose name is not a wnid." for folder in _other_folders(base / "train")]
    folders = _wnid_folders(base / "train")
    test_folder = _test_folder(base)
    test = _test_records(test_folder, base, notes) if test_folder else []
    classes = first(sorted(folders or {record.label for record in test}), limit)
    train = [(path, name) for name in classes if name in folders for path in listing(folders[name], deep=True).images]
    splits: dict[Split, list[Record]] = {"train": _train_records(train, base, classes, notes), "test": test}
    return assemble(set_name(root), classes, splits, limit, notes)


def _base(root: Path) -> Path | None:
    """The folder of train/ and val/."""
    for base in (root, root / _KAGGLE, root / "ILSVRC" / _KAGGLE):
        if _wnid_folders(base / "train") or _test_folder(base):
            return base
    return None


def _wnid_folders(folder: Path) -> dict[str, Path]:
    return {inner.name: inner for inner in subfolders(folder) if _WNID.fullmatch(inner.name)}


def _other_folders(folder: Path) -> list[Path]:
    return [inner for inner in subfolders(folder) if not _WNID.fullmatch(inner.name)]


def _test_folder(base: Path) -> Path | None:
    """val/ with wnid folders or the official file names. Kaggle's test/ has no labels."""
    for name in ("val", "valid", "validation", "test"):
        folder = base / name
        if _wnid_folders(folder):
            return folder
        if name != "test" and folder.is_dir() and any(p.name.startswith("ILSVRC2012_val_") for p in folder.iterdir()):
            return folder
    return None


def _test_records(folder: Path, base: Path, notes: list[str]) -> list[Record]:
    by_wnid = _wnid_folders(folder)
    found = _annotations(base, folder.name, by_wnid)
    if by_wnid:
        labelled = [(path, wnid) for wnid, inner in by_wnid.items() for path in listing(inner, deep=True).images]
    else:
        labelled = _labels_of_flat(folder, base, found, notes)
    labelled.sort(key=lambda photo: photo[1])  # stable: by name within a class
    return [
        Record(path, label, tuple(found[path.stem].boxes(label)) if path.stem in found else ())
        for path, label in labelled
    ]


def _labels_of_flat(folder: Path, base: Path, found: Annotations, notes: list[str]) -> list[tuple[Path, str]]:
    images = listing(folder).images
    labelled = [
        (path, found[path.stem].objects[0][0]) for path in images if path.stem in found and found[path.stem].objects
    ]
    if not labelled:
        tried = ", ".join(map(str, _places(base)))
        raise UserError(
            f"The labels of {folder} were not found: neither LOC_val_solution.csv nor Annotations/ in {tried}.",
            f"Put one of them there, or sort the photos into {folder}/<wnid>/.",
        )
    if len(labelled) < len(images):
        notes.append(f"Skipped {count(len(images) - len(labelled), 'photo')} of {folder} without a label.")
    return labelled


def _train_records(
    photos: list[tuple[Path, str]], base: Path, classes: Iterable[str], notes: list[str]
) -> list[Record]:
    """Some official training boxes are wrong. Photos with such a box are used without boxes."""
    found = _annotations(base, "train", classes)
    without = 0
    records = []
    for path, label in photos:
        boxes: list[BoxXYXY] = []
        try:
            boxes = found[path.stem].boxes(label) if found and path.stem in found else []
        except UserError:
            without += 1
        records.append(Record(path, label, tuple(boxes)))
    if without:
        notes.append(f"Skipped the boxes of {count(without, 'training photo')}, because one is impossible.")
    return records


def _places(base: Path) -> list[Path]:
    """Where annotations can be: beside the photos, or at the upper levels of Kaggle's layout."""
    return [base, *list(base.parents)[1:3]] if base.parts[-2:] == _KAGGLE.parts else [base]


def _annotations(base: Path, split: str, wnids: Iterable[str]) -> Annotations:
    """From a solution table if there is one: it is much faster than half a million XML files."""
    for place in _places(base):
        table = place / f"LOC_{'train' if split == 'train' else 'val'}_solution.csv"
        if table.is_file():
            return _solution(table)
    for place in _places(base):
        for folder in (
            place / "Annotations" / "CLS-LOC" / split,
            place / "Annotations" / split,
            place / "Annotations",
            place / split,
        ):
            files = files_named(folder, ".xml") + [f for wnid in wnids for f in files_named(folder / wnid, ".xml")]
            if files:
                return {file.stem: Annotation(file, 0, voc_objects(file)) for file in files}
    return {}


def _solution(table: Path) -> Annotations:
    """`ImageId,PredictionString`, where the string repeats `wnid x0 y0 x1 y1`."""
    found = {}
    for number, row in rows(table, ("imageid", "predictionstring")):
        words = row["predictionstring"].split()
        if not words or len(words) % 5:
            raise UserError(f"{table} row {number} is not groups of 'wnid x0 y0 x1 y1'.", "Fetch the file again.")
        objects = [(words[i], tuple(words[i + 1 : i + 5])) for i in range(0, len(words), 5)]
        found[row["imageid"]] = Annotation(table, number, objects)
    return found
