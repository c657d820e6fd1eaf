"""Files on disk: atomic writes, one writer at a time, regular files only, checksums. And "did you mean" for names."""

import contextlib
import difflib
import hashlib
import os
import re
import shutil
import socket
import stat
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from fdcnet.errors import UserError

LOCK = "lock"
MAX_ALIASES = 20  # in a YAML file
MAX_DEPTH = 50
MAX_YAML_CHARACTERS = 2**20
STALE_SECONDS = 3600.0  # a writer changes its temporary file more often than this
_TEMPORARY = re.compile(r"[0-9a-f]{32}\.tmp")
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has neither
_NON_BLOCKING = getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` if the block ends without an error.

    Readers see the old file or the new one, never a part of it, also after a crash. `Path(file.name)` is the
    temporary file, for code that needs a path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def creating(path: Path, replace: bool = False) -> Iterator[Path]:
    """A new folder that appears as `path` if the block ends without an error.

    With `replace` it takes the place of an existing folder. A kill between the two renames leaves that one under
    `old_name(path)`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        temporary.mkdir()
        yield temporary
        _sync_tree(temporary)
        if replace and path.exists():
            remove_folder(old_name(path))
            path.rename(old_name(path))
        temporary.rename(path)
        _sync_folder(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if replace:
        remove_folder(old_name(path))


def old_name(path: Path) -> Path:
    return path.with_name(path.name + ".old")


def remove_folder(path: Path) -> None:
    """Rename, then delete: a reader sees the whole folder or nothing. A link is removed, not what it points to."""
    temporary = _temporary(path)
    with contextlib.suppress(OSError):
        path.rename(temporary)
        _delete(temporary)


def remove_leftovers(folder: Path, older_than: float = STALE_SECONDS, inside: bool = False) -> None:
    """Delete the temporary files and folders of killed writers. With `inside`, also those in all folders below."""
    with contextlib.suppress(OSError):
        for path in list(folder.rglob("*") if inside else folder.iterdir()):
            if is_temporary(path) and time.time() - path.lstat().st_mtime >= older_than:
                _delete(path)


def is_temporary(path: Path) -> bool:
    return _TEMPORARY.search(path.name) is not None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Allow one writer at a time, across threads and processes. The lock of a dead process does not count."""
    from filelock import FileLock, Timeout  # here, because help and completion must start fast

    path = folder / LOCK
    lock = FileLock(path, blocking=False, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise UserError(
            f"{folder} is being changed by {_holder(path)}.", "Wait until it is done, then try again."
        ) from error
    try:
        remove_leftovers(folder, older_than=0)  # nobody else writes here
        with contextlib.suppress(OSError):  # the name only serves the message above
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        lock.release()


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of this folder now. The file alone may be the rest of a killed one."""
    from filelock import FileLock, Timeout

    if not (folder / LOCK).exists():
        return False
    lock = FileLock(folder / LOCK, blocking=False, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return True
    lock.release()
    return False


def open_regular(path: Path, follow_links: bool = True) -> BinaryIO:
    """Open for reading. Refuses devices and pipes, which could block for ever, and links where asked to."""
    flags = os.O_RDONLY | _BINARY | _NON_BLOCKING | (0 if follow_links else _NO_FOLLOW)
    if not follow_links and path.is_symlink():
        raise OSError(f"{path.name} is a link")
    file = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path.name} is not a regular file")
    return file


def sha256(path: Path, follow_links: bool = True) -> str:
    digest = hashlib.sha256()
    with open_regular(path, follow_links) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def did_you_mean(word: str, known: Iterable[str], otherwise: str, prefix: str = "") -> str:
    """Suggest the most similar known name."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.4)
    return f"Did you mean '{prefix}{near[0]}'?" if near else otherwise


def parse_yaml(text: str) -> Any:
    """Plain values from YAML. Raises `ValueError` for whatever is wrong, also for what takes gigabytes or hours.

    Aliases are limited because nested aliases multiply, and depth because the time grows with its square.
    """
    import yaml

    try:
        if len(text) > MAX_YAML_CHARACTERS:
            raise ValueError(f"more than {MAX_YAML_CHARACTERS:,} characters")
        depth = num_aliases = 0
        for event in yaml.parse(text):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            num_aliases += isinstance(event, yaml.AliasEvent)
            if depth > MAX_DEPTH:
                raise ValueError(f"nested more than {MAX_DEPTH} deep")
            if num_aliases > MAX_ALIASES:
                raise ValueError(f"more than {MAX_ALIASES} aliases")
        return yaml.safe_load(text)
    except Exception as error:  # PyYAML raises nearly anything, such as IndexError for "!!int ''"
        raise ValueError(" ".join(str(error).split())[:200] or type(error).__name__) from error


def _temporary(path: Path) -> Path:
    return path.with_name(f".{uuid.uuid4().hex}.tmp")


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError), open_regular(path, follow_links=False) as file:
        return file.read(200).decode("utf-8", "replace").strip() or "another process"
    return "another process"


def _sync_tree(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            _sync_folder(path)
        else:
            with path.open("rb+") as file:
                os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # Windows cannot open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
