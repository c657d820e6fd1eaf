"""A folder per class, optionally below train/ and test/ (or val/). Boxes: boxes.csv, or a VOC file per photo."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fdcnet.data.records import BoxXYXY, Dataset, Record
from fdcnet.data.sources.boxes import path_key, table_boxes, voc_boxes
from fdcnet.data.sources.files import (
    ACCEPTED,
    FileIndex,
    Listing,
    class_name,
    listing,
    natural_key,
    set_name,
    subfolders,
)
from fdcnet.data.sources.splits import Split, assemble, first, split_of
from fdcnet.errors import UserError, count


def recognises(root: Path) -> bool:
    return root.is_dir()


def read(root: Path, limit: int) -> Dataset:
    if not root.is_dir():
        raise UserError(f"{root} is not a folder.", "Use a folder that contains one folder per class.")
    notes: list[str] = []
    splits = _split_folders(root, notes)
    by_class = {split: _class_folders(folder) for split, folder in splits.items()}
    names = sorted({name for found in by_class.values() for name in found}, key=natural_key)
    if not names:
        raise _no_classes(root)
    classes = first(names, limit)

    foreign: Counter[str] = Counter()
    records: dict[Split, list[Record]] = {split: [] for split in splits}
    for split, found in by_class.items():
        exists = FileIndex()
        boxes = _boxes_beside([root, splits[split]], exists)
        for name in classes:
            if name in found:
                photos = _class_photos(name, found[name], needed=split == "train")
                foreign += photos.foreign
                records[split] += _records(name, photos, boxes | _boxes_beside([found[name]], exists))
    notes += [f"Skipped {count(n, f'{suffix} file')}. Convert to jpg." for suffix, n in foreign.items()]
    return assemble(set_name(root), classes, records, limit, notes)


def _split_folders(root: Path, notes: list[str]) -> dict[Split, Path]:
    """Split -> its folder. A class can be called 'train': only a folder without photos of its own is a split."""
    here = listing(root)
    if here.images:
        notes.append(f"Skipped {count(len(here.images), 'photo')} directly in {root}, outside of class folders.")
    found: dict[Split, Path] = {}
    for folder in here.folders:
        split = split_of(folder.name)
        if split and _holds_folders_only(folder):
            found[split] = folder
    others = [folder.name for folder in here.folders if folder not in found.values()]
    if "train" not in found and (others or not found):
        return {"train": root}
    if others:
        notes.append(f"Folders beside {'/ and '.join(found)}/ were skipped: {', '.join(others)}.")
    return found


def _holds_folders_only(folder: Path) -> bool:
    here = listing(folder)
    return bool(here.folders) and not here.images


def _class_folders(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for inner in subfolders(folder):
        name = class_name(inner.name)
        if name in found:
            raise UserError(
                f"Two folders in {folder} are both called '{name}'.", "Rename one, or put their photos together."
            )
        found[name] = inner
    return found


def _class_photos(name: str, folder: Path, needed: bool) -> Listing:
    photos = listing(folder, deep=True)
    if not photos.images and needed:
        hint = f" ({', '.join(f'{n} {s}' for s, n in photos.foreign.items())} cannot be read)" if photos.foreign else ""
        raise UserError(
            f"Class '{name}' has no photos: there are none in {folder}{hint}.",
            f"Put photos there ({ACCEPTED}), or remove the folder.",
        )
    inner = [inner for inner in photos.folders if inner.parent == folder]
    if len(inner) > 1 and photos.images and not any(image.parent == folder for image in photos.images):
        raise UserError(
            f"{folder} holds no photos itself, only folders: {', '.join(f.name for f in inner[:3])} ...",
            f"If those are the classes, name {folder} as the data; else move their photos up.",
        )
    return photos


def _records(name: str, photos: Listing, boxes: dict[str, list[BoxXYXY]]) -> Iterator[Record]:
    for image in photos.images:
        own = tuple(boxes.get(path_key(image), ())) if boxes else ()
        annotation = photos.annotation(image)
        yield Record(image, name, voc_boxes(annotation, name) if annotation and not own else own)


def _boxes_beside(places: list[Path], exists: FileIndex) -> dict[str, list[BoxXYXY]]:
    boxes: dict[str, list[BoxXYXY]] = {}
    for table in dict.fromkeys(place / "boxes.csv" for place in places):
        if table.is_file():
            boxes |= table_boxes(table, exists)
    return boxes


def _no_classes(root: Path) -> UserError:
    if listing(root).images:
        return UserError(
            f"{root} holds photos but no class folders.", "Make one folder per class and move the photos in."
        )
    return UserError(
        f"{root} holds no class folders.", f"It needs one folder per class with photos in it ({ACCEPTED})."
    )
