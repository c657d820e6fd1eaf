"""COCO JSON. A photo's label is the category that all of its annotations share; other photos are skipped."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fdcnet.data.records import BoxXYXY, Dataset, Record
from fdcnet.data.sources.boxes import make_box
from fdcnet.data.sources.files import FileIndex, class_name, files_named, set_name, subfolders
from fdcnet.data.sources.splits import Split, assemble, split_in, split_of
from fdcnet.errors import UserError, count

_OTHER_TASKS = ("captions_", "person_keypoints_", "image_info_", "stuff_", "panoptic_")  # lie beside instances_*.json


@dataclass
class _Contents:
    """The content of one JSON file."""

    categories: dict[int, str] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    mixed: int = 0  # photos with several categories
    bare: int = 0  # photos with no annotation


def recognises(root: Path) -> bool:
    return root.suffix.lower() == ".json" if root.is_file() else bool(_candidates(root))


def read(root: Path, limit: int) -> Dataset:
    files: dict[Split, Path] = {"train": root} if root.is_file() else _files(root)
    contents = {split: _read_file(file, root) for split, file in files.items()}
    names = _names_in_id_order(contents)
    learned = [contents["train"]] if "train" in contents else list(contents.values())
    seen = Counter(record.label for one in learned for record in one.records)
    classes = [name for name in names if seen[name]]
    notes = _notes(contents, [name for name in names if not seen[name]])
    return assemble(set_name(root), classes, {split: one.records for split, one in contents.items()}, limit, notes)


def _candidates(root: Path) -> list[Path]:
    """COCO files at the usual places: here, in annotations/, or one in each split's folder."""
    inner = [folder for folder in subfolders(root) if split_of(folder.name)]
    found = [file for folder in (root, root / "annotations", *inner) for file in files_named(folder, ".json")]
    found = [file for file in found if not file.name.startswith(_OTHER_TASKS) and _looks_right(file)]
    return [file for file in found if file.name.startswith("instances_")] or found


def _looks_right(file: Path) -> bool:
    """Look at both ends only: a COCO file can have half a gigabyte."""
    with file.open("rb") as stream:
        ends = stream.read(65536)
        stream.seek(max(stream.tell(), file.stat().st_size - 65536))
        ends += stream.read()
    return sum(key in ends for key in (b'"images"', b'"annotations"', b'"categories"', b'"category_id"')) >= 2


def _files(root: Path) -> dict[Split, Path]:
    found = _candidates(root)
    if not found:
        raise UserError(f"{root} holds no COCO JSON.", "Put it there or into annotations/, or name the file itself.")
    if len(found) == 1:
        return {"train": found[0]}
    files: dict[Split, Path] = {}
    for file in found:
        split = split_in(file.stem) or split_of(file.parent.name)
        if split is None or split in files:
            names = ", ".join(str(file.relative_to(root)) for file in found)
            raise UserError(
                f"It is not clear which of {names} is for training.",
                "Use one file, or rename them to train.json and val.json.",
            )
        files[split] = file
    return files


def _read_file(file: Path, root: Path) -> _Contents:
    try:
        document = json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not valid JSON: {error}.", "Export it again.") from error
    try:
        return _contents(document, file, root)
    except (KeyError, TypeError, AttributeError) as error:
        problem = f"lacks {error}" if isinstance(error, KeyError) else f"has an unexpected form ({error})"
        raise UserError(
            f"{file} is not a COCO file: it {problem}.", "It needs images, annotations and categories."
        ) from error


def _contents(document: dict[str, Any], file: Path, root: Path) -> _Contents:
    found = _Contents({entry["id"]: class_name(entry["name"]) for entry in document["categories"]})
    things: dict[Any, list[dict[str, Any]]] = {}
    for annotation in document["annotations"]:
        things.setdefault(annotation["image_id"], []).append(annotation)
    places, exists = _places(file, root), FileIndex()
    for image in document["images"]:
        own = things.get(image["id"], [])
        labels = {_label(thing, found.categories, file) for thing in own}
        if len(labels) != 1:
            found.mixed += len(labels) > 1
            found.bare += not labels
            continue
        boxes = tuple(_box(thing, file) for thing in own if thing.get("bbox") and not thing.get("iscrowd"))
        found.records.append(Record(_find(image["file_name"], places, exists, file), labels.pop(), boxes))
    return found


def _label(thing: dict[str, Any], categories: dict[int, str], file: Path) -> str:
    number = thing["category_id"]
    if number not in categories:
        raise UserError(f"{file} annotation {thing.get('id', '?')}: there is no category {number}.", "Export it again.")
    return categories[number]


def _box(thing: dict[str, Any], file: Path) -> BoxXYXY:
    where = f"{file} annotation {thing.get('id', '?')}"
    try:
        x, y, width, height = map(float, thing["bbox"])
    except (TypeError, ValueError, OverflowError):
        return make_box(thing["bbox"], where)
    return make_box((x, y, x + width, y + height), where)


def _places(file: Path, root: Path) -> list[Path]:
    """Where photos can be: beside the JSON, in images/ or data/, or in a folder such as train2017/ one level up."""
    above = file.parent.parent if root.is_file() or file.parent != root else root
    own = file.stem.rpartition("_")[2]
    inside = ("", "images", "data", own, f"images/{own}")
    places = [folder / inner for folder in (file.parent, above) for inner in inside]
    return list(dict.fromkeys(places))


def _find(name: str, places: list[Path], exists: FileIndex, file: Path) -> Path:
    for folder in places:
        if folder / name in exists:
            return folder / name
    raise UserError(f"{file} names {name}, which is not there.", f"Looked in {', '.join(map(str, places))}.")


def _names_in_id_order(contents: dict[Split, _Contents]) -> list[str]:
    by_id: dict[int, str] = {}
    for one in contents.values():
        for number, name in one.categories.items():
            if by_id.setdefault(number, name) != name:
                raise UserError(
                    f"Category {number} is '{by_id[number]}' in one file and '{name}' in another.",
                    "Export them together.",
                )
    in_order = sorted(by_id, key=lambda number: (type(number).__name__, number))
    return list(dict.fromkeys(by_id[number] for number in in_order))


def _notes(contents: dict[Split, _Contents], unused: list[str]) -> list[str]:
    notes = []
    for split, one in contents.items():
        photo = f"{split} photo"
        if one.mixed:
            notes.append(f"Skipped {count(one.mixed, photo)} with several categories. A photo needs one label.")
        if one.bare:
            notes.append(f"Skipped {count(one.bare, photo)} without annotations.")
    if unused:
        notes.append(f"Categories without training photos were left out: {', '.join(unused)}.")
    return notes
