"""The example lesson: three generated classes that are learned in seconds, for users without photos at hand."""

from pathlib import Path
from typing import Any

from fdcnet.data.synthetic import make_synthetic
from fdcnet.web.uploads import Upload

NUM_CLASSES, NUM_PHOTOS, NUM_UNSEEN, SIDE = 3, 8, 4, 128  # photos per class
SETTINGS: dict[str, Any] = {"epochs": 6, "overrides": ("data.size=128", "data.crop=112")}
"""Small photos: three classes are learned in about 5 s on one CPU core."""


def make_example(folder: Path) -> Upload:
    photos = make_synthetic(folder / "photos", NUM_CLASSES, NUM_PHOTOS, NUM_UNSEEN, SIDE)
    return Upload(folder, list(photos.classes), list(photos.train), list(photos.test))
