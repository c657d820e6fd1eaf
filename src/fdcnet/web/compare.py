"""A few photos, as the model saw them before a lesson and as it sees them now."""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

import torch
from PIL import Image

from fdcnet.data.cache import PixelCache
from fdcnet.data.decode import upright
from fdcnet.data.records import Record
from fdcnet.inference.localizer import Localizer
from fdcnet.inference.prediction import Prediction
from fdcnet.methods.base import State
from fdcnet.store.bundle import load_bundle
from fdcnet.store.photo_history import identities
from fdcnet.web.model import Model
from fdcnet.web.uploads import Upload

EACH = 4  # photos of new classes, and as many of old ones
SIDE = 480


@dataclass(frozen=True)
class Compared:
    jpeg: bytes
    facts: dict[str, Any]


def compare(before: Localizer | None, model: Model, upload: Upload) -> list[Compared]:
    """Photos that nothing was learned from come first."""
    state, after = load_bundle(model.path), model.localizer()
    chosen = [*_of_lesson(upload, state), *_of_old_classes(upload, state.held_out)]
    return [_compared(before, after, *photo) for photo in chosen]


def _of_lesson(upload: Upload, state: State) -> Iterator[tuple[Image.Image, str, str]]:
    """(photo, class, what it is)"""
    photos = PixelCache.build(upload.records, state.config.data.size, None, torch.device("cpu"))
    names = zip(photos.records, identities(photos), strict=True)
    unseen = {record.path for record, name in names if state.photo_history.get(name) is False}
    for record in _in_turns(sorted(photos.records, key=lambda record: record.path not in unseen), EACH):
        yield upright(record.path, SIDE), record.label, "new" if record.path in unseen else "learned"


def _of_old_classes(upload: Upload, held_out: PixelCache | None) -> Iterator[tuple[Image.Image, str, str]]:
    if held_out is None:
        return
    rows = {id(record): row for row, record in enumerate(held_out.records)}
    old = [record for record in held_out.records if record.label not in upload.classes]
    for record in _in_turns(old, EACH):
        row = rows[id(record)]
        width, height = held_out.sizes[row].tolist()
        scale = SIDE / max(width, height)
        image = Image.fromarray(held_out.pixels[row].cpu().numpy())
        yield image.resize((max(1, round(width * scale)), max(1, round(height * scale)))), record.label, "old"


def _in_turns(records: Iterable[Record], count: int) -> Iterator[Record]:
    """One of each class, then a second one of each, and so on."""
    of_class: dict[str, list[Record]] = {}
    for record in records:
        of_class.setdefault(record.label, []).append(record)
    rounds = zip_longest(*of_class.values())
    return islice((record for turn in rounds for record in turn if record is not None), count)


def _compared(before: Localizer | None, after: Localizer, photo: Image.Image, label: str, kind: str) -> Compared:
    buffer = io.BytesIO()
    photo.save(buffer, "JPEG", quality=88)
    facts = {
        "class": label,
        "kind": kind,
        "width": photo.width,
        "height": photo.height,
        "before": _short(before.predict(photo)) if before else None,
        "after": _short(after.predict(photo)),
    }
    return Compared(buffer.getvalue(), facts)


def _short(prediction: Prediction) -> dict[str, Any]:
    facts = prediction.to_dict()
    return {key: facts[key] for key in ("class", "score", "box")}
