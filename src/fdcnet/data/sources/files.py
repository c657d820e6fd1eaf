"""Which files are photos, the order of names, and folder listings that cost one system call per folder."""

import os
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fdcnet.data.decode import readable_formats

OPTIONAL_SUFFIXES = {"HEIF": (".heic", ".heif"), "AVIF": (".avif",)}  # by Pillow's name of the format
IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}.union(
        *(suffixes for name, suffixes in OPTIONAL_SUFFIXES.items() if name in readable_formats())
    )
)
FOREIGN_SUFFIXES = (
    frozenset({".heic", ".heif", ".avif", ".jp2", ".svg", ".psd", ".dng", ".cr2", ".nef", ".arw"}) - IMAGE_SUFFIXES
)
ACCEPTED = ", ".join(sorted(suffix[1:] for suffix in IMAGE_SUFFIXES))
_SYSTEM_FOLDERS = frozenset({"__MACOSX", "__pycache__", "@eaDir"})


def natural_key(name: str) -> tuple[list[str | int], str]:
    """Sort numbers by value, so that class2 comes before class10. Case only matters for otherwise equal names."""
    parts = re.split(r"(\d{1,18})", name.casefold())  # int() refuses thousands of digits
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name


def class_name(text: str) -> str:
    """Normalise accents, which macOS writes as separate characters."""
    return unicodedata.normalize("NFC", text.strip())


def set_name(root: Path) -> str:
    path = Path(os.path.abspath(root))  # noqa: PTH100 (resolve() would follow a link and lose its name)
    return path.name if path.is_dir() else path.stem


def subfolders(folder: Path) -> list[Path]:
    """Visible folders in natural order."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if not _ignored(e.name) and e.is_dir()]
    return [folder / name for name in sorted(names, key=natural_key)]


def files_named(folder: Path, suffix: str) -> list[Path]:
    """Visible files of this folder with this suffix, in natural order."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if e.name.lower().endswith(suffix) and not _ignored(e.name) and e.is_file()]
    return [folder / name for name in sorted(names, key=natural_key)]


@dataclass
class Listing:
    """The content of a folder."""

    images: list[Path] = field(default_factory=list)
    annotations: dict[str, Path] = field(default_factory=dict)  # path without suffix -> .xml
    foreign_files: list[Path] = field(default_factory=list)  # photos in formats that cannot be read
    folders: list[Path] = field(default_factory=list)

    @property
    def foreign(self) -> Counter[str]:
        return Counter(file.suffix.lower() for file in self.foreign_files)

    def annotation(self, image: Path) -> Path | None:
        return self.annotations.get(_stem_path(image)) if self.annotations else None


def listing(folder: Path, deep: bool = False) -> Listing:
    """List a folder, with `deep` also all folders below it. Links cannot make it visit a folder twice."""
    found = Listing()
    images: list[str] = []  # sorted as text, because comparing a million Paths is slow
    waiting, seen = [folder], set()
    while waiting:
        current = waiting.pop()
        real = os.path.realpath(current)
        if real not in seen:
            seen.add(real)
            inner = _list_one(current, images, found)
            found.folders += inner
            waiting += inner if deep else []
    found.images = [Path(image) for image in sorted(images)]
    found.folders.sort()
    return found


def _list_one(folder: Path, images: list[str], found: Listing) -> list[Path]:
    inner = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if _ignored(entry.name):
                continue
            suffix = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122
            if entry.is_dir():
                inner.append(Path(entry.path))
            elif not entry.is_file() and Path(entry.path).exists():  # a pipe or device would block for ever
                continue
            elif suffix in IMAGE_SUFFIXES:
                images.append(entry.path)
            elif suffix == ".xml":
                path = Path(entry.path)
                found.annotations[_stem_path(path)] = path
            elif suffix in FOREIGN_SUFFIXES:
                found.foreign_files.append(Path(entry.path))
    return inner


class FileIndex:
    """Tests whether files exist with one listing per folder instead of one system call per file."""

    def __init__(self) -> None:
        self._names: dict[Path, frozenset[str]] = {}

    def __contains__(self, path: Path) -> bool:
        folder = path.parent
        try:
            if folder not in self._names:
                self._names[folder] = frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()  # noqa: PTH208
            names = self._names[folder]
            return path.name in names or (bool(names) and path.is_file())  # on a case-insensitive file system
        except (OSError, ValueError):  # a name that no file system allows
            return False


def _ignored(name: str) -> bool:
    return name.startswith(".") or name in _SYSTEM_FOLDERS


def _stem_path(path: Path) -> str:
    return os.path.splitext(path)[0]  # noqa: PTH122
