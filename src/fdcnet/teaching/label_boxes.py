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
from fdcnet.inference.localizer import Localizer, photos_at_a_time
from fdcnet.inference.outline import outline
from fdcnet.runtime.device import autocast_for
from fdcnet.teaching.label_photos import KnownPhoto

ZOOM = 9 / 7  # 288 pixels for networks that see 224
SCORE_WEIGHT = 1 / 3  # ours: results/tuning.md. The box may be right where the class score is low
LOWER = 0.4  # ours: results/tuning.md. The box should not change much at this part of the threshold

Maps = NDArray[np.float32]


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
        """The confidence of the least certain box."""
        return min((annotation.score for annotation in self.annotations), default=1.0)


@dataclass(frozen=True)
class _Item:
    """One class on one photo."""

    label: int
    pixels: np.ndarray
    image_size: tuple[int, int]


def box_photos(
    localizer: Localizer, photos: Sequence[KnownPhoto], on_error: Callable[[str, str], None]
) -> Iterator[LabelledPhoto]:
    """Box every class of every photo. Unreadable photos are reported to `on_error(name, reason)` and skipped."""
    label_of = {name: label for label, name in enumerate(localizer.classes)}
    batch_size = photos_at_a_time(localizer.device)
    known = {photo.name: photo for photo in photos}
    batch: list[tuple[KnownPhoto, _Item]] = []
    sources = (Photo(photo.path, photo.name) for photo in photos)
    for source, decoded in localizer.decode_ahead(sources, batch_size, _enlarged_side(localizer)):
        try:
            pixels, image_size = decoded.result()
        except BadImage as error:
            on_error(source.name, str(error))
            continue
        photo = known[source.name]
        batch += [(photo, _Item(label_of[name], pixels, image_size)) for name in photo.class_names]
        if len(batch) >= batch_size:
            yield from _box_batch(localizer, batch)
            batch = []
    if batch:
        yield from _box_batch(localizer, batch)


def box_photo(localizer: Localizer, photo: Photo, class_name: str) -> LabelledPhoto:
    """Box one class of one photo, which need not be a file. Raises `BadImage` if it cannot be read."""
    pixels, image_size = photo.decode(_enlarged_side(localizer))
    item = _Item(localizer.classes.index(class_name), pixels, image_size)
    return LabelledPhoto(Path(photo.name), photo.name, image_size, tuple(_annotate(localizer, [item])))


def _box_batch(localizer: Localizer, batch: Sequence[tuple[KnownPhoto, _Item]]) -> Iterator[LabelledPhoto]:
    found: dict[str, list[Annotation]] = {}
    for (photo, _), annotation in zip(batch, _annotate(localizer, [item for _, item in batch]), strict=True):
        found.setdefault(photo.name, []).append(annotation)
    for photo, item in {photo.name: (photo, item) for photo, item in batch}.values():
        yield LabelledPhoto(photo.path, photo.name, item.image_size, tuple(found[photo.name]))


def _annotate(localizer: Localizer, batch: Sequence[_Item]) -> list[Annotation]:
    return [_annotation(localizer, *row) for row in zip(batch, *_look(localizer, batch), strict=True)]


@torch.inference_mode()
def _look(localizer: Localizer, batch: Sequence[_Item]) -> tuple[Maps, Maps, list[float]]:
    """-> normalised maps of the class (B, views, side, side), strength of the features (B, side, side), class scores"""
    enlarged = localizer.as_input([item.pixels for item in batch])
    size = (localizer.side, localizer.side)
    images = F.interpolate(enlarged, size=size, mode="bilinear", align_corners=False, antialias=True)
    labels = torch.tensor([item.label for item in batch], device=localizer.device)
    maps: list[Tensor] = []
    strengths: list[Tensor] = []
    scores: list[Tensor] = []
    with autocast_for(localizer.device, localizer.state.config.train.precision):
        for view, is_mirrored in ((images, False), (images.flip(-1), True), (enlarged, False)):
            outputs = localizer.method.outputs(localizer.state, view, maps=False, head=localizer.state.needs_head)
            masks = localizer.method.masks_of(localizer.state, outputs, labels)
            strength = outputs.tail_features.float().norm(dim=1)
            if is_mirrored:
                masks, strength = masks.flip(-1), strength.flip(-1)
            maps.append(_resize(geometry.normalise_map(masks.float(), localizer.protocol.normalization), localizer))
            strengths.append(_resize(geometry.normalise_map(strength, "minmax"), localizer))
            probabilities = localizer.state.class_scores(outputs).softmax(dim=1)
            scores.append(probabilities.gather(1, labels[:, None])[:, 0])
    views, strength = torch.stack(maps, dim=1), torch.stack(strengths).mean(dim=0)
    return views.cpu().numpy(), strength.cpu().numpy(), torch.stack(scores).mean(dim=0).tolist()


def _enlarged_side(localizer: Localizer) -> int:
    return round(ZOOM * localizer.side / 32) * 32  # networks reduce photos by factors of up to 32


def _resize(maps: Tensor, localizer: Localizer) -> Tensor:
    return geometry.resize_maps(maps, (localizer.side, localizer.side))


def _annotation(localizer: Localizer, item: _Item, maps: Maps, strength: Maps, score: float) -> Annotation:
    threshold, side = localizer.protocol.threshold, localizer.side
    mean = maps.mean(axis=0)
    box = geometry.largest_region(mean > threshold)
    x0, y0, x1, y1 = geometry.scale(box, (side, side), item.image_size)[0].tolist()
    scale = np.array(item.image_size) / side
    polygon = tuple((float(x), float(y)) for x, y in outline(mean > threshold) * scale)
    class_name = localizer.classes[item.label]
    return Annotation(class_name, (x0, y0, x1, y1), _confidence(maps, strength, threshold, score), polygon)


def _confidence(maps: Maps, strength: Maps, threshold: float, score: float) -> float:
    """Product of four factors from 0 to 1. maps: (views, side, side), strength: (side, side)

    Agreement of the masks of the views, stability of the box at a lower threshold, agreement of the mask with the
    strongest features, and the class score. The features know no class and no mask, so they make other mistakes.
    """
    masks, mean = maps > threshold, maps.mean(axis=0)
    agreement = np.mean([_mask_iou(first, second) for first, second in combinations(masks, 2)])
    box, larger_box = (geometry.largest_region(mean > level) for level in (threshold, LOWER * threshold))
    stability = geometry.iou(box, larger_box).item()
    salience = _mask_iou(mean > threshold, strength > _otsu_threshold(strength))
    return float(agreement * stability * salience * (1 - SCORE_WEIGHT * (1 - score)))


def _otsu_threshold(values: Maps) -> float:
    """Splits values into low and high ones, such that the variance between the two groups is largest (Otsu, 1979)."""
    ordered = np.sort(values, axis=None).astype(np.float64)
    low = np.arange(1, len(ordered))  # sizes of the lower group
    distance = ordered[:-1].cumsum() - low * ordered.mean()
    return float(ordered[np.argmax(distance**2 / (low * (len(ordered) - low)))])


def _mask_iou(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    return float((first & second).sum() / max((first | second).sum(), 1))
