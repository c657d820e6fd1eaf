"""Evaluate any number of protocols in one pass: views -> scores and maps -> class and box -> `Table`.

The network is passed as a function.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fdcnet import geometry
from fdcnet.config import ClassifierChoice, Frame, Protocol
from fdcnet.data.records import BoxXYXY
from fdcnet.errors import UserError
from fdcnet.evaluation.table import Table


class Answer(NamedTuple):
    """Outputs of the network for B photos."""

    scores: Mapping[ClassifierChoice, Tensor]  # by classifier ("head", "lda"): (B, C)
    maps: Tensor | None  # (B, C, h, w) in [0, 1]


Forward = Callable[[Tensor, bool], Mapping[bool, Answer]]
"""forward(crops uint8 (B, crop, crop, 3), want_maps) -> answers by whether they are compensated."""
GetPixels = Callable[[Tensor], Tensor]
"""get(rows int64 (B,)) -> decoded square photos uint8 (B, size, size, 3), on any device."""

SWEEP = tuple(round(0.05 * i, 2) for i in range(1, 20))


@dataclass(frozen=True)
class Target:
    """Ground truth of one photo."""

    path: str
    label: int
    image_size: tuple[int, int]  # (width, height) of the photo itself
    boxes_xyxy: tuple[BoxXYXY, ...] = ()  # in its own pixels


class View(NamedTuple):
    """The part of a photo that the network sees."""

    place: Literal["centre", "top-left", "top-right", "bottom-left", "bottom-right", "whole"]
    mirrored: bool = False


CENTRE, WHOLE = View("centre"), View("whole")
TEN_CROP = tuple(
    View(place, mirrored)
    for mirrored in (False, True)
    for place in ("top-left", "top-right", "bottom-left", "bottom-right", "centre")
)


def map_view(protocol: Protocol) -> View:
    return CENTRE if protocol.frame == "crop" else WHOLE


def map_views(protocol: Protocol) -> tuple[View, ...]:
    """The views whose maps are averaged."""
    base = map_view(protocol)
    return (base, View(base.place, True))[: protocol.map_views]


def class_views(protocol: Protocol) -> tuple[View, ...]:
    """The views whose class probabilities are averaged. The ten crops are the same in either frame."""
    base = map_view(protocol)
    return {1: (base,), 2: (base, View(base.place, True)), 10: TEN_CROP}[protocol.crops]


def show(photos: Tensor, view: View, crop: int) -> Tensor:
    """(B, size, size, 3) -> (B, crop, crop, 3), uint8."""
    size = photos.shape[1]
    if view.place == "whole":
        shown = _squeeze(photos, crop)
    else:
        middle, end = geometry.crop_offset(size, crop), size - crop
        y = {"centre": middle, "top": 0, "bottom": end}[view.place.split("-")[0]]
        x = {"centre": middle, "left": 0, "right": end}[view.place.split("-")[-1]]
        shown = photos[:, y : y + crop, x : x + crop]
    return shown.flip(2) if view.mirrored else shown


@torch.no_grad()
def evaluate(
    forward: Forward,
    get: GetPixels,
    targets: Sequence[Target],
    protocols: Sequence[Protocol],
    *,
    crop: int = 224,
    batch_size: int = 64,
    sweep: Sequence[float] = SWEEP,
    keep: Collection[int] = (),
    progress: Callable[[int, int], None] | None = None,
) -> list[Table]:
    """One table per protocol, rows in the order of `targets`. `keep` names the rows whose maps are kept for display.

    Each view goes through the network once, however many protocols use it. Boxes are found where the maps are.
    """
    if not targets:
        raise UserError("There are no test photos to evaluate.", "Give test photos, or set data.holdout, such as 0.2.")
    with_maps = {view for protocol in protocols for view in map_views(protocol)}
    views = dict.fromkeys(view for protocol in protocols for view in (*map_views(protocol), *class_views(protocol)))
    boxes = {_map_settings(p): _Boxes(p, sweep, crop, keep) for p in protocols}
    classes = {_class_settings(p): _Classes(p) for p in protocols}
    for protocol in protocols:
        boxes[_map_settings(protocol)].thresholds.append(protocol.threshold)
    for start in range(0, len(targets), batch_size):
        rows = torch.arange(start, min(start + batch_size, len(targets)))
        photos, batch = get(rows), targets[start : start + batch_size]
        answers = {view: forward(show(photos, view, crop), view in with_maps) for view in views}
        true_boxes = {
            frame: true_boxes_of(batch, frame, photos.shape[1], crop) for frame in {p.frame for p in protocols}
        }
        for ranking in classes.values():
            ranking.add(batch, answers)
        for finding in boxes.values():
            finding.add(batch, answers, true_boxes[finding.protocol.frame])
        if progress:
            progress(start + len(rows), len(targets))
    return [
        _table(targets, classes[_class_settings(p)], boxes[_map_settings(p)], p.threshold, sweep) for p in protocols
    ]


def _map_settings(protocol: Protocol) -> tuple[object, ...]:
    """Protocols with equal values share their maps, whatever their thresholds."""
    p = protocol
    by_scores = p.classifier if p.map == "topk-mean" and p.topk else None
    return p.map, p.topk, by_scores, p.normalization, p.frame, p.map_views, p.compensated, p.inclusive_pixels


def _class_settings(protocol: Protocol) -> tuple[object, ...]:
    """Protocols with equal values share their class probabilities."""
    return class_views(protocol), protocol.classifier, protocol.compensated


class Located(NamedTuple):
    """Boxes of B photos, against their true boxes, at T thresholds."""

    box: NDArray[np.float32]  # (B, T, 4) of the largest region
    true_box: NDArray[np.float32]  # (B, T, 4) the true box that it overlaps most; nan without one
    iou_largest: NDArray[np.float32]  # (B, T)
    iou_any: NDArray[np.float32]  # (B, T)


class Ranked(NamedTuple):
    """Classes of B photos."""

    rank: NDArray[np.int64]  # (B,)
    top5: NDArray[np.int64]  # (B, 5)
    p_true: NDArray[np.float32]  # (B,)
    p_top1: NDArray[np.float32]  # (B,)


class _Classes:
    """The class probabilities of one classifier over one set of views, batch after batch."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.ranked: list[Ranked] = []

    def add(self, batch: Sequence[Target], answers: Mapping[View, Mapping[bool, Answer]]) -> None:
        p = self.protocol
        scores = torch.stack([answers[view][p.compensated].scores[p.classifier].float() for view in class_views(p)])
        # The scores of a discriminant are linear in the features: their mean is the score of the mean features.
        logs = scores.mean(0).log_softmax(1) if p.classifier == "lda" else scores.softmax(2).mean(0).log()
        labels = torch.tensor([target.label for target in batch], device=scores.device)
        self.ranked.append(rank_classes(logs, labels))


class _Boxes:
    """The boxes of one kind of map at all thresholds, batch after batch."""

    def __init__(self, protocol: Protocol, sweep: Sequence[float], crop: int, keep: Collection[int]) -> None:
        self.protocol, self.crop, self.keep = protocol, crop, keep
        self.thresholds = list(map(float, sweep))
        self.num_photos = 0
        self.located: list[Located] = []
        self.maps: dict[int, NDArray[np.float16]] = {}

    def add(self, batch: Sequence[Target], answers: Mapping[View, Mapping[bool, Answer]], true_boxes: Tensor) -> None:
        protocol = self.protocol
        seen = [self._map_of(batch, answers[view][protocol.compensated], view.mirrored) for view in map_views(protocol)]
        reduced = torch.stack(seen).mean(0)  # (B, h, w)
        normalised = geometry.normalise_map(reduced, protocol.normalization)
        resized = geometry.resize_maps(normalised, (self.crop, self.crop))  # (B, crop, crop)
        for i in range(len(batch)):
            if (row := self.num_photos + i) in self.keep:
                self.maps[row] = resized[i].half().cpu().numpy()
        self.thresholds = sorted(set(self.thresholds))
        levels = geometry.threshold_levels(resized, self.thresholds)
        on_device = true_boxes.to(levels.device)
        self.located.append(locate(levels, on_device, len(self.thresholds), inclusive=protocol.inclusive_pixels))
        self.num_photos += len(batch)

    def _map_of(self, batch: Sequence[Target], answer: Answer, mirrored: bool) -> Tensor:
        """The maps of one view, turned back if it is mirrored: (B, h, w)"""
        assert answer.maps is not None, "the network gave no maps"
        labels = torch.tensor([target.label for target in batch], device=answer.maps.device)
        reduced = reduce_maps(answer.maps, answer.scores[self.protocol.classifier], labels, self.protocol).float()
        return reduced.flip(2) if mirrored else reduced


def true_boxes_of(targets: Sequence[Target], frame: Frame, size: int, crop: int) -> Tensor:
    """(B, N, 4) in pixels of the frame, N of the photo with most boxes; nan for those that others lack."""
    found = [
        geometry.to_crop_frame(target.boxes_xyxy, target.image_size, size, crop)
        if frame == "crop"
        else geometry.to_image_frame(target.boxes_xyxy, target.image_size, crop)
        for target in targets
    ]
    boxes = np.full((len(found), max(1, *map(len, found)), 4), np.nan)
    for own, target_boxes in zip(boxes, found, strict=True):
        own[: len(target_boxes)] = target_boxes
    return torch.from_numpy(boxes)


def _table(
    targets: Sequence[Target], classes: _Classes, boxes: _Boxes, threshold: float, sweep: Sequence[float]
) -> Table:
    ranked = Ranked(*map(np.concatenate, zip(*classes.ranked, strict=True)))
    located = Located(*map(np.concatenate, zip(*boxes.located, strict=True)))
    thresholds = sorted({*map(float, sweep), threshold})
    columns, own = [boxes.thresholds.index(value) for value in thresholds], boxes.thresholds.index(threshold)
    return Table(
        path=tuple(target.path for target in targets),
        label=np.array([target.label for target in targets], dtype=np.int64),
        **ranked._asdict(),
        box=located.box[:, own],
        iou=located.iou_largest[:, own],
        true_box=located.true_box[:, own],
        iou_largest=located.iou_largest[:, columns],
        iou_any=located.iou_any[:, columns],
        num_boxes=np.array([len(target.boxes_xyxy) for target in targets], dtype=np.int64),
        thresholds=tuple(thresholds),
        maps=boxes.maps,
    )


def reduce_maps(maps: Tensor, scores: Tensor, labels: Tensor, protocol: Protocol) -> Tensor:
    """(B, C, h, w) -> (B, h, w): the map of the true class, or the mean map of the best-scoring classes."""
    if protocol.map == "class":
        return maps[torch.arange(len(maps), device=maps.device), labels]
    if not 0 < protocol.topk < maps.shape[1]:
        return maps.mean(dim=1)
    best = scores.float().sort(dim=1, descending=True, stable=True).indices[:, : protocol.topk]
    return maps[torch.arange(len(maps), device=maps.device)[:, None], best].mean(dim=1)


def locate(levels: Tensor, true_boxes: Tensor, num_thresholds: int, *, inclusive: bool) -> Located:
    """The box of each photo at every threshold, and its overlaps with the true boxes (B, N, 4). levels: (B, h, w)."""
    num_images, height, width = levels.shape
    num_masks = num_images * num_thresholds
    found = geometry.fill_empty(geometry.sweep_regions(levels, num_thresholds), num_masks, (width, height))
    overlaps, _ = _best_overlap(found.boxes, true_boxes[found.mask // num_thresholds], inclusive)
    best = overlaps.new_zeros(num_masks).scatter_reduce(0, found.mask, overlaps, "amax")
    boxes = found.boxes[geometry.largest_regions(found, num_masks)]
    of_largest, closest = _best_overlap(boxes, true_boxes.repeat_interleave(num_thresholds, dim=0), inclusive)
    unknown = true_boxes.isnan().all(dim=2).all(dim=1).repeat_interleave(num_thresholds)

    def by_photo(values: Tensor) -> NDArray[np.float32]:
        return values.reshape(num_images, num_thresholds, *values.shape[1:]).float().cpu().numpy()

    return Located(
        box=by_photo(boxes),
        true_box=by_photo(closest),
        iou_largest=by_photo(of_largest.masked_fill(unknown, torch.nan)),
        iou_any=by_photo(best.masked_fill(unknown, torch.nan)),
    )


def _best_overlap(boxes: Tensor, true_boxes: Tensor, inclusive: bool) -> tuple[Tensor, Tensor]:
    """(R, 4), (R, N, 4) -> the largest overlap of each box with its true boxes (R,), and that true box (R, 4)"""
    best, which = geometry.overlap(boxes[:, None], true_boxes, inclusive).max(dim=1)
    return best, true_boxes[torch.arange(len(boxes), device=boxes.device), which]


def rank_classes(log_probabilities: Tensor, labels: Tensor) -> Ranked:
    """Ties are ordered by class number, so that a network with constant scores is not always right."""
    num_classes = log_probabilities.shape[1]
    assert int(labels.max()) < num_classes, "a photo of a class that the network does not know"
    best_first, order = log_probabilities.sort(dim=1, descending=True, stable=True)
    place = (order == labels[:, None]).int().argmax(dim=1)
    top5 = F.pad(order[:, :5], (0, max(0, 5 - num_classes)), value=-1)
    p_true = log_probabilities.gather(1, labels[:, None])[:, 0].exp()
    return Ranked(*(part.cpu().numpy() for part in (place, top5, p_true, best_first[:, 0].exp())))


def _squeeze(photos: Tensor, side: int) -> Tensor:
    """Resize uint8 photos (B, size, size, 3) to (B, side, side, 3)."""
    if photos.shape[1] == side:
        return photos
    channels_first = photos.permute(0, 3, 1, 2).float()
    resized = F.interpolate(channels_first, size=(side, side), mode="bilinear", align_corners=False, antialias=True)
    return resized.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
