"""The versions of a model: one writer at a time adds them, the file `current` names the one in use.

    MODEL/current             the number of a version; replaced in one move
    MODEL/versions/3/         a whole bundle, and learned.json: when, what was added, how well it did

A bundle without `current` (as `fdcnet train` writes it) becomes version 1 when the next one is added.
"""

import contextlib
import errno
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fdcnet.errors import UserError
from fdcnet.files import LOCK, creating, is_temporary, locked, remove_folder, remove_leftovers, write_bytes
from fdcnet.methods.base import State
from fdcnet.store.bundle import (
    CURRENT,
    VERSIONS,
    current_dir,
    current_number,
    has_bundle,
    kept_numbers,
    pointed_number,
    read_description,
    reading,
    retry_if_changed,
    write_bundle,
)
from fdcnet.store.record import now

LEARNED = "learned.json"
BUNDLE = ("fdcnet.json", "weights.safetensors", "memory", "held_out", LEARNED)
"""What a bundle without versions consists of."""
NEW = ".new"


@dataclass(frozen=True)
class Version:
    """One state of a model. `path` is a bundle of its own: `load_bundle` and `Localizer.load` take it."""

    number: int
    path: Path
    current: bool
    parent: int | None
    created: datetime
    classes: tuple[str, ...]
    num_tasks: int
    added: tuple[str, ...]  # classes that came with this version
    learned: Mapping[str, Any]  # the rest of learned.json; empty if `fdcnet train` made it

    @property
    def num_bytes(self) -> int:
        total = 0
        with contextlib.suppress(FileNotFoundError):  # somebody is removing it
            for name in BUNDLE:
                files = (self.path / name, *(self.path / name).rglob("*"))
                total += sum(file.stat().st_size for file in files if file.is_file())
        return total


def versions(path: Path) -> list[Version]:
    """All that are kept, the oldest first. A model without versions is its own version 1."""
    path = Path(path)
    return retry_if_changed(lambda: (current_number(path), kept_numbers(path)), lambda seen: _kept(path, *seen))


def _kept(path: Path, number: int | None, numbers: list[int]) -> list[Version]:
    if number is None:
        return [_version(current_dir(path), 1, True)] if has_bundle(path) else []
    if number not in numbers:
        read_description(path)  # says what is wrong
    return [_version(path / VERSIONS / str(n), n, n == number) for n in numbers]


def is_unborn(path: Path) -> bool:
    """Whether a folder holds nothing, or only what a killed first lesson has left: no model, and room for one."""
    leftovers = {LOCK, VERSIONS}
    entries = list(path.iterdir()) if path.is_dir() and not has_bundle(path) else [path]
    return all(entry.name in leftovers or is_temporary(entry) for entry in entries)


def after_tasks(path: Path) -> dict[int, Version]:
    """Task -> what the model knew after it, as far as the current version's ancestors are kept."""
    after: dict[int, Version] = {}
    for version in _line(path):
        after.setdefault(version.num_tasks, version)
    return dict(sorted(after.items()))


def _line(path: Path) -> list[Version]:
    """The current version, its parent, and so on, as far as they are kept."""
    known = {version.number: version for version in versions(path)}
    line = [version for version in known.values() if version.current]
    while line and (parent := known.get(line[-1].parent or 0)) and parent.number < line[-1].number:
        line.append(parent)
    return line


def add_version(state: State, path: Path, learned: Mapping[str, Any], keep: int) -> Version:
    """Write `state` as the newest version and make it the current one; all but `keep` earlier ones go."""
    parent = current_number(path) or (1 if has_bundle(path) else None)
    number = 1 + max([*kept_numbers(path), parent or 0])
    try:
        with _room_for(path):
            if parent and current_number(path) is None:
                _adopt(path)
            with creating(path / VERSIONS / str(number)) as new:
                write_bundle(state, new)
                facts = {"version": number, "parent": parent, "created": now()}
                _write(new / LEARNED, json.dumps(facts | dict(learned), indent=1, ensure_ascii=False))
            _point(path, number)
    except BaseException:
        if pointed_number(path) != number:
            remove_folder(path / VERSIONS / str(number))
        raise
    _prune(path, keep)
    return _version(path / VERSIONS / str(number), number, True)


def can_go_back(path: Path) -> bool:
    """Whether `rollback` finds an earlier version."""
    return any(number < (current_number(path) or 1) for number in kept_numbers(path))


def rollback(path: Path, to: int | None = None) -> Version:
    """Make an earlier version the current one: the parent, or number `to` (a later one, too, as long as it is kept)."""
    path = Path(path)
    if to not in kept_numbers(path) and not has_bundle(path):
        read_description(path)  # says what is wrong
    with writing(path):
        if to in kept_numbers(path):  # also where `current` names one that is gone
            return _use(path, to)
        kept = {version.number: version for version in versions(path)}
        here = next(version for version in kept.values() if version.current)
        if to == here.number:
            return here
        wanted = here.parent if here.parent in kept else max((n for n in kept if n < here.number), default=None)
        if to is not None or wanted is None:
            numbers = ", ".join(map(str, kept))
            problem = f"There is no version {to} of {path}." if to is not None else f"{path} has no earlier version."
            raise UserError(problem, f"Kept are: {numbers} (now: {here.number}). 'fdcnet history {path}' shows them.")
        return _use(path, wanted)


def _use(path: Path, number: int) -> Version:
    version = _version(path / VERSIONS / str(number), number, True)
    with _room_for(path):
        _point(path, number)
    return version


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Only one writer at a time, in this process or any other; readers go on. The lock of a dead process is void."""
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    with contextlib.ExitStack() as leaving:
        leaving.callback(_remove_empty, *created)  # nothing came of it: leave nothing
        try:
            if not path.exists() and has_bundle(path):
                current_dir(path).rename(path)  # or an empty folder would hide it
            path.mkdir(parents=True, exist_ok=True)
            leaving.enter_context(locked(path))
        except OSError as error:
            raise UserError(
                f"{path} cannot be written: {error.strerror or error}.", "Choose a folder that you may write to."
            ) from error
        leaving.callback(_remove_empty, path / VERSIONS)
        _sweep(path)
        yield


def _remove_empty(*folders: Path) -> None:
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _sweep(path: Path) -> None:
    """What a writer that was killed has left."""
    remove_leftovers(path, older_than=0)
    remove_leftovers(path / VERSIONS, older_than=0)
    for folder in (path / VERSIONS).glob("*"):
        half_removed = folder.name.isdigit() and not (folder / "fdcnet.json").is_file()
        if half_removed or folder.suffix == NEW:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _room_for(path: Path) -> Iterator[None]:
    """What goes wrong while writing, in words."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        problem = "The disk is full" if full else f"{path} cannot be written ({error})"
        remedy = "Free some space" if full else "Check its permissions and the disk"
        raise UserError(f"{problem}: the model is as it was.", f"{remedy}, then try again.") from error


def _adopt(path: Path) -> None:
    """The bundle that lies directly in the folder, as version 1. Until `current` is there, it is read as before."""
    remove_folder(path / VERSIONS / "1")
    with creating(path / VERSIONS / "1") as new:
        for name in BUNDLE:
            if (path / name).is_dir():
                shutil.copytree(path / name, new / name)
            elif (path / name).exists():
                shutil.copy2(path / name, new / name)
        if (new / LEARNED).is_file():  # a copy of another model's version, whose parents are not here
            _write(new / LEARNED, json.dumps(_learned(new) | {"version": 1, "parent": None}, indent=1))


def _prune(path: Path, keep: int) -> None:
    """Kept are the current version's ancestors, the nearest first, then what was left behind by going back."""
    for name in BUNDLE:  # what `_adopt` has copied
        shutil.rmtree(path / name, ignore_errors=True)
        with contextlib.suppress(OSError):
            (path / name).unlink()
    line = [version.number for version in _line(path)]
    others = [number for number in reversed(kept_numbers(path)) if number not in line]
    for number in [*line, *others][1 + keep :]:
        remove_folder(path / VERSIONS / str(number))


def _version(path: Path, number: int, current: bool) -> Version:
    description = read_description(path)
    classes = tuple(entry["name"] for entry in description["classes"])
    changed = datetime.fromtimestamp((path / "fdcnet.json").stat().st_mtime, UTC)
    learned = _learned(path)
    with reading(path / LEARNED):
        created = datetime.fromisoformat(learned["created"]) if learned else changed
        added = tuple(map(str, learned.get("added", classes)))
    return Version(
        number=number,
        path=path,
        current=current,
        parent=learned.get("parent"),
        created=created,
        classes=classes,
        num_tasks=len(description["task_sizes"]),
        added=added,
        learned=learned,
    )


def _learned(bundle: Path) -> dict[str, Any]:
    if not (bundle / LEARNED).is_file():
        return {}
    with reading(bundle / LEARNED):
        learned = json.loads((bundle / LEARNED).read_text(encoding="utf-8"))
        if not isinstance(learned, dict):
            raise TypeError("it holds no facts")
        return learned


def _point(path: Path, number: int) -> None:
    write_bytes(path / CURRENT, f"{number}\n".encode())


def _write(file: Path, text: str) -> None:
    write_bytes(file, text.encode("utf-8", "backslashreplace"))
