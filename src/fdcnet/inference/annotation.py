"""The objects on one photo, as annotation files describe them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fdcnet.data.records import BoxXYXY

Polygon = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Annotation:
    """One object. Coordinates are pixels of the photo as displayed."""

    class_name: str
    box_xyxy: BoxXYXY
    score: float  # 0..1
    polygon: Polygon = ()  # outline of the mask; empty where there is none


class AnnotatedPhoto(Protocol):
    """What the annotation writers need: a `Prediction`, or a photo that `fdcnet.label` boxed."""

    @property
    def name(self) -> str: ...

    @property
    def image_size(self) -> tuple[int, int]: ...  # (width, height)

    @property
    def annotations(self) -> Sequence[Annotation]: ...


def xywh(box: BoxXYXY) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = box
    return x0, y0, x1 - x0, y1 - y0
