"""The official files of CUB-200-2011. Classes come in the order of their ids."""

from pathlib import Path

from fdcnet.data.records import BoxXYXY, Dataset, Record
from fdcnet.data.sources.boxes import make_box
from fdcnet.data.sources.files import FileIndex, set_name
from fdcnet.data.sources.splits import Split, assemble
from fdcnet.data.sources.tables import is_number, text_lines
from fdcnet.errors import UserError

_FILES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "bounding_boxes.txt", "classes.txt")


def recognises(root: Path) -> bool:
    return _base(root) is not None


def read(root: Path, limit: int) -> Dataset:
    base = _base(root)
    if base is None:
        raise UserError(f"{root} is not CUB-200-2011.", f"Name the folder with {', '.join(_FILES)} and images/.")
    paths, labels, in_train, corners, classes = (_columns(base / name) for name in _FILES)
    exists = FileIndex()
    splits: dict[Split, list[Record]] = {"train": [], "test": []}
    for image, (name, *_) in paths.items():
        path = base / "images" / name
        if path not in exists:
            raise UserError(
                f"{base / 'images.txt'} names {name}, which is not in images/.", "Unpack the archive again."
            )
        label = _look_up(classes, _look_up(labels, image, "image_class_labels.txt")[0], "classes.txt")[0]
        split: Split = "train" if _look_up(in_train, image, "train_test_split.txt")[0] == "1" else "test"
        box = _xyxy(_look_up(corners, image, "bounding_boxes.txt"), f"{base / 'bounding_boxes.txt'} image {image}")
        splits[split].append(Record(path, label, (box,)))
    names = [values[0] for _, values in sorted(classes.items(), key=lambda item: int(item[0]))]
    return assemble(set_name(base), names, splits, limit)


def _base(root: Path) -> Path | None:
    for base in (root, root / "CUB_200_2011"):
        if all((base / name).is_file() for name in _FILES):
            return base
    return None


def _columns(file: Path) -> dict[str, list[str]]:
    """id -> the other columns."""
    table = {}
    for number, line in enumerate(text_lines(file), start=1):
        key, *values = line.split() or [""]
        if key and (not is_number(key) or not values):
            raise UserError(
                f"{file} row {number} is not an id and its values: '{line[:80]}'.", "Unpack the archive again."
            )
        if key:
            table[key] = values
    return table


def _look_up(table: dict[str, list[str]], key: str, file: str) -> list[str]:
    if key not in table:
        raise UserError(f"{file} has no row for id {key}.", "Unpack the archive again.")
    return table[key]


def _xyxy(values: list[str], where: str) -> BoxXYXY:
    try:
        x, y, width, height = map(float, values)
    except ValueError:
        return make_box(values, where)
    return make_box((x, y, x + width, y + height), where)
