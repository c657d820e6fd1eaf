"""Draw a photo with its heat map, the predicted box (green) and the true boxes (red, dashed)."""

import base64
import io
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from fdcnet.inference.fonts import Colour, draw_line, line_length, shortened

# Dark violet to pale yellow. Lightness increases throughout, so it is readable in grey and with any colour vision.
COLOUR_STOPS = np.array(
    [(20, 12, 60), (88, 22, 122), (166, 38, 108), (224, 82, 60), (250, 156, 30), (253, 236, 140)], dtype=np.float32
)
STEPS = np.linspace(0, len(COLOUR_STOPS) - 1, 1021)  # includes every colour stop
SHADES = np.stack([np.interp(STEPS, range(len(COLOUR_STOPS)), channel) for channel in COLOUR_STOPS.T], axis=1).astype(
    np.float32
)
GREEN = (40, 232, 120)
RED = (255, 48, 56)
GREY = (214, 214, 220)
INK = (10, 24, 16)
SUPERSAMPLING = 3  # labels are drawn larger and reduced, for smooth corners
Box = Sequence[float]
Point = tuple[float, float]


def colourize(heat: NDArray[np.floating]) -> NDArray[np.float32]:
    """Map 0..1 to colours 0..255: (H, W) -> (H, W, 3)."""
    return SHADES.take(np.rint(heat * (len(SHADES) - 1)).astype(np.intp), axis=0, mode="clip")


def overlay(
    image: NDArray[np.uint8],  # (H, W, 3)
    heat: NDArray[np.floating],  # (h, w), 0..1
    box: Box | None = None,
    true_boxes: Sequence[Box] = (),
    opacity: float = 0.5,
) -> Image.Image:
    """Blend the map into the photo in proportion to its heat, so that the photo stays visible where the map is cold."""
    height, width = image.shape[:2]
    heat = _resize_heat(np.clip(np.nan_to_num(heat), 0, 1), height, width)
    strength = opacity * heat[..., None]  # (H, W, 1)
    drawn = Image.fromarray(np.rint(image * (1 - strength) + colourize(heat) * strength).astype(np.uint8))
    for true_box in true_boxes:
        draw_box(drawn, true_box, RED, dashed=True)
    if box is not None:
        draw_box(drawn, box, GREEN)
    return drawn


def draw_label(image: Image.Image, text: str, at: Point, colour: Colour = GREEN) -> None:
    """Draw a label above the point `at`, or below it where there is no room above."""
    height = max(14, round(min(image.size) / 18))
    font_size = round(SUPERSAMPLING * height * 0.62)
    text = shortened(text, font_size, SUPERSAMPLING * (image.width - height), bold=True)
    length = round(line_length(text, font_size, bold=True))
    patch = Image.new("L", (length + SUPERSAMPLING * height, SUPERSAMPLING * height))
    ImageDraw.Draw(patch).rounded_rectangle(
        (0, 0, patch.width - 1, patch.height - 1), SUPERSAMPLING * height // 4, fill=240
    )
    label = Image.new("RGB", patch.size, colour)
    draw_line(ImageDraw.Draw(label), (patch.width / 2, patch.height / 2), text, font_size, INK, bold=True)
    size = (patch.width // SUPERSAMPLING, height)
    x = min(max(round(at[0]) - line_width(image.size) // 2 - 1, 0), max(image.width - size[0], 0))
    y = round(at[1]) - height if at[1] >= height else round(at[1])
    smooth = Image.Resampling.BOX
    image.paste(
        label.resize(size, smooth), (x, min(max(y, 0), max(image.height - height, 0))), patch.resize(size, smooth)
    )


def line_width(size: tuple[int, int]) -> int:
    return max(2, round(min(size) / 80))


def data_uri(image: Image.Image, quality: int = 80) -> str:
    """Encode as a JPEG data URI."""
    buffer = io.BytesIO()
    # Chroma subsampling would turn thin coloured lines grey.
    image.convert("RGB").save(buffer, "JPEG", quality=quality, subsampling=0, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _resize_heat(heat: NDArray[np.floating], height: int, width: int) -> NDArray[np.floating]:
    if heat.shape == (height, width):
        return heat
    resized = Image.fromarray(heat.astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized)


def draw_box(image: Image.Image, box: Box, colour: Colour, dashed: bool = False) -> None:
    """Draw a box as a line on a wider dark one, visible on any photo. It is moved inside the photo if necessary."""
    line = line_width(image.size)
    dash = 4 * line if dashed else 0
    inset = (line + 2) / 2
    x0, x1 = sorted(min(max(float(x), inset), image.width - 1 - inset) for x in (box[0], box[2]))
    y0, y1 = sorted(min(max(float(y), inset), image.height - 1 - inset) for y in (box[1], box[3]))
    draw = ImageDraw.Draw(image, "RGBA")
    corners = [(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0), (x1, y0)]  # the repeated side closes the last corner
    for width, paint in ((line + 2, (0, 0, 0, 110)), (line, colour)):
        if dash:
            for start, end in _dashes(corners[:5], dash):
                draw.line([start, end], fill=paint, width=width)
        else:
            draw.line(corners, fill=paint, width=width, joint="curve")


def _dashes(corners: Sequence[Point], dash: float) -> Iterator[tuple[Point, Point]]:
    """Split each side into an odd number of equal pieces and yield every second one, so that all corners are drawn."""
    for (xa, ya), (xb, yb) in pairwise(corners):
        pieces = 2 * round((abs(xb - xa) + abs(yb - ya)) / (2 * dash)) + 1
        for i in range(0, pieces, 2):
            a, b = i / pieces, (i + 1) / pieces
            yield (xa + a * (xb - xa), ya + a * (yb - ya)), (xa + b * (xb - xa), ya + b * (yb - ya))
