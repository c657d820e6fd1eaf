"""What the model says about one photo."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fdcnet import geometry
from fdcnet.data.decode import upright
from fdcnet.data.photo import Photo
from fdcnet.data.records import BoxXYXY
from fdcnet.errors import UserError
from fdcnet.files import replacing
from fdcnet.inference.drawing import GREEN, GREY, chip, draw_box, overlay

NONE_OF_THESE = "none of these"
LEGIBLE = 400  # pixels: from this side on, a label can be read on a photo


class ClassScore(NamedTuple):
    class_name: str
    score: float  # probability, 0..1
    task: int  # in which the model learned it, from 1


@dataclass(frozen=True, eq=False)
class Prediction:
    """Class, box and heat map of one photo. Boxes are (x0, y0, x1, y1) in pixels of the photo as displayed."""

    name: str
    image_size: tuple[int, int]  # (width, height)
    class_name: str | None  # None: none of these, for its score is below the one asked for
    score: float  # of the class that the map belongs to
    task: int | None
    boxes_xyxy: tuple[BoxXYXY, ...]  # the largest region first; the only one, unless all were asked for
    top: tuple[ClassScore, ...]  # the best classes
    threshold: float
    heat: NDArray[np.float32] = field(repr=False)  # (h, w) over the whole photo, 0..1, as fine as the network sees
    side: int = field(repr=False)  # of the square in which regions are found
    photo: Photo = field(repr=False)

    @property
    def box_xyxy(self) -> BoxXYXY | None:
        return self.boxes_xyxy[0] if self.boxes_xyxy else None

    @property
    def source(self) -> str:
        """The path, where there is one."""
        return str(self.photo.source) if isinstance(self.photo.source, Path) else self.name

    def heat_map(self, size: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """The map (height, width) in `size` (width, height); without it in that of the photo."""
        return geometry.resize_maps(torch.from_numpy(self.heat)[None], size or self.image_size)[0].numpy()

    def at(self, threshold: float, all_regions: bool = False) -> "Prediction":
        """The same answer with the boxes of another threshold."""
        found = find_boxes(self.heat, threshold, self.side, self.image_size, all_regions)
        return replace(self, threshold=threshold, boxes_xyxy=found if self.class_name is not None else ())

    def draw(self, opacity: float = 0.5, max_side: int | None = 1600) -> Image.Image:
        """The photo with its heat map, boxes and label; a tiny one is enlarged, so that the label fits."""
        photo = upright(self.photo.source, max_side)
        if (times := LEGIBLE // max(photo.size)) > 1:
            photo = photo.resize((times * photo.width, times * photo.height), Image.Resampling.BICUBIC)
        if self.class_name is None:
            shown = photo.copy()
            chip(shown, NONE_OF_THESE, (0, 0), GREY)
            return shown
        shown = overlay(np.asarray(photo), self.heat_map(photo.size), opacity=opacity)
        boxes = geometry.scale(self.boxes_xyxy, self.image_size, photo.size).tolist()
        for box in reversed(boxes):
            draw_box(shown, box, GREEN)
        chip(shown, f"{self.class_name}  {self.score:.0%}", boxes[0][:2], GREEN)
        return shown

    def save(self, path: str | Path, opacity: float = 0.5, max_side: int | None = 1600) -> None:
        """Draw it into an image file."""
        path = Path(path)
        kind = Image.registered_extensions().get(path.suffix.lower())
        if kind not in Image.SAVE:
            raise UserError(f"{path} is no name of a photo that can be written.", "End it in .jpg or .png.")
        with replacing(path) as new:
            self.draw(opacity, max_side).save(new, kind, quality=92)

    def to_dict(self, heat: bool = False) -> dict[str, Any]:
        """Only what JSON knows; with `heat` also the map, row by row."""
        facts: dict[str, Any] = {
            "source": self.source,
            "width": self.image_size[0],
            "height": self.image_size[1],
            "class": self.class_name,
            "score": round(self.score, 4),
            "task": self.task,
            "box": _rounded(self.box_xyxy),
            "boxes": [_rounded(box) for box in self.boxes_xyxy],
            "top": [{"class": name, "score": round(score, 4), "task": task} for name, score, task in self.top],
            "threshold": self.threshold,
        }
        if self.photo.seconds is not None:
            facts["seconds"] = round(self.photo.seconds, 3)
        if heat:
            facts["heat"] = [[round(value, 4) for value in row] for row in self.heat.tolist()]
        return facts


def find_boxes(
    heat: NDArray[np.float32], threshold: float, side: int, image_size: tuple[int, int], all_regions: bool = False
) -> tuple[BoxXYXY, ...]:
    """Boxes of the regions above the threshold, the largest first; of an empty map the whole photo."""
    resized = geometry.resize_maps(torch.from_numpy(heat)[None], (side, side))[0].numpy()
    found = geometry.fill_empty(geometry.regions(resized > threshold), 1, (side, side))
    order = np.argsort(-found.areas, kind="stable")[: None if all_regions else 1]
    x0y0x1y1 = geometry.scale(found.boxes[order], (side, side), image_size).tolist()
    return tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in x0y0x1y1)


def _rounded(box: Sequence[float] | None) -> list[float] | None:
    return None if box is None else [round(value, 2) for value in box]
