"""The last step of every reader: the training and test photos, and a check that each class has photos."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from fdcnet.data.records import Dataset, Record
from fdcnet.data.sources.files import ACCEPTED
from fdcnet.errors import UserError, count

Split = Literal["train", "val", "test"]

_WORDS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "val",
    "valid": "val",
    "validation": "val",
}


def split_of(name: str) -> Split | None:
    """The split that a folder or value names, in any case."""
    return _WORDS.get(name.strip().lower())


def split_in(name: str) -> Split | None:
    """The split that a file name contains, as in instances_train2017."""
    words = re.split(r"[^a-z]+", name.lower())
    return next((_WORDS[word] for word in words if word in _WORDS), None)


def first(classes: Sequence[str], limit: int) -> tuple[str, ...]:
    """The first `limit` classes (0: all)."""
    if limit > len(classes):
        raise UserError(
            f"{limit} classes are asked for, the data has {len(classes)}.", f"Ask for {len(classes)} or 0 (all)."
        )
    return tuple(classes[:limit] if limit else classes)


def assemble(
    name: str, classes: Sequence[str], splits: Mapping[Split, Sequence[Record]], limit: int, notes: Sequence[str] = ()
) -> Dataset:
    """Keep the first classes and their photos. `val` is used for testing if there is no `test`."""
    kept = first(classes, limit)
    train = _of(kept, splits.get("train", ()))
    test = _of(kept, splits.get("test", ())) or _of(kept, splits.get("val", ()))
    if not train and not test:
        raise UserError(f"{name} holds no photos.", f"Accepted are {ACCEPTED}.")
    notes = list(notes)
    if splits.get("test") and splits.get("val"):
        notes.append(f"Skipped {count(len(splits['val']), 'validation photo')}, because there is a test set.")
    if not train:
        notes.append("The set has test photos only: it can be evaluated, not learned.")
    _refuse_empty_classes(kept, train or test, "training photos" if train else "photos")
    return Dataset(name, kept, train, test, tuple(notes))


def _of(classes: Sequence[str], records: Sequence[Record]) -> tuple[Record, ...]:
    wanted = frozenset(classes)
    return tuple(record for record in records if record.label in wanted)


def _refuse_empty_classes(classes: Sequence[str], records: Sequence[Record], what: str) -> None:
    counts = Counter(record.label for record in records)
    empty = [label for label in classes if not counts[label]]
    if empty:
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise UserError(f"Class '{empty[0]}'{more} has no {what}.", "Add photos of it, or remove the class.")
