"""Where the files of a model lie. A model is one bundle, or several under versions/; then `current` names one of them.

MODEL/current             the number of the version in use
MODEL/versions/3/         a bundle
"""

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from PIL import Image
from safetensors import SafetensorError

from fdcnet.errors import UserError, out_of_memory
from fdcnet.files import old_name, open_regular

S = TypeVar("S")
T = TypeVar("T")

DESCRIPTION = "fdcnet.json"
CURRENT = "current"
VERSIONS = "versions"
MAX_JSON_BYTES = 64 * 2**20
BROKEN = (
    *(ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError),
    *(RuntimeError, OSError, MemoryError, SafetensorError, Image.DecompressionBombError),
)
"""What reading a damaged or manipulated file may raise."""


class DamagedModel(UserError):
    """A file of a model cannot be used."""


@contextlib.contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn whatever goes wrong while reading `file` into a message that names the cause."""
    try:
        yield
    except BROKEN as error:
        reason = " ".join(str(error).split())[:200]
        if shortage := out_of_memory(error, f"reading {file}"):
            raise shortage from error
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE):
            raise UserError(f"Cannot read {file}: {error.strerror}.", "Check permissions and limits.") from error
        raise DamagedModel(f"{file} is damaged: {reason}", "Restore the model from a copy.") from error


def read_limited(file: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """The content of a regular file inside a model. Links are refused: a model from elsewhere must not lead out."""
    with open_regular(file, follow_links=False) as opened:
        content = opened.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"it is larger than {limit // 2**20} MB")
    return content


def refuse_links(*paths: Path) -> None:
    for path in paths:
        if path.is_symlink():
            raise UserError(f"{path} is a link.", "A model must not contain links. Replace it by what it points to.")


def read_current(path: Path, read: Callable[[Path], T]) -> T:
    """Apply `read` to the current version."""
    return retry_if_changed(lambda: current_dir(path), read)


def retry_if_changed(look: Callable[[], S], read: Callable[[S], T]) -> T:
    """Apply `read` to what `look` finds, again if a writer has replaced that in the meantime."""
    while True:
        seen = look()
        try:
            made = read(seen)
        except (UserError, OSError):
            if seen == look():
                raise
        else:
            if seen == look():
                return made


def current_dir(path: Path) -> Path:
    """The folder of the current version. See `files.creating` for why a bundle can have another name."""
    if number := current_number(path):
        return path / VERSIONS / str(number)
    old = old_name(path)
    return old if not path.exists() and old.exists() else path


def current_number(path: Path) -> int | None:
    """The version in use; None for a bundle without versions.

    A kill at the very end of a first lesson leaves a version without `current`. Then the newest one counts.
    """
    pointed = pointed_number(path)
    if pointed is None and not (path / DESCRIPTION).is_file():
        return max(kept_numbers(path), default=None)
    return pointed


def kept_numbers(path: Path) -> list[int]:
    """The numbers of all versions, oldest first."""
    refuse_links(path / VERSIONS)
    try:
        entries = list((path / VERSIONS).iterdir())
    except OSError:
        return []
    return sorted(int(entry.name) for entry in entries if is_number(entry.name) and _is_version(entry))


def pointed_number(path: Path) -> int | None:
    """The content of the file `current`."""
    pointer = path / CURRENT
    refuse_links(pointer)
    with reading(pointer):
        try:
            text = read_limited(pointer, 100).decode("ascii").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not is_number(text) or int(text) < 1:
            raise ValueError("it does not name a version")
        return int(text)


def has_bundle(path: Path) -> bool:
    return read_current(path, lambda bundle: (bundle / DESCRIPTION).is_file())


def _is_version(folder: Path) -> bool:
    refuse_links(folder)
    return (folder / DESCRIPTION).is_file()


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
