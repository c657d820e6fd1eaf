"""One photo, from a path, bytes, a PIL image, an array or a tensor."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fdcnet.data.decode import BadImage, Source, decode_with_size
from fdcnet.errors import UserError

KINDS = "Use a path, the bytes of a file, a PIL image, an array (height, width, 3) or a tensor (3, height, width)."


@dataclass(frozen=True)
class Photo:
    """A photo that is not decoded yet, with its name."""

    source: Source
    name: str = ""
    image_size: tuple[int, int] | None = None  # (width, height) of the original, if `source` is a reduced copy
    seconds: float | None = None  # position of a video frame
    problem: str | None = None  # why it cannot be decoded

    def decode(self, side: int) -> tuple[np.ndarray, tuple[int, int]]:
        """-> (side, side, 3), and the photo's own (width, height)"""
        if self.problem:
            raise BadImage(self.problem)
        pixels, size = decode_with_size(self.source, side)
        return pixels, self.image_size or size


def as_photo(x: Any) -> Photo:
    if isinstance(x, Photo):
        return x
    if isinstance(x, (str, Path)):
        return Photo(Path(x), Path(x).name)
    if isinstance(x, (bytes, bytearray, memoryview)):
        return Photo(bytes(x), "photo")
    if isinstance(x, Image.Image):
        return Photo(x, "photo")
    if isinstance(x, torch.Tensor):
        return Photo(
            _image(x.detach().cpu().movedim(0, -1).numpy() if x.ndim == 3 else x.detach().cpu().numpy()), "photo"
        )
    if isinstance(x, np.ndarray):
        return Photo(_image(x), "photo")
    raise UserError(f"A {type(x).__name__} is not a photo.", KINDS)


def is_batch(x: Any) -> bool:
    """Whether `x` holds several photos."""
    return isinstance(x, (list, tuple)) or (isinstance(x, (np.ndarray, torch.Tensor)) and x.ndim == 4)


def _image(pixels: np.ndarray) -> Image.Image:
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))) or 0 in pixels.shape:
        raise UserError(f"An array of shape {tuple(pixels.shape)} is not a photo.", KINDS)
    if pixels.dtype.kind == "f" and pixels.min() >= 0 and pixels.max() <= 1:
        pixels = np.rint(pixels * 255)
    elif pixels.dtype == bool:
        pixels = pixels * 255
    if not (pixels.min() >= 0 and pixels.max() <= 255):
        raise UserError("The array has values outside of 0..255.", "Use bytes, or floats from 0 to 1.")
    return Image.fromarray(np.ascontiguousarray(pixels.astype(np.uint8)))
