"""Photos and labels on disk -> `Dataset`. One short file per layout; nothing here opens the pixels of a photo."""

from pathlib import Path
from typing import Protocol

from fdcnet.config import DataConfig
from fdcnet.data.records import Dataset
from fdcnet.errors import UserError
from fdcnet.registry import Entry, Registry

__all__ = ["FORMATS", "open_dataset", "read", "recognise"]

HERE = "fdcnet.data.sources"


class Format(Protocol):
    """A module of this package."""

    def recognises(self, root: Path) -> bool: ...

    def read(self, root: Path, limit: int) -> Dataset: ...


# `auto` takes the first that recognises the path: layouts with unmistakable files come before plain folders.
FORMATS: Registry[Format] = Registry(
    "There is no data format",
    {
        "cub": Entry(f"{HERE}.cub", "CUB-200-2011"),
        "wsol": Entry(f"{HERE}.wsol", "WSOL benchmark metadata"),
        "coco": Entry(f"{HERE}.coco", "COCO JSON"),
        "yolo": Entry(f"{HERE}.yolo", "YOLO"),
        "csv": Entry(f"{HERE}.csv_list", "a CSV file with the columns path,label"),
        "imagenet": Entry(f"{HERE}.imagenet", "ImageNet"),
        "folders": Entry(f"{HERE}.folders", "a folder per class"),
    },
    hint="'auto' detects it.",
)


def open_dataset(config: DataConfig) -> Dataset:
    """The data set that the settings name: photos on disk, or the generated set."""
    if config.path != "synthetic":
        return read(config.path, config.format, config.classes)
    from fdcnet.data.cache import default_cache_dir
    from fdcnet.data.synthetic import VERSION, make_synthetic

    dataset = make_synthetic(default_cache_dir() / f"synthetic-{VERSION}")
    return dataset.first(config.classes) if config.classes else dataset


def read(path: str | Path, format: str = "auto", classes: int = 0) -> Dataset:
    """Read a data set and detect its layout. `classes=N` keeps the first N classes in natural order."""
    root = Path(path).expanduser().absolute()
    if not root.exists():
        raise UserError(f"There is no file or folder {root}.", "Check the spelling, or where the command is run.")
    if classes < 0:
        raise UserError(f"classes cannot be {classes}.", "Give the number of classes to keep, or 0 for all.")
    try:
        return FORMATS.find(recognise(root) if format == "auto" else format).read(root, classes)
    except PermissionError as error:
        raise UserError(f"No permission to read {error.filename}.", "Change its permissions.") from error


def recognise(root: Path) -> str:
    """The name of the layout found at `root`."""
    for name, format in FORMATS.items():
        if format.recognises(root):
            return name
    raise UserError(
        f"Unrecognized dataset format: {root}",
        "Use a folder with one folder per class, a CSV with the columns path,label, a COCO JSON or a YOLO data.yaml.",
    )
