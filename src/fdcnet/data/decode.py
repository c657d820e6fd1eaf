"""Decode one photo to a square of RGB bytes. Any problem with a file becomes `BadImage` with a short reason."""

import contextlib
import importlib.util
import io
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.Image import Resampling, Transpose

from fdcnet.files import open_regular

Source = Path | bytes | Image.Image

UPRIGHT = {  # EXIF orientation -> what turns the stored pixels upright
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
TOO_LARGE = "too large"
MAX_SIDE = 65_535  # pixels, as in JPEG; resizing one very long row takes gigabytes
MAX_TIFF_PIXELS_PER_BYTE = 1000  # a few bytes can hold a picture that takes minutes
ORIENTATION_TAG = 0x0112
SIDEWAYS = (5, 6, 7, 8)
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF", "HEIF")
"""Pillow knows more, but hands some of them (EPS, also inside of others) to an interpreter: unsafe for unknown files.
AVIF and HEIF depend on the installation."""
HEIC_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")
ROWS = 256  # converted at a time: as float64 a large photo would take gigabytes


class BadImage(ValueError):
    """A file that cannot be read as a photo. The text is a short reason."""


def decode(source: Source, size: int) -> np.ndarray:
    """The upright photo as `size` x `size` RGB, without keeping its aspect ratio."""  # BAS
    return decode_with_size(source, size)[0]


def decode_with_size(source: Source, size: int) -> tuple[np.ndarray, tuple[int, int]]:
    """As `decode`, and the (width, height) of the upright photo, in whose pixels boxes are given."""
    try:
        if isinstance(source, Image.Image):
            return _square(source, source.size, size)
        with _open(source) as image:
            original = image.size
            # JPEG can be decoded at a reduced scale; twice the wanted side is enough for the filter.
            image.draft(None, (2 * size, 2 * size))
            return _square(image, original, size)
    except Exception as error:  # Pillow's plugins raise nearly anything on damaged bytes
        raise BadImage(_reason(error)) from error


def upright(source: Source, max_side: int | None = None) -> Image.Image:
    """The photo as displayed, in RGB, with its longer side reduced to `max_side`."""
    try:
        if isinstance(source, Image.Image):
            return _upright(source, max_side)
        with _open(source) as image:
            if max_side:
                image.draft(None, (max_side, max_side))
            return _upright(image, max_side)
    except Exception as error:
        raise BadImage(_reason(error)) from error


def image_size(path: Path) -> tuple[int, int]:
    """(width, height) of the upright photo, from the header if that is enough."""
    try:
        with _open(path) as image:
            if image.format == "TIFF":  # turned upright by Pillow itself, but only on loading
                image.load()
            return _upright_size(image.size, _orientation(image))
    except Exception as error:
        raise BadImage(_reason(error)) from error


@contextlib.contextmanager
def _open(source: Path | bytes) -> Iterator[Image.Image]:
    with io.BytesIO(source) if isinstance(source, bytes) else open_regular(source) as file:
        try:
            image = Image.open(file, formats=readable_formats())
        except UnidentifiedImageError:
            file.seek(0)
            start = file.read(12)
            if start[4:8] == b"ftyp" and start[8:12] in HEIC_BRANDS and "HEIF" not in readable_formats():
                raise BadImage("a HEIC photo, which needs: pip install 'fdcnet[heic]'") from None
            raise
        with image:
            refuse_bomb(image.size)
            if image.format == "TIFF":
                _refuse_tiff_bomb(image.size, file.seek(0, io.SEEK_END))
            yield image


@cache
def readable_formats() -> tuple[str, ...]:
    """Pillow's names of the formats that can be read in this installation."""
    Image.init()  # otherwise the first threads race for the plugins, and some see a format as unknown
    if importlib.util.find_spec("pillow_heif"):
        import pillow_heif

        pillow_heif.register_heif_opener()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _refuse_tiff_bomb(size: tuple[int, int], num_bytes: int) -> None:
    pixels = size[0] * size[1]
    if pixels > max(10**6, MAX_TIFF_PIXELS_PER_BYTE * num_bytes):
        raise BadImage(f"{TOO_LARGE}: {size[0]} x {size[1]} pixels in a file of {num_bytes} bytes")


def refuse_bomb(size: tuple[int, int]) -> None:
    # Pillow only warns between one and two times its limit, and turning warnings into errors is not thread-safe.
    too_many = Image.MAX_IMAGE_PIXELS is not None and size[0] * size[1] > Image.MAX_IMAGE_PIXELS
    if too_many or max(size) > MAX_SIDE:
        raise BadImage(f"{TOO_LARGE}: {size[0]} x {size[1]} pixels")


def _square(image: Image.Image, original: tuple[int, int], size: int) -> tuple[np.ndarray, tuple[int, int]]:
    image.load()
    orientation = _orientation(image)  # after loading: Pillow rotates a TIFF itself and then drops the tag
    if image.format == "TIFF":
        original = image.size
    square = _rgb(image)
    if square.size != (size, size):
        square = square.resize((size, size), Resampling.BILINEAR)
    if orientation in UPRIGHT:
        square = square.transpose(UPRIGHT[orientation])
    return np.array(square), _upright_size(original, orientation)


def _upright(image: Image.Image, max_side: int | None) -> Image.Image:
    image.load()
    orientation = _orientation(image)
    shown = _rgb(image)
    if max_side and max(shown.size) > max_side:
        scale = max_side / max(shown.size)
        width, height = (max(1, round(side * scale)) for side in shown.size)
        shown = shown.resize((width, height), Resampling.BILINEAR, reducing_gap=2.0)
    return shown.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else shown


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION_TAG, 1))
    except Exception:  # ignore damaged EXIF
        return 1


def _upright_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    return (size[1], size[0]) if orientation in SIDEWAYS else size


def _rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB, on a white background."""
    if image.mode.startswith(("I", "F")):
        image = Image.fromarray(_to_bytes(np.asarray(image)))
    elif _is_transparent(image):
        if image.mode == "La":  # Pillow converts it to nothing else
            image = image.convert("LA")
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _is_transparent(image: Image.Image) -> bool:
    in_palette = image.palette is not None and image.palette.mode.endswith("A")
    return image.mode.endswith(("A", "a")) or "transparency" in image.info or in_palette


def _to_bytes(values: np.ndarray) -> np.ndarray:
    """Grey values of any depth to 0..255. White is 65535 for integers, and for floats the smallest of 1, 255 and 65535
    that is not exceeded. Values outside of these ranges are stretched from their minimum to their maximum."""
    parts = [values[start : start + ROWS] for start in range(0, len(values), ROWS)]
    ranges = [(levels.min(), levels.max()) for levels in map(_levels, parts)]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    whites = (1.0, 255.0, 65535.0) if values.dtype.kind == "f" else (65535.0,)
    white, black = next((white for white in whites if high <= white), None), 0.0
    if low < 0 or white is None:
        white, black = max(high - low, 1e-12), low
    return np.concatenate([np.rint((_levels(part) - black) * (255.0 / white)).astype(np.uint8) for part in parts])


def _levels(values: np.ndarray) -> np.ndarray:
    levels = values.astype(np.float64)
    levels[~np.isfinite(levels)] = 0.0
    return levels


def _reason(error: Exception) -> str:
    if isinstance(error, BadImage):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"{TOO_LARGE}: more than {Image.MAX_IMAGE_PIXELS or 0:,} pixels"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split()) or type(error).__name__
    return "truncated" if "truncated" in text.lower() else text[:120]
