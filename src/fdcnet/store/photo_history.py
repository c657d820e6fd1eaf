"""Which photos a model was trained or evaluated with. A photo is identified by its class and its decoded pixels."""

import hashlib

from torch import Tensor

from fdcnet.data.cache import PixelCache
from fdcnet.methods.base import State


def identities(photos: PixelCache) -> list[str]:
    return [identity(record.label, pixels) for record, pixels in zip(photos.records, photos.pixels, strict=True)]


def identity(label: str, pixels: Tensor) -> str:
    digest = hashlib.blake2b(label.encode("utf-8", "surrogatepass"), digest_size=8)
    digest.update(pixels.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def in_model(state: State) -> dict[str, bool]:
    """The photos stored in the model, in the form of `State.photo_history`: exemplars and held-out photos."""
    exemplars = (identity(state.classes[label], photo) for label, own in state.memory.pixels.items() for photo in own)
    return dict.fromkeys(identities(state.held_out) if state.held_out else (), False) | dict.fromkeys(exemplars, True)


def num_taught(state: State, photos: PixelCache) -> int:
    """How many of these photos the model was trained on, as far as it has recorded them."""
    history = state.photo_history | in_model(state)
    return sum(history.get(name, False) for name in identities(photos))
