"""YOLO: a data.yaml with class names and photo folders, and a text file of boxes per photo, as Ultralytics reads them.

A photo's label is the class that all of its boxes share. Photos with several classes, or without boxes, are skipped.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fdcnet.data.decode import BadImage, image_size
from fdcnet.data.records import BoxXYXY, Dataset, Record
from fdcnet.data.sources.boxes import make_box
from fdcnet.data.sources.files import IMAGE_SUFFIXES, class_name, files_named, listing, set_name
from fdcnet.data.sources.splits import Split, assemble
from fdcnet.data.sources.tables import text_lines
from fdcnet.errors import UserError, count
from fdcnet.files import parse_yaml

SPLITS: tuple[Split, ...] = ("train", "val", "test")
MAX_YAML_BYTES = 2**20
WINDOW = 10_000  # photos handed to the threads at a time: each that waits takes 2 kB


@dataclass
class _Contents:
    """One split."""

    records: list[Record] = field(default_factory=list)
    mixed: int = 0  # photos with several classes
    bare: int = 0  # photos without boxes


def recognises(root: Path) -> bool:
    return _description_file(root) is not None


def read(root: Path, limit: int) -> Dataset:
    file = _description_file(root)
    if file is None:
        raise UserError(f"{root} has no data.yaml.", "A YOLO data set has one with the keys train, val and names.")
    facts = _facts(file)
    names = _class_names(facts, file)
    base = file.parent / str(facts.get("path") or "")
    found: dict[Split, list[Path]] = {}
    for split in SPLITS:
        photos = _photos(facts.get(split), base if base.is_dir() else file.parent, file)
        if photos and photos not in found.values():  # a writer without test photos names one folder for all
            found[split] = photos
    contents = {split: _read_split(photos, names, file) for split, photos in found.items()}
    learned = contents.get("train") or next(iter(contents.values()), _Contents())
    seen = Counter(record.label for record in learned.records)
    classes = [name for name in names.values() if seen[name]]
    records = {split: one.records for split, one in contents.items()}
    return assemble(set_name(file.parent), classes, records, limit, _notes(contents))


def _description_file(root: Path) -> Path | None:
    files = [root] if root.is_file() else [*files_named(root, ".yaml"), *files_named(root, ".yml")]
    return next((file for file in files if file.suffix in (".yaml", ".yml") and _looks_right(file)), None)


def _looks_right(file: Path) -> bool:
    if file.stat().st_size > MAX_YAML_BYTES:
        return False
    text = file.read_text(encoding="utf-8", errors="replace")
    return "names:" in text and any(f"{split}:" in text for split in SPLITS)


def _facts(file: Path) -> dict[str, Any]:
    try:
        facts = parse_yaml(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise UserError(f"{file} is not valid YAML: {error}", "Export the data set again.") from error
    if not isinstance(facts, dict):
        raise UserError(f"{file} is not a YOLO description.", "It needs the keys train, val and names.")
    return facts


def _class_names(facts: dict[str, Any], file: Path) -> dict[int, str]:
    names = facts.get("names")
    pairs = (
        list(enumerate(names)) if isinstance(names, list) else list(names.items()) if isinstance(names, dict) else []
    )
    if not pairs or not all(type(number) is int and number >= 0 for number, _ in pairs):
        raise UserError(f"{file} has no list of class names.", "Write them as names: [cat, dog].")
    by_number = {number: class_name(str(name)) for number, name in sorted(pairs, key=lambda pair: pair[0])}
    if len(set(by_number.values())) < len(by_number):
        raise UserError(f"{file} has a class name twice.", "Give each class a name of its own.")
    return by_number


def _photos(places: Any, base: Path, file: Path) -> list[Path]:
    """The photos of a split: in folders, or listed in text files."""
    photos: list[Path] = []
    for place in places if isinstance(places, list) else [places] if places else []:
        path = _find(base, str(place))
        if path is None:
            raise UserError(f"{file} names {place}, which does not exist.", f"Paths are relative to {base}.")
        if path.is_dir():
            photos += listing(path, deep=True).images
        elif path.suffix.lower() == ".txt":
            lines = [line.strip() for line in text_lines(path) if line.strip()]
            photos += [path.parent / line for line in lines if Path(line).suffix.lower() in IMAGE_SUFFIXES]
    return photos


def _find(base: Path, place: str) -> Path | None:
    """Roboflow writes ../train/images for a folder beside data.yaml."""
    for path in (base / place, base / place.removeprefix("../")):
        try:
            if path.exists():
                return path
        except (OSError, ValueError):  # a name that no file system allows
            continue
    return None


def _read_split(photos: list[Path], names: dict[int, str], file: Path) -> _Contents:
    found: list[list[tuple[str, BoxXYXY | None]]] = []
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(photos), WINDOW):
            found += pool.map(lambda photo: _read_photo(photo, names, file), photos[start : start + WINDOW])
    contents = _Contents()
    for photo, boxes in zip(photos, found, strict=True):
        labels = {label for label, _ in boxes}
        contents.mixed += len(labels) > 1
        contents.bare += not labels
        if len(labels) == 1:
            contents.records.append(Record(photo, labels.pop(), tuple(box for _, box in boxes if box)))
    return contents


def _read_photo(photo: Path, names: dict[int, str], file: Path) -> list[tuple[str, BoxXYXY | None]]:
    """Class name and box of each object. A photo that cannot be opened has no boxes; training reports it later."""
    labels = _label_file(photo)
    if not labels.is_file():
        return []
    rows = [(number, line.split()) for number, line in enumerate(text_lines(labels), start=1) if line.strip()]
    try:
        size = image_size(photo) if rows else None
    except BadImage:
        size = None
    return [_object(row, names, size, f"{labels} row {number}", file) for number, row in rows]


def _label_file(photo: Path) -> Path:
    """images/train/a.jpg -> labels/train/a.txt; beside the photo if no folder is called images."""
    parts = list(photo.parts)
    if "images" in parts[:-1]:
        last = len(parts) - 2 - parts[-2::-1].index("images")
        parts[last] = "labels"
    return Path(*parts).with_suffix(".txt")


def _object(
    row: list[str], names: dict[int, str], size: tuple[int, int] | None, where: str, file: Path
) -> tuple[str, BoxXYXY | None]:
    label = names.get(int(row[0])) if row[0].isdecimal() and len(row[0]) < 10 else None
    if label is None:
        raise UserError(f"{where}: there is no class '{row[0]}'.", f"{file} lists the classes.")
    try:
        values = [float(value) for value in row[1:]]
    except ValueError:
        values = []
    if len(values) in (4, 5):  # the fifth is a confidence
        x, y, width, height = values[:4]
        corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    elif len(values) >= 6 and len(values) % 2 == 0:  # a polygon
        corners = (min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2]))
    else:
        raise UserError(f"{where} is not 'class x y width height'.", "Use fractions of the photo's width and height.")
    if size is None:
        return label, None
    return label, make_box([value * size[i % 2] for i, value in enumerate(corners)], where)


def _notes(contents: dict[Split, _Contents]) -> list[str]:
    notes = []
    for split, one in contents.items():
        photo = f"{split} photo"
        if one.mixed:
            notes.append(f"Skipped {count(one.mixed, photo)} with several classes. A photo needs one label.")
        if one.bare:
            notes.append(f"Skipped {count(one.bare, photo)} without boxes.")
    return notes
