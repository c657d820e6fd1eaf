"""A data set as a stream of tasks: each adds new classes and is tested on all classes so far."""

import hashlib
import os
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from fdcnet.data.records import Dataset, Record, Task
from fdcnet.data.sources.files import class_name
from fdcnet.data.sources.tables import text_lines
from fdcnet.errors import UserError, count
from fdcnet.files import did_you_mean

T = TypeVar("T")


def make_stream(
    dataset: Dataset,
    base_classes: int = 0,
    step_classes: int = 0,
    order: str = "natural",
    seed: int = 0,
    holdout: float = 0.0,
    order_seed: int | None = None,
) -> list[Task]:
    """Split the classes into tasks: `base_classes` first (0: all), then `step_classes` at a time (0: all the rest)."""
    classes = class_order(dataset, order, seed if order_seed is None else order_seed)
    train, test = _by_class(dataset.train), _by_class(dataset.test)
    if holdout:
        train, test = _hold_out(classes, train, holdout, seed)
    tasks: list[Task] = []
    seen: tuple[Record, ...] = ()
    for first, last in task_bounds(len(classes), base_classes, step_classes):
        new = classes[first:last]
        seen += _records(new, test)
        tasks.append(_task(len(tasks) + 1, new, first, _records(new, train), seen))
    return tasks


def append_task(classes_so_far: Sequence[str], dataset: Dataset, number: int = 0) -> Task:
    """The next task of an open-ended stream. Its test set covers only the new classes, because old photos are gone."""
    old = set(classes_so_far)
    known = [name for name in dataset.classes if name in old]
    if known:
        raise UserError(
            f"The model already knows '{known[0]}'{f' and {len(known) - 1} more' if len(known) > 1 else ''}.",
            "A task brings new classes only: remove or rename those folders.",
        )
    _refuse_duplicates(dataset.classes, dataset.name)
    train, test = _by_class(dataset.train), _by_class(dataset.test)
    new = dataset.classes
    number = number or (2 if classes_so_far else 1)
    return _task(number, new, len(classes_so_far), _records(new, train), _records(new, test))


def class_order(dataset: Dataset, order: str = "natural", seed: int = 0) -> tuple[str, ...]:
    """The order in which classes arrive: natural, seeded, or a text file with one class per line."""
    _refuse_duplicates(dataset.classes, dataset.name)
    if order == "natural":
        return dataset.classes
    if order == "seeded":
        return tuple(_shuffled(dataset.classes, seed))
    file = Path(order).expanduser()
    if not file.is_file():
        raise UserError(
            f"There is no class order '{order}'.", "Write natural, seeded, or a text file with one class per line."
        )
    names = [class_name(line) for line in text_lines(file) if line.strip()]
    for name in names:
        if name not in dataset.classes:
            hint = did_you_mean(name, dataset.classes, otherwise=f"It has: {', '.join(dataset.classes[:5])} ...")
            raise UserError(f"{file} names the class '{name}', which {dataset.name} does not have.", hint)
    if not names:
        raise UserError(f"{file} names no class.", "Write one class per line.")
    _refuse_duplicates(names, str(file))
    return tuple(names)


def fingerprint(records: Iterable[Record]) -> str:
    """A short hash of names, labels and file sizes. It is the same on every machine."""
    records = list(records)
    if not records:
        return hashlib.sha256().hexdigest()[:16]
    top = os.path.commonpath([os.path.abspath(record.path.parent) for record in records])  # noqa: PTH100
    digest = hashlib.sha256()
    for entry in sorted(_entry(record, top) for record in records):
        digest.update("\0".join(entry).encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()[:16]


def _entry(record: Record, top: str) -> tuple[str, str, str]:
    try:
        size = record.path.stat().st_size
    except OSError as error:
        raise UserError(
            f"{record.path} cannot be read: {error.strerror}.", "Restore the photo, or leave it out."
        ) from error
    relative = Path(os.path.abspath(record.path)).relative_to(top)  # noqa: PTH100
    return relative.as_posix(), record.label, str(size)


def task_bounds(total: int, base: int, step: int) -> list[tuple[int, int]]:
    """First and last+1 class of each task."""
    if min(base, step) < 0:
        raise UserError(f"Task sizes cannot be negative ({base}, {step}).", "Give numbers of classes, or 0 for all.")
    if step and not base:
        raise UserError(
            f"step_classes={step} is set, but not base_classes.", "Say how many classes the first task has."
        )
    if base > total:
        remedy = f"Use at most {total}: --base, or data.base_classes."
        raise UserError(f"The first task asks for {base} classes, the data has {total}.", remedy)
    starts = [0]
    if 0 < base < total:
        starts += range(base, total, step or total)
    return list(zip(starts, [*starts[1:], total], strict=True))


def _task(
    number: int, classes: Sequence[str], first_label: int, train: tuple[Record, ...], test: tuple[Record, ...]
) -> Task:
    if first_label + len(classes) < 2:
        raise UserError(
            f"The first task has one class only ({', '.join(classes)}).",
            "Telling classes apart needs at least two: add a class, or raise base_classes.",
        )
    with_photos = {record.label for record in train}
    for name in classes:
        if name not in with_photos:
            raise UserError(f"Class '{name}' has no training photos.", "Add photos of it, or remove the class.")
    return Task(number, tuple(classes), first_label, train, test)


def _by_class(records: Iterable[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.label].append(record)
    return groups


def _records(classes: Iterable[str], groups: dict[str, list[Record]]) -> tuple[Record, ...]:
    return tuple(record for name in classes for record in groups.get(name, ()))


def _hold_out(
    classes: Sequence[str], train: dict[str, list[Record]], share: float, seed: int
) -> tuple[dict[str, list[Record]], dict[str, list[Record]]]:
    """Move a fraction of each class from training to test. The choice does not depend on other classes."""
    if not 0 < share < 1:
        raise UserError(f"holdout cannot be {share}.", "Give a share between 0 and 1, such as 0.1, or 0 for none.")
    kept, held = {}, {}
    for name in classes:
        photos = train.get(name, [])
        number = max(1, round(share * len(photos)))
        if number >= len(photos):
            raise UserError(
                f"Class '{name}' has {count(len(photos), 'training photo')}: holdout would leave none.",
                "Add photos, or lower holdout.",
            )
        chosen = set(_shuffled(range(len(photos)), f"{seed} {name}")[:number])
        kept[name] = [photo for i, photo in enumerate(photos) if i not in chosen]
        held[name] = [photo for i, photo in enumerate(photos) if i in chosen]
    return kept, held


def _shuffled(items: Sequence[T], seed: int | str) -> list[T]:
    """Shuffle with `random()`, because Python guarantees its numbers on every version, but not those of `shuffle()`."""
    source = random.Random(seed)
    keys = [source.random() for _ in items]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


def _refuse_duplicates(classes: Sequence[str], where: str) -> None:
    seen: set[str] = set()
    for name in classes:
        if name in seen:
            raise UserError(f"{where} names the class '{name}' twice.", "A class can arrive in one task only.")
        seen.add(name)
