"""Which photos of a lesson are for training, which are held out for evaluation, and which the model already had.

A photo is identified by its class and its decoded pixels: a copy with another name or other metadata is the same photo.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fdcnet.data.cache import PixelCache
from fdcnet.methods.base import State
from fdcnet.store.photo_history import identities, in_model
from fdcnet.teaching import HOLDOUT

ENOUGH_TO_HOLD_OUT = 10  # photos of a class; with fewer, all are used for training
FEWEST_PHOTOS = 4


@dataclass(frozen=True)
class PhotoSplit:
    train: PixelCache
    test: PixelCache
    num_skipped: int  # already in the model, used for evaluation before, or duplicates
    history: dict[str, bool]  # for `State.photo_history`


def split_photos(
    old: State | None, train: PixelCache, test: PixelCache, share: float | None, repeat: bool = True
) -> PhotoSplit:
    """`test` is for evaluation if it has photos, else a share of each class of `train`.

    Training photos are never used for evaluation, and evaluation photos never for training. With `repeat`, photos of
    earlier lessons that are no longer in the model are used again; without, they are skipped.
    """
    inside = in_model(old) if old else {}
    had = inside | (old.photo_history if old else {})
    trained = {name for name, was_trained in had.items() if was_trained}
    names, test_names = identities(train), identities(test)
    test_rows = _first_rows(test_names, inside.keys() | trained)
    done = inside.keys() if repeat else inside.keys() | trained
    rows = _first_rows(names, done | {test_names[row] for row in test_rows})
    aside = _hold_out(train, rows, names, had, 0 if len(test) else share)
    train_rows, held_out = [row for row in rows if row not in aside], [row for row in rows if row in aside]
    photos, photo_names, kept = (test, test_names, test_rows) if len(test) else (train, names, held_out)
    history = (
        had
        | dict.fromkeys((photo_names[row] for row in kept), False)
        | dict.fromkeys((names[row] for row in train_rows), True)
    )
    num_skipped = len(train) + len(test) - len(train_rows) - len(kept)
    return PhotoSplit(train.rows(train_rows), photos.rows(kept), num_skipped, history)


def expected_to_train(num_train: int, num_test: int, share: float | None) -> int:
    """About how many photos will be left for training, before any is opened."""
    return num_train if num_test else round(num_train * (1 - (HOLDOUT if share is None else share)))


def _first_rows(names: Sequence[str], seen: Collection[str]) -> list[int]:
    """The first row of each photo that was not seen."""
    first = {name: row for row, name in reversed(list(enumerate(names))) if name not in seen}
    return sorted(first.values())


def _hold_out(
    photos: PixelCache, rows: Sequence[int], names: Sequence[str], had: Mapping[str, bool], share: float | None
) -> set[int]:
    """Rows used for evaluation before, and a share of the new ones, chosen by content: file names do not matter."""
    aside = {row for row in rows if had.get(names[row]) is False}
    if share == 0:
        return aside
    of_class: dict[str, list[int]] = {}
    for row in rows:
        of_class.setdefault(photos.records[row].label, []).append(row)
    for own in of_class.values():
        fresh = sorted((row for row in own if names[row] not in had), key=names.__getitem__)
        if len(fresh) >= (ENOUGH_TO_HOLD_OUT if share is None else FEWEST_PHOTOS + 1):
            count = round((HOLDOUT if share is None else share) * len(fresh))
            aside.update(fresh[: min(len(fresh) - 1, max(1, count))])
    return aside
