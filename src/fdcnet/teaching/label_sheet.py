"""The contact sheet: one HTML page with the boxed photos, least certain first."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from fdcnet import geometry
from fdcnet.data.decode import BadImage, upright
from fdcnet.errors import count
from fdcnet.inference.drawing import GREEN, data_uri, draw_box
from fdcnet.teaching.label_boxes import LabelledPhoto

MAX_TILES = 500  # about 5 MB
TILE_SIDE = 240  # pixels
WORST_FRACTION = 0.2  # marked in red: measured to hold most of the wrong boxes, see results/label.json


@dataclass(frozen=True)
class Tile:
    name: str
    classes: str
    percent: int
    reviewed: bool
    low: bool
    picture: str


def contact_sheet(title: str, photos: Sequence[LabelledPhoto]) -> str:
    """HTML that needs no other file. Reviewed photos come last."""
    ranked = sorted(photos, key=lambda photo: (photo.reviewed, photo.confidence))
    shown = ranked[:MAX_TILES]
    num_reviewed = sum(photo.reviewed for photo in photos)
    num_low = round(WORST_FRACTION * (len(photos) - num_reviewed))
    with ThreadPoolExecutor() as pool:
        pictures = list(pool.map(_picture, shown))
    tiles = [_tile(photo, picture, i < num_low) for i, (photo, picture) in enumerate(zip(shown, pictures, strict=True))]
    parts = [f"Check the {num_low} with a red bar first." if num_low else "", f"{num_reviewed} reviewed."]
    if len(shown) < len(photos):
        parts.append(f"The first {len(shown)} are shown.")
    environment = Environment(loader=PackageLoader("fdcnet.teaching"), autoescape=True, undefined=StrictUndefined)
    page = environment.get_template("labels.html")
    summary = " ".join(part for part in parts if part)
    return page.render(title=title, photos_text=count(len(photos), "photo"), summary=summary, tiles=tiles)


def _tile(photo: LabelledPhoto, picture: str, low: bool) -> Tile:
    classes = ", ".join(dict.fromkeys(a.class_name for a in photo.annotations)) or "no box"
    return Tile(photo.name, classes, round(100 * photo.confidence), photo.reviewed, low, picture)


def _picture(photo: LabelledPhoto) -> str:
    try:
        image = upright(photo.path, TILE_SIDE)
    except BadImage:
        image = Image.new("RGB", (TILE_SIDE, TILE_SIDE), (128, 128, 128))
    for annotation in photo.annotations:
        [box] = geometry.scale([annotation.box_xyxy], photo.image_size, image.size).tolist()
        draw_box(image, box, GREEN)
    return data_uri(image, quality=75)
