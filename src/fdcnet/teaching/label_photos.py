"""The photos that `fdcnet label` boxes, and the classes that are on each of them."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fdcnet.data.records import Dataset, Record
from fdcnet.data.sources import read
from fdcnet.data.sources.files import class_name, listing, natural_key, set_name
from fdcnet.data.sources.tables import rows
from fdcnet.errors import UserError

SEPARATOR = "|"  # between the labels of one photo in a CSV file
OTHER = "(other)"  # class of the photos that `--others` names; they are learned from, but not boxed


@dataclass(frozen=True)
class KnownPhoto:
    """A photo whose classes are known."""

    path: Path
    name: str  # relative to the folder of photos
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class KnownPhotos:
    title: str
    classes: tuple[str, ...]
    photos: tuple[KnownPhoto, ...]
    notes: tuple[str, ...] = ()

    def to_learn_from(self, new_classes: Sequence[str], others: Path | None) -> Dataset:
        """The photos with one label, of these classes. A photo with several labels would contradict itself."""
        records = [Record(photo.path, name) for name in new_classes for photo in self.photos_of(name)]
        classes = tuple(new_classes)
        if others is not None:
            records += [Record(path, OTHER) for path in other_photos(others)]
            classes += (OTHER,)
        return Dataset(self.title, classes, tuple(records))

    def photos_of(self, name: str) -> list[KnownPhoto]:
        """The photos that have this label only."""
        return self._by_only_label.get(name, [])

    @cached_property
    def _by_only_label(self) -> dict[str, list[KnownPhoto]]:
        found: dict[str, list[KnownPhoto]] = {}
        for photo in self.photos:
            if len(photo.class_names) == 1:
                found.setdefault(photo.class_names[0], []).append(photo)
        return found


def read_known_photos(source: str | Path) -> KnownPhotos:
    """Read photos in any known layout. A CSV file may give several labels per photo: `a|b`, or several rows."""
    root = Path(source).expanduser().absolute()
    if root.is_file() and root.suffix.lower() == ".csv":
        return _read_table(root)
    dataset = read(root)
    records = (*dataset.train, *dataset.test)
    if not records:
        raise UserError(f"{source} holds no photos.", "Put photos into one folder per class.")
    labels = {record.path: (record.label,) for record in records}
    return KnownPhotos(dataset.name, dataset.classes, _named(root, labels), dataset.notes)


def other_photos(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.", "Name a folder with photos of other things.")
    images = listing(folder, deep=True).images
    if not images:
        raise UserError(f"There are no photos in {folder}.", "Name a folder with photos of other things.")
    return images


def _read_table(table: Path) -> KnownPhotos:
    labels: dict[Path, tuple[str, ...]] = {}
    for number, row in rows(table, ("path", "label")):
        where = f"{table} row {number}"
        own = [class_name(name) for name in row["label"].split(SEPARATOR) if name.strip()]
        if not row["path"] or not own:
            raise UserError(f"{where} lacks a path or a label.", "Fill it in, or delete the row.")
        path = table.parent / row["path"].replace("\\", "/")
        if path not in labels and not path.is_file():
            raise UserError(f"{where}: there is no photo {path}.", f"Paths are relative to {table.parent}.")
        labels[path] = tuple(dict.fromkeys((*labels.get(path, ()), *own)))
    if not labels:
        raise UserError(f"{table} names no photos.", "Add rows with the columns path and label.")
    classes = sorted({name for own in labels.values() for name in own}, key=natural_key)
    return KnownPhotos(set_name(table), tuple(classes), _named(table.parent, labels))


def _named(root: Path, labels: Mapping[Path, tuple[str, ...]]) -> tuple[KnownPhoto, ...]:
    """Names relative to the root, or to the folder that all photos share where some are elsewhere."""
    folder = root if root.is_dir() else root.parent
    if not all(path.is_relative_to(folder) for path in labels):
        folder = _common_folder(labels)
    return tuple(KnownPhoto(path, path.relative_to(folder).as_posix(), own) for path, own in labels.items())


def _common_folder(paths: Iterable[Path]) -> Path:
    return Path(os.path.commonpath([path.parent for path in paths]))
