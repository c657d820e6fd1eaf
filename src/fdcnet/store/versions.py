"""The versions of a model: add one, go back to one, remove old ones. One writer at a time.

    MODEL/versions/3/         a bundle, and learned.json: when, what was added, how well it did
    MODEL/unfinished          the number of the version that is being added
    MODEL/stopped/            the checkpoint of a lesson that was stopped

A bundle without versions (as `fdcnet train` writes it) becomes version 1 when the next one is added.
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

from fdcnet.errors import UserError, count
from fdcnet.files import (
    LOCK,
    creating,
    is_temporary,
    locked,
    open_regular,
    remove_folder,
    remove_leftovers,
    write_bytes,
)
from fdcnet.methods.base import State
from fdcnet.store.bundle import LEARNED, write_bundle, write_learned
from fdcnet.store.description import (
    check_file,
    describe_bundle,
    has_file,
    own_files,
    problems,
    read_description,
    read_file,
    seal,
)
from fdcnet.store.layout import (
    CURRENT,
    DESCRIPTION,
    VERSIONS,
    DamagedModel,
    current_dir,
    current_number,
    has_bundle,
    is_number,
    kept_numbers,
    pointed_number,
    read_limited,
    reading,
    refuse_links,
    retry_if_changed,
)
from fdcnet.store.record import now

UNFINISHED = "unfinished"
STOPPED = "stopped"
TOP_LEVEL = {DESCRIPTION, "weights.safetensors", "discriminant.safetensors", LEARNED, "memory", "held_out"}
"""The entries of a bundle. A folder with others was not made by this program."""


@dataclass(frozen=True)
class Version:
    """One state of a model. `path` is a bundle that `load_bundle` and `Localizer.load` accept."""

    number: int
    path: Path
    current: bool
    parent: int | None
    created: datetime
    classes: tuple[str, ...]
    num_tasks: int
    added: tuple[str, ...]  # classes that are new in this version
    learned: Mapping[str, Any]  # learned.json; empty if `fdcnet train` wrote it

    @property
    def box_training(self) -> str:
        """How the boxes were trained, if this version differs in its boxes alone."""
        num_boxes = self.learned.get("boxes")
        if num_boxes:
            return f"boxes learned from {count(num_boxes, 'checked box')}"
        return "boxes refined" if self.learned.get("refined") else ""

    @property
    def knows_checked_boxes(self) -> bool:
        """Whether this version, or an earlier one that it continues, learned from checked boxes."""
        return bool(self.learned.get("boxes") or self.learned.get("knows_checked_boxes"))

    @property
    def num_bytes(self) -> int:
        with contextlib.suppress(FileNotFoundError, UserError):  # being removed
            names = (DESCRIPTION, *own_files(self.path, read_description(self.path)))
            return sum((self.path / name).lstat().st_size for name in names)
        return 0


def versions(path: Path) -> list[Version]:
    """All versions, oldest first. A model without versions is its own version 1."""
    path = Path(path)
    return retry_if_changed(lambda: (current_number(path), kept_numbers(path)), lambda seen: _kept(path, *seen))


def _kept(path: Path, number: int | None, numbers: list[int]) -> list[Version]:
    if number is None:
        return [_version(current_dir(path), 1, True)] if has_bundle(path) else []
    if number not in numbers:
        read_description(path)  # raises the right error
    return [_version(path / VERSIONS / str(n), n, n == number) for n in numbers]


def is_unborn(path: Path) -> bool:
    """Whether a folder is empty, or holds only what a killed first lesson has left."""
    leftovers = {LOCK, VERSIONS, UNFINISHED, STOPPED}
    entries = list(path.iterdir()) if path.is_dir() and not has_bundle(path) else [path]
    return all(entry.name in leftovers or is_temporary(entry) for entry in entries)


def after_tasks(path: Path) -> dict[int, Version]:
    """Task -> the first version that had learned it, among the current version and its ancestors."""
    after: dict[int, Version] = {}
    for version in lineage(path):
        after.setdefault(version.num_tasks, version)
    return dict(sorted(after.items()))


def lineage(path: Path) -> list[Version]:
    """The current version, its parent, and so on, while they exist."""
    known = {version.number: version for version in versions(path)}
    line = [version for version in known.values() if version.current]
    while line and (parent := known.get(line[-1].parent or 0)) and parent.number < line[-1].number:
        line.append(parent)
    return line


def add_version(state: State, path: Path, learned: Mapping[str, Any], keep: int) -> Version:
    """Write `state` as the newest version and make it the current one. Removes all but `keep` earlier ones."""
    parent = current_number(path) or (1 if has_bundle(path) else None)
    number = 1 + max([*kept_numbers(path), parent or 0])
    facts = {"version": number, "parent": parent, "created": now()} | dict(learned)
    if any(version.knows_checked_boxes for version in lineage(path)):  # recorded, as those versions may be removed
        facts["knows_checked_boxes"] = True
    try:
        with _room_for(path):
            if parent and current_number(path) is None:
                _adopt(path)
            write_bytes(path / UNFINISHED, str(number).encode())
            with creating(path / VERSIONS / str(number)) as new:
                write_bundle(state, new, facts)
            _point(path, number)
    except BaseException:
        if pointed_number(path) != number:
            remove_folder(path / VERSIONS / str(number))
        raise
    finally:
        (path / UNFINISHED).unlink(missing_ok=True)
    _prune(path, keep)
    return _version(path / VERSIONS / str(number), number, True)


def can_go_back(path: Path) -> bool:
    """Whether there is an earlier version."""
    return any(number < (current_number(path) or 1) for number in kept_numbers(path))


def rollback(path: Path, to: int | None = None) -> Version:
    """Make the parent of the current version the current one, or version `to` (earlier or later)."""
    path = Path(path)
    if to not in kept_numbers(path) and not has_bundle(path):
        read_description(path)  # raises the right error
    with writing(path):
        if to in kept_numbers(path):  # also if `current` names a version that is missing
            return _use(path, to)
        kept = {version.number: version for version in versions(path)}
        here = next(version for version in kept.values() if version.current)
        if to == here.number:
            return here
        wanted = here.parent if here.parent in kept else max((n for n in kept if n < here.number), default=None)
        if to is not None or wanted is None:
            numbers = ", ".join(map(str, kept))
            problem = f"There is no version {to} of {path}." if to is not None else f"{path} has no earlier version."
            raise UserError(problem, f"There are: {numbers} (current: {here.number}). See 'fdcnet history {path}'.")
        return _use(path, wanted)


def _use(path: Path, number: int) -> Version:
    if found := problems(path / VERSIONS / str(number)):
        raise DamagedModel(found[0], f"Choose another version: fdcnet verify {path} shows which are intact.")
    version = _version(path / VERSIONS / str(number), number, True)
    with _room_for(path):
        _point(path, number)
    return version


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Allow one writer at a time; readers are not blocked."""
    refuse_links(*(path / name for name in (LOCK, VERSIONS, CURRENT, UNFINISHED, STOPPED)))
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    with contextlib.ExitStack() as leaving:
        leaving.callback(_remove_empty, *created)
        try:
            if not path.exists() and has_bundle(path):
                current_dir(path).rename(path)  # otherwise an empty folder would hide it
            path.mkdir(parents=True, exist_ok=True)
            leaving.enter_context(locked(path))
        except OSError as error:
            raise UserError(
                f"Cannot write to {path}: {error.strerror or error}.", "Choose a folder with write permission."
            ) from error
        leaving.callback(_remove_empty, path / VERSIONS)
        _sweep(path)
        yield


def _remove_empty(*folders: Path) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _sweep(path: Path) -> None:
    """Remove what killed writers have left."""
    remove_leftovers(path / VERSIONS, older_than=0)
    for folder in (path / VERSIONS).glob("*"):
        half_written = is_number(folder.name.removesuffix(".new")) and not (folder / DESCRIPTION).is_file()
        if (half_written or folder.suffix == ".new") and _is_ours(folder):  # as earlier versions of fdcnet left them
            remove_folder(folder)
    with contextlib.suppress(OSError, ValueError):
        number = int(read_limited(path / UNFINISHED, 100))
        if current_number(path) != number:
            remove_folder(path / VERSIONS / str(number))
        (path / UNFINISHED).unlink()
    with contextlib.suppress(UserError):  # damaged: then nobody knows which files are its own
        if pointed_number(path) is not None and (path / DESCRIPTION).is_file():
            _remove_flat(path)


def _is_ours(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and all(entry.name in TOP_LEVEL for entry in folder.iterdir())


@contextlib.contextmanager
def _room_for(path: Path) -> Iterator[None]:
    """Turn an error while writing into a message."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        problem = "The disk is full" if full else f"Cannot write to {path} ({error})"
        remedy = "Free some space" if full else "Check permissions and the disk"
        raise UserError(f"{problem}: the model is unchanged.", f"{remedy}, then try again.") from error


def _adopt(path: Path) -> None:
    """Copy the bundle that lies directly in the folder to version 1. Until `current` exists, it is read as before."""
    if _is_ours(path / VERSIONS / "1"):  # a copy that was never used
        remove_folder(path / VERSIONS / "1")
    description = read_description(path)
    with creating(path / VERSIONS / "1") as new:
        for name in own_files(path, description):
            with reading(path / name):
                source = check_file(path, name, description)
            _copy(source, new / name)
        if (new / LEARNED).is_file():  # a copy of another model's version, whose parents are not here
            write_learned(new, _learned(path, description) | {"version": 1, "parent": None})
        if "files" in description:
            seal(new, description)
        else:
            _copy(path / DESCRIPTION, new / DESCRIPTION)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_regular(source, follow_links=False) as content, target.open("xb") as file:
        shutil.copyfileobj(content, file)


def _prune(path: Path, keep: int) -> None:
    """Keep the current version's ancestors, nearest first, then versions that were left by a rollback."""
    if (path / DESCRIPTION).is_file():  # `_adopt` has copied it
        _remove_flat(path)
    line = [version.number for version in lineage(path)]
    others = [number for number in reversed(kept_numbers(path)) if number not in line]
    for number in [*line, *others][1 + keep :]:
        remove_folder(path / VERSIONS / str(number))


def _remove_flat(path: Path) -> None:
    """Remove the files of the bundle that lies directly in the folder, and nothing else."""
    with contextlib.suppress(PermissionError):  # in use, on Windows; the description goes last, so this is tried again
        for name in (*own_files(path, describe_bundle(path)), DESCRIPTION):
            (path / name).unlink(missing_ok=True)
    _remove_empty(*(path / name for name in ("memory/images", "memory", "held_out/images", "held_out")))


def _version(path: Path, number: int, current: bool) -> Version:
    description = read_description(path)
    classes = tuple(entry["name"] for entry in description["classes"])
    changed = datetime.fromtimestamp((path / DESCRIPTION).stat().st_mtime, UTC)
    learned = _learned(path, description)
    with reading(path / LEARNED):
        created = datetime.fromisoformat(learned["created"]) if learned else changed
        added = tuple(map(str, learned.get("added", () if learned.get("boxes") else classes)))
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


def _learned(bundle: Path, description: dict[str, Any]) -> dict[str, Any]:
    if not has_file(bundle, LEARNED, description):
        return {}
    with reading(bundle / LEARNED):
        learned = json.loads(read_file(bundle, LEARNED, description))
        if not isinstance(learned, dict):
            raise TypeError("it is not a JSON object")
        return learned


def _point(path: Path, number: int) -> None:
    write_bytes(path / CURRENT, f"{number}\n".encode())
