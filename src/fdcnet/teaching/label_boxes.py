"""Box photos as their known classes, with a confidence that ranks the boxes.

Each photo is seen plain, mirrored and enlarged. The box comes from the average of the three maps.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fdcnet import geometry
from fdcnet.data.decode import BadImage
from fdcnet.data.photo import Photo
from fdcnet.inference.annotation import Annotation
from fdcnet.inference.localizer import BATCH, Localizer
from fdcnet.inference.outline import outline
from fdcnet.runtime.device import autocast_for
from fdcnet.teaching.label_photos import KnownPhoto

ZOOM = 9 / 7  # 288 pixels for networks that see 224
SCORE_WEIGHT = 1 / 3  # ours: results/tuning.md. The box may be right where the class score is low
THRESHOLD_STEP = 0.2  # a sharp mask keeps its size if the threshold changes by this much


@dataclass(frozen=True)
class LabelledPhoto:
    """A photo with its boxes. `reviewed`: a person corrected or confirmed them."""

    path: Path
    name: str
    image_size: tuple[int, int]  # (width, height)
    annotations: tuple[Annotation, ...]
    reviewed: bool = False

    @property
    def confidence(self) -> float:
        """That of the least certain box."""
        return min((annotation.score for annotation in self.annotations), default=1.0)


@dataclass(frozen=True)
class _Item:
    """One class on one photo."""

    photo: KnownPhoto
    label: int
    pixels: np.ndarray
    image_size: tuple[int, int]


def box_photos(
    localizer: Localizer, photos: Sequence[KnownPhoto], on_error: Callable[[str, str], None]
) -> Iterator[LabelledPhoto]:
    """Box every class of every photo. Unreadable photos are reported to `on_error(name, reason)` and skipped."""
    label_of = {name: label for label, name in enumerate(localizer.classes)}
    batch_size = BATCH[localizer.device.type]
    known = {photo.name: photo for photo in photos}
    batch: list[_Item] = []
    sources = (Photo(photo.path, photo.name) for photo in photos)
    for source, decoded in localizer.decode_ahead(sources, batch_size, _enlarged_side(localizer)):
        try:
            pixels, image_size = decoded.result()
        except BadImage as error:
            on_error(source.name, str(error))
            continue
        photo = known[source.name]
        batch += [_Item(photo, label_of[name], pixels, image_size) for name in photo.class_names]
        if len(batch) >= batch_size:
            yield from _box_batch(localizer, batch)
            batch = []
    if batch:
        yield from _box_batch(localizer, batch)


def _box_batch(localizer: Localizer, batch: Sequence[_Item]) -> Iterator[LabelledPhoto]:
    views, scores = _look(localizer, batch)
    found: dict[str, list[Annotation]] = {}
    for item, maps, score in zip(batch, views, scores, strict=True):
        annotation = _annotate(maps, score, localizer, item)
        found.setdefault(item.photo.name, []).append(annotation)
    for item in {item.photo.name: item for item in batch}.values():
        annotations = tuple(found[item.photo.name])
        yield LabelledPhoto(item.photo.path, item.photo.name, item.image_size, annotations)


@torch.inference_mode()
def _look(localizer: Localizer, batch: Sequence[_Item]) -> tuple[NDArray[np.float32], list[float]]:
    """-> normalised maps (B, views, side, side), and the mean score of the known class"""
    enlarged = localizer.as_input([item.pixels for item in batch])
    size = (localizer.side, localizer.side)
    images = F.interpolate(enlarged, size=size, mode="bilinear", align_corners=False, antialias=True)
    labels = torch.tensor([item.label for item in batch], device=localizer.device)
    maps: list[Tensor] = []
    scores: list[Tensor] = []
    with autocast_for(localizer.device, localizer.state.config.train.precision):
        for view, is_mirrored in ((images, False), (images.flip(-1), True), (enlarged, False)):
            outputs = localizer.method.outputs(localizer.state, view, maps=False)
            masks = localizer.method.masks_of(localizer.state, outputs, labels)
            maps.append(_prepare(masks.flip(-1) if is_mirrored else masks, localizer))
            probabilities = localizer.state.class_scores(outputs).softmax(dim=1)
            scores.append(probabilities.gather(1, labels[:, None])[:, 0])
    return torch.stack(maps, dim=1).cpu().numpy(), torch.stack(scores).mean(dim=0).tolist()


def _enlarged_side(localizer: Localizer) -> int:
    return round(ZOOM * localizer.side / 32) * 32  # networks reduce photos by factors of up to 32


def _prepare(masks: Tensor, localizer: Localizer) -> Tensor:
    normalised = geometry.normalise_map(masks.float(), localizer.protocol.normalization)
    return geometry.resize_maps(normalised, (localizer.side, localizer.side))


def _annotate(maps: NDArray[np.float32], score: float, localizer: Localizer, item: _Item) -> Annotation:
    threshold, side = localizer.protocol.threshold, localizer.side
    mean = maps.mean(axis=0)
    box = geometry.largest_region(mean > threshold)
    x0, y0, x1, y1 = geometry.scale(box, (side, side), item.image_size)[0].tolist()
    scale = np.array(item.image_size) / side
    polygon = tuple((float(x), float(y)) for x, y in outline(mean > threshold) * scale)
    class_name = localizer.classes[item.label]
    return Annotation(class_name, (x0, y0, x1, y1), _confidence(maps, threshold, score), polygon)


def _confidence(maps: NDArray[np.float32], threshold: float, score: float) -> float:
    """Agreement of the views, times sharpness of their masks, times a factor for the class score; each from 0 to 1.

    Masks are compared rather than boxes, whose sides depend on a few pixels each.
    """
    masks, low, high = (
        maps > level
        for level in (threshold, max(threshold - THRESHOLD_STEP, 0.0), min(threshold + THRESHOLD_STEP, 0.95))
    )
    agreement = np.mean([_mask_iou(first, second) for first, second in combinations(masks, 2)])
    sharpness = np.mean([_mask_iou(*pair) for pair in zip(low, high, strict=True)])
    return float(agreement * sharpness * (1 - SCORE_WEIGHT * (1 - score)))


def _mask_iou(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    return float((first & second).sum() / max((first | second).sum(), 1))
