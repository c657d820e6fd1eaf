"""The prediction for one photo."""

import io
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
from fdcnet.inference.annotation import Annotation
from fdcnet.inference.drawing import GREEN, GREY, draw_box, draw_label, overlay

NONE_OF_THESE = "none of these"
LEGIBLE_SIDE = 400  # pixels; smaller photos are enlarged so that the label can be read
NOTEBOOK_SIDE = 800  # pixels of the longer side


class ClassScore(NamedTuple):
    class_name: str
    score: float  # probability, 0..1
    task: int  # the task in which the model learned it, starting at 1


@dataclass(frozen=True, eq=False)
class Prediction:
    """Class, box and heat map of one photo. Boxes are (x0, y0, x1, y1) in pixels of the photo as displayed."""

    name: str
    image_size: tuple[int, int]  # (width, height)
    class_name: str | None  # None: "none of these", the score is below `min_score`
    score: float  # of the class that the map shows
    task: int | None
    boxes_xyxy: tuple[BoxXYXY, ...]  # largest region first; just one unless `all_regions`
    top: tuple[ClassScore, ...]  # the best classes
    threshold: float
    heat: NDArray[np.float32] = field(repr=False)  # (h, w), 0..1, whole photo at the network's resolution
    side: int = field(repr=False)  # of the square grid in which regions are found
    photo: Photo = field(repr=False)
    unfamiliar: bool = False  # it may show none of the classes: unlike the training photos of every class

    @property
    def box_xyxy(self) -> BoxXYXY | None:
        return self.boxes_xyxy[0] if self.boxes_xyxy else None

    @property
    def annotations(self) -> tuple[Annotation, ...]:
        """The boxes as annotation files describe them."""
        if self.class_name is None:
            return ()
        return tuple(Annotation(self.class_name, box, self.score) for box in self.boxes_xyxy)

    @property
    def source(self) -> str:
        """The path, or the name of a photo that is not a file."""
        return str(self.photo.source) if isinstance(self.photo.source, Path) else self.name

    def heat_map(self, size: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """The map (height, width), resized to `size` (width, height) or to the size of the photo."""
        return geometry.resize_maps(torch.from_numpy(self.heat)[None], size or self.image_size)[0].numpy()

    def at(self, threshold: float, all_regions: bool = False) -> "Prediction":
        """The same prediction with the boxes of another threshold."""
        found = find_boxes(self.heat, threshold, self.side, self.image_size, all_regions)
        return replace(self, threshold=threshold, boxes_xyxy=found if self.class_name is not None else ())

    def draw(self, opacity: float = 0.5, max_side: int | None = 1600) -> Image.Image:
        """Draw heat map, boxes and label on the photo. Tiny photos are enlarged so that the label fits."""
        photo = upright(self.photo.source, max_side)
        if (times := LEGIBLE_SIDE // max(photo.size)) > 1:
            photo = photo.resize((times * photo.width, times * photo.height), Image.Resampling.BICUBIC)
        if self.class_name is None:
            drawn = photo.copy()
            draw_label(drawn, NONE_OF_THESE, (0, 0), GREY)
            return drawn
        drawn = overlay(np.asarray(photo), self.heat_map(photo.size), opacity=opacity)
        boxes = geometry.scale(self.boxes_xyxy, self.image_size, photo.size).tolist()
        for box in reversed(boxes):
            draw_box(drawn, box, GREEN)
        draw_label(drawn, f"{self.class_name}  {self.score:.0%}", boxes[0][:2], GREEN)
        return drawn

    def save(self, path: str | Path, opacity: float = 0.5, max_side: int | None = 1600) -> None:
        """Save the drawing as an image file."""
        path = Path(path)
        kind = Image.registered_extensions().get(path.suffix.lower())
        if kind not in Image.SAVE:
            raise UserError(f"Unsupported image extension: {path}.", "Use .jpg or .png.")
        with replacing(path) as new:
            self.draw(opacity, max_side).save(new, kind, quality=92)

    def _repr_png_(self) -> bytes:
        """The drawing, as notebooks show it."""
        buffer = io.BytesIO()
        self.draw(max_side=NOTEBOOK_SIDE).save(buffer, "PNG")
        return buffer.getvalue()

    def to_dict(self, heat: bool = False) -> dict[str, Any]:
        """All fields as plain JSON types; with `heat` also the map, row by row."""
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
            "unfamiliar": self.unfamiliar,
        }
        if self.photo.seconds is not None:
            facts["seconds"] = round(self.photo.seconds, 3)
        if heat:
            facts["heat"] = [[round(value, 4) for value in row] for row in self.heat.tolist()]
        return facts


def find_boxes(
    heat: NDArray[np.float32], threshold: float, side: int, image_size: tuple[int, int], all_regions: bool = False
) -> tuple[BoxXYXY, ...]:
    """Boxes of the regions above the threshold, largest first. An empty map gives the whole photo."""
    resized = geometry.resize_maps(torch.from_numpy(heat)[None], (side, side))[0].numpy()
    found = geometry.fill_empty(geometry.regions(resized > threshold), 1, (side, side))
    order = found.areas.argsort(descending=True, stable=True)[: None if all_regions else 1]
    x0y0x1y1 = geometry.scale(found.boxes[order].numpy(), (side, side), image_size).tolist()
    return tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in x0y0x1y1)


def _rounded(box: Sequence[float] | None) -> list[float] | None:
    return None if box is None else [round(value, 2) for value in box]
