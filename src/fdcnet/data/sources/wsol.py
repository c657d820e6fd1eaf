"""The text metadata of the WSOL evaluation benchmark: image_ids, class_labels and localization per split."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from fdcnet.data.records import BoxXYXY, Dataset, Record
from fdcnet.data.sources.boxes import make_box
from fdcnet.data.sources.files import FileIndex, set_name
from fdcnet.data.sources.splits import Split, assemble
from fdcnet.data.sources.tables import is_number, text_lines
from fdcnet.errors import UserError

_SPLITS: tuple[Split, ...] = ("train", "val", "test")


def recognises(root: Path) -> bool:
    return bool(_splits_at(root))


def read(root: Path, limit: int) -> Dataset:
    present = _splits_at(root)
    if not present:
        raise UserError(
            f"{root} is not WSOL metadata.", "Name the folder whose train/, val/, test/ hold image_ids.txt."
        )
    notes: list[str] = []
    if "test" in present and "val" in present:
        present.remove("val")  # another collection of photos, which need not be on this disk
        notes.append("Skipped the validation photos, because there is a test set.")
    labels = {split: _labels(root / split) for split in present}
    images = _image_folder(root, next(iter(labels[present[-1]])))
    names = _class_names(labels)
    exists = FileIndex()
    splits: dict[Split, list[Record]] = {}
    for split, by_id in labels.items():
        boxes = _boxes(root / split / "localization.txt", notes)
        splits[split] = [
            Record(_present(images / image, exists), names[label], tuple(boxes.get(image, ())))
            for image, label in by_id.items()
        ]
    return assemble(set_name(root), [names[label] for label in sorted(names)], splits, limit, notes)


def _splits_at(root: Path) -> list[Split]:
    return [s for s in _SPLITS if all((root / s / name).is_file() for name in ("image_ids.txt", "class_labels.txt"))]


def _labels(folder: Path) -> dict[str, int]:
    """Photo id -> class number, in the order of image_ids.txt."""
    file = folder / "class_labels.txt"
    by_id = {}
    for number, (image, *values) in _lines(file):
        if len(values) != 1 or not is_number(values[0]):
            raise UserError(f"{file} row {number} is not 'path,number'.", "Fetch the metadata again.")
        by_id[image] = int(values[0])
    ids = [image for _, (image, *_) in _lines(folder / "image_ids.txt")]
    unlabelled = [image for image in ids if image not in by_id]
    if not ids or unlabelled:
        problem = f"{file} has no label for {unlabelled[0]}." if unlabelled else f"{folder / 'image_ids.txt'} is empty."
        raise UserError(problem, "Fetch the metadata again.")
    return {image: by_id[image] for image in ids}


def _class_names(labels: dict[Split, dict[str, int]]) -> dict[int, str]:
    """The folder of a class's training photos if each class has its own folder, else the class number."""
    numbers = {label for by_id in labels.values() for label in by_id.values()}
    folders: dict[int, set[str]] = defaultdict(set)
    for image, label in labels.get("train", {}).items():
        folders[label].add(Path(image).parent.name)
    names = {label: next(iter(found)) for label, found in folders.items() if len(found) == 1}
    if set(names) == numbers and len(set(names.values())) == len(names) and "" not in names.values():
        return names
    return {label: str(label) for label in numbers}


def _boxes(file: Path, notes: list[str]) -> dict[str, list[BoxXYXY]]:
    boxes: dict[str, list[BoxXYXY]] = defaultdict(list)
    if not file.is_file():
        return boxes
    for number, (image, *values) in _lines(file):
        if len(values) == 2:
            notes.append(f"Skipped {file}, which has masks instead of boxes.")
            return {}
        boxes[image].append(make_box(values, f"{file} row {number}"))
    return boxes


def _image_folder(root: Path, image: str) -> Path:
    """The metadata can be beside the photos (metadata/NAME and dataset/NAME), above them, or in the same folder."""
    beside, above, name = root.parent, root.parent.parent, root.name
    tried = [root, root / "images", beside, beside / "images", beside / name]
    for data in (above / "dataset", above / "data", above):
        tried += [data / name, data / name / "images", data / "CUB_200_2011" / "images"]
    tried.append(above)
    for folder in tried:
        if (folder / image).is_file():
            return folder
    raise UserError(
        f"The photos of {root} were not found: no {image} in any of {', '.join(map(str, tried))}.",
        f"Put the photos (or a link to them) into {above / 'dataset' / name}.",
    )


def _present(path: Path, exists: FileIndex) -> Path:
    if path not in exists:
        raise UserError(f"There is no photo {path}.", "The metadata names it: complete the photos.")
    return path


def _lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text_lines(file), start=1):
        if line.strip():
            yield number, line.strip().split(",")
