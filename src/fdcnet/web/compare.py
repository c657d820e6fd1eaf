"""Predictions for a few photos before and after a lesson."""

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
from fdcnet.web.model import ServedModel
from fdcnet.web.uploads import Upload

NUM_PHOTOS = 4  # of new classes, and as many of old ones
SIDE = 480


@dataclass(frozen=True)
class ComparedPhoto:
    jpeg: bytes
    info: dict[str, Any]


def compare(before: Localizer | None, model: ServedModel, upload: Upload) -> list[ComparedPhoto]:
    """Photos not used for learning come first."""
    state, after = load_bundle(model.path), model.localizer()
    chosen = [*_of_lesson(upload, state), *_of_old_classes(upload, state.held_out)]
    return [_compare(before, after, *photo) for photo in chosen]


def _of_lesson(upload: Upload, state: State) -> Iterator[tuple[Image.Image, str, str]]:
    """(photo, class, kind)"""
    photos = PixelCache.build([*upload.records, *upload.unseen], state.config.data.size, None, torch.device("cpu"))
    names = zip(photos.records, identities(photos), strict=True)
    unseen = {record.path for record, name in names if state.photo_history.get(name) is False}
    for record in _round_robin(sorted(photos.records, key=lambda record: record.path not in unseen), NUM_PHOTOS):
        yield upright(record.path, SIDE), record.label, "new" if record.path in unseen else "learned"


def _of_old_classes(upload: Upload, held_out: PixelCache | None) -> Iterator[tuple[Image.Image, str, str]]:
    if held_out is None:
        return
    rows = {id(record): row for row, record in enumerate(held_out.records)}
    old = [record for record in held_out.records if record.label not in upload.classes]
    is_refinement = not upload.records  # what was added last changes most
    for record in _round_robin(reversed(old), 2 * NUM_PHOTOS) if is_refinement else _round_robin(old, NUM_PHOTOS):
        row = rows[id(record)]
        width, height = held_out.sizes[row].tolist()
        scale = SIDE / max(width, height)
        image = Image.fromarray(held_out.pixels[row].cpu().numpy())
        yield image.resize((max(1, round(width * scale)), max(1, round(height * scale)))), record.label, "old"


def _round_robin(records: Iterable[Record], count: int) -> Iterator[Record]:
    """The first of each class, then the second of each, and so on."""
    of_class: dict[str, list[Record]] = {}
    for record in records:
        of_class.setdefault(record.label, []).append(record)
    rounds = zip_longest(*of_class.values())
    return islice((record for one_each in rounds for record in one_each if record is not None), count)


def _compare(before: Localizer | None, after: Localizer, photo: Image.Image, label: str, kind: str) -> ComparedPhoto:
    buffer = io.BytesIO()
    photo.save(buffer, "JPEG", quality=88)
    info = {
        "class": label,
        "kind": kind,
        "width": photo.width,
        "height": photo.height,
        "before": _summary(before.predict(photo)) if before else None,
        "after": _summary(after.predict(photo)),
    }
    return ComparedPhoto(buffer.getvalue(), info)


def _summary(prediction: Prediction) -> dict[str, Any]:
    values = prediction.to_dict()
    return {key: values[key] for key in ("class", "score", "box")}
