"""Which of the photos given teach, which measure, and which the model has had already.

A photo is its class and its decoded pixels: a copy under another name, or with other metadata, is the same photo.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fdcnet.data.cache import PixelCache
from fdcnet.methods.base import State
from fdcnet.store.photo_history import identities, in_model
from fdcnet.teaching import HOLDOUT

ENOUGH_TO_HOLD_OUT = 10  # photos of a class; with fewer, all are needed for learning
FEWEST_PHOTOS = 4


@dataclass(frozen=True)
class Sorted:
    """What the photos are for."""

    teach: PixelCache
    measure: PixelCache
    num_left_out: int  # they lie in the model, have measured it, or were given twice
    given: dict[str, bool]  # for `State.photo_history`


def sort_photos(old: State | None, train: PixelCache, test: PixelCache, share: float | None) -> Sorted:
    """`test` measures where there is some, else a share of each class of `train`.

    What has taught never measures later, and what has measured never teaches.
    """
    inside = in_model(old) if old else {}
    had = inside | (old.photo_history if old else {})
    names, test_names = identities(train), identities(test)
    measure = _once(test_names, inside.keys() | {name for name, taught in had.items() if taught})
    teach = _once(names, inside.keys() | {test_names[row] for row in measure})
    aside = _hold_out(train, teach, names, had, 0 if len(test) else share)
    teach, held = [row for row in teach if row not in aside], [row for row in teach if row in aside]
    taught = dict.fromkeys((names[row] for row in teach), True)
    photos, photo_names, rows = (test, test_names, measure) if len(test) else (train, names, held)
    measured = dict.fromkeys((photo_names[row] for row in rows), False)
    num_left_out = len(train) + len(test) - len(teach) - len(rows)
    return Sorted(train.rows(teach), photos.rows(rows), num_left_out, had | measured | taught)


def _once(names: Sequence[str], seen: Collection[str]) -> list[int]:
    """Rows of the photos that have not been seen, each of them once."""
    first = {name: row for row, name in reversed(list(enumerate(names))) if name not in seen}
    return sorted(first.values())


def _hold_out(
    photos: PixelCache, rows: Sequence[int], names: Sequence[str], had: Mapping[str, bool], share: float | None
) -> set[int]:
    """Rows that have measured, and a share of the fresh ones: chosen by content, so whatever their names."""
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
