"""Photos and labels on disk -> `Dataset`. One short file per layout; nothing here opens the pixels of a photo."""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fdcnet.config import DataConfig
from fdcnet.data.cache import default_cache_dir
from fdcnet.data.records import Dataset
from fdcnet.data.sources import coco, csv_list, cub, folders, imagenet, wsol
from fdcnet.data.synthetic import VERSION, make_synthetic
from fdcnet.errors import UserError

__all__ = ["FORMATS", "open_dataset", "read", "recognise"]


class Format(NamedTuple):
    recognises: Callable[[Path], bool]
    read: Callable[[Path, int], Dataset]


# `auto` takes the first that recognises the path: layouts with unmistakable files come before plain folders.
FORMATS: dict[str, Format] = {
    "cub": Format(cub.recognises, cub.read),
    "wsol": Format(wsol.recognises, wsol.read),
    "coco": Format(coco.recognises, coco.read),
    "csv": Format(csv_list.recognises, csv_list.read),
    "imagenet": Format(imagenet.recognises, imagenet.read),
    "folders": Format(folders.recognises, folders.read),
}


def open_dataset(config: DataConfig) -> Dataset:
    """What the settings name: photos on disk, or the generated set."""
    if config.path != "synthetic":
        return read(config.path, config.format, config.classes)
    dataset = make_synthetic(default_cache_dir() / f"synthetic-{VERSION}")
    return dataset.first(config.classes) if config.classes else dataset


def read(path: str | Path, format: str = "auto", classes: int = 0) -> Dataset:
    """Read a data set, recognising its layout. `classes=N` keeps the first N classes in natural order."""
    root = Path(path).expanduser().absolute()
    if not root.exists():
        raise UserError(f"There is no file or folder {root}.", "Check the spelling, or where the command is run.")
    if classes < 0:
        raise UserError(f"classes cannot be {classes}.", "Give the number of classes to keep, or 0 for all.")
    try:
        name = recognise(root) if format == "auto" else format
        if name not in FORMATS:
            near = difflib.get_close_matches(name, FORMATS, n=1)
            hint = f"Did you mean '{near[0]}'?" if near else f"Choose one of: auto, {', '.join(FORMATS)}."
            raise UserError(f"There is no data format '{name}'.", hint)
        return FORMATS[name].read(root, classes)
    except PermissionError as error:
        raise UserError(f"{error.filename} may not be read.", "Give yourself permission to read it.") from error


def recognise(root: Path) -> str:
    """The name of the layout found at `root`."""
    for name, format in FORMATS.items():
        if format.recognises(root):
            return name
    raise UserError(
        f"{root} is not a list of photos that is known here.",
        "Name a folder with one folder per class, a .csv with the columns path,label, or a COCO .json.",
    )
