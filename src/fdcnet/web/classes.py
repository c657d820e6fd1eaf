"""The classes of a model: photo counts and thumbnails from its memory, accuracy from its history."""

import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from fdcnet.store.bundle import load_bundle
from fdcnet.store.versions import Version

NUM_THUMBNAILS = 4
SIDE = 112  # pixels


@dataclass(frozen=True)
class KeptPhotos:
    """What a model keeps of one class."""

    thumbnails: tuple[bytes, ...]
    num_exemplars: int
    num_held_out: int


def read_kept_photos(bundle: Path) -> dict[str, KeptPhotos]:
    state = load_bundle(bundle)
    num_held_out = Counter(record.label for record in state.held_out.records) if state.held_out else Counter[str]()
    return {
        name: KeptPhotos(
            tuple(_thumbnail(photo) for photo in state.memory.pixels.get(label, ())[:NUM_THUMBNAILS]),
            len(state.memory.pixels.get(label, ())),
            num_held_out[name],
        )
        for label, name in enumerate(state.classes)
    }


def accuracy_history(name: str, versions: list[Version]) -> list[dict[str, Any]]:
    """Percent of the held-out photos of a class that are recognized, before and after each lesson."""
    lessons = [
        {
            "version": version.number,
            "before": _accuracy(version, name, "old_before"),
            "after": _accuracy(version, name, "old_after", "new_after"),
        }
        for version in versions
    ]
    return [lesson for lesson in lessons if lesson["after"] is not None]


def num_learned(name: str, versions: list[Version]) -> int | None:
    """Photos that the lessons of `versions` used for the class; None if unknown."""
    counts = [version.learned.get("num_photos", {}).get(name, 0) for version in versions]
    return sum(counts) or None


def _accuracy(version: Version, name: str, *keys: str) -> float | None:
    measured = [(version.learned.get(key) or {}).get("by_class", {}) for key in keys]
    return next((own[name] for own in measured if name in own), None)


def _thumbnail(pixels: Tensor) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.cpu().numpy()).resize((SIDE, SIDE)).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
