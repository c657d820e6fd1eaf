"""Boxes, and how a map becomes a box.

A box is (x0, y0, x1, y1), half-open; arrays of boxes are (N, 4). A size is (width, height). Masks are (height, width).
"""

from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Boxes = NDArray[np.float64]  # (N, 4)
Normalization = Literal["minmax", "max"]


class Regions(NamedTuple):
    """The 8-connected regions of a stack of masks, ordered by mask and then by first pixel, row by row."""

    boxes: Tensor  # (R, 4) float64
    areas: Tensor  # (R,) int64, in pixels
    mask: Tensor  # (R,) int64: number of the mask that it belongs to


def as_boxes(boxes: ArrayLike) -> Boxes:
    """(N, 4) in float64; an empty sequence gives (0, 4)."""
    return np.asarray(boxes, dtype=np.float64).reshape(-1, 4)


def clip(boxes: ArrayLike, size: tuple[float, float]) -> Boxes:
    """Intersect with the frame. A box outside of it becomes empty."""
    width, height = size
    return as_boxes(boxes).clip(0, np.array([width, height, width, height], dtype=np.float64))


def scale(boxes: ArrayLike, from_size: tuple[float, float], to_size: tuple[float, float]) -> Boxes:
    return as_boxes(boxes) * np.tile(to_size, 2) / np.tile(from_size, 2)


def crop_offset(size: int, crop: int) -> int:
    """Offset of the center crop of a square, along both axes."""
    assert 0 < crop <= size, f"a crop of {crop} does not fit into {size}"
    return (size - crop) // 2


def to_crop_frame(boxes: ArrayLike, image_size: tuple[float, float], size: int = 256, crop: int = 224) -> Boxes:
    """From photo pixels to the center crop of the photo resized to `size` x `size`, clipped to that crop."""
    return clip(scale(boxes, image_size, (size, size)) - crop_offset(size, crop), (crop, crop))


def to_image_frame(boxes: ArrayLike, image_size: tuple[float, float], side: int = 224) -> Boxes:
    """From photo pixels to the whole photo resized to `side` x `side`."""
    return clip(scale(boxes, image_size, (side, side)), (side, side))


def iou(boxes_a: ArrayLike, boxes_b: ArrayLike, inclusive: bool = False) -> Boxes:
    """Intersection over union of each pair, (N, M). See `overlap`."""
    first, second = torch.from_numpy(as_boxes(boxes_a)), torch.from_numpy(as_boxes(boxes_b))
    return overlap(first[:, None], second[None], inclusive).numpy()


def overlap(first: Tensor, second: Tensor, inclusive: bool = False) -> Tensor:
    """Intersection over union of boxes (..., 4) in the same place.

    `inclusive` adds one pixel to every width and height, as the papers' scripts do. A box without area overlaps
    nothing, under either convention.
    """
    border = 1.0 if inclusive else 0.0
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    shared = (high - low + border).clamp(min=0).prod(-1)
    sides_a, sides_b = first[..., 2:] - first[..., :2], second[..., 2:] - second[..., :2]
    union = (sides_a + border).prod(-1) + (sides_b + border).prod(-1) - shared
    real = (sides_a.amin(-1) > 0) & (sides_b.amin(-1) > 0)
    return torch.where(real, shared / torch.where(real, union, 1.0), 0.0)


def normalise_map(maps: Tensor, normalization: Normalization) -> Tensor:
    """Scale each map (..., h, w) to at most 1. `minmax`: its lowest value becomes 0. A constant map becomes zeros."""
    high, low = maps.amax(dim=(-2, -1), keepdim=True), maps.amin(dim=(-2, -1), keepdim=True)
    base = low if normalization == "minmax" else torch.zeros_like(low)
    flat = (high == low) | (high <= base)  # avoids a division by zero
    scaled = (maps - base) / torch.where(flat, torch.ones_like(high), high - base)
    return torch.where(flat, torch.zeros_like(scaled), scaled)


def resize_maps(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, h, w) -> (B, height, width), bilinear; `size` is (width, height) as everywhere in this module."""
    width, height = size
    return F.interpolate(maps[:, None], size=(height, width), mode="bilinear", align_corners=False)[:, 0]


def threshold_levels(maps: Tensor, thresholds: list[float]) -> Tensor:
    """How many of the ascending thresholds each value exceeds: `levels > i` is the mask of `thresholds[i]`.

    This holds all masks of a sweep in one byte per pixel, on the device of the maps.
    """
    edges = torch.tensor(thresholds, dtype=maps.dtype, device=maps.device)
    kind = torch.uint8 if len(thresholds) < 256 else torch.int16
    return torch.bucketize(maps, edges, out_int32=True).to(kind)


def sweep_regions(levels: Tensor, num_thresholds: int) -> Regions:
    """Regions of `levels[b] > i`, with i < num_thresholds, as mask number b * num_thresholds + i. levels: (B, h, w).

    A mask is a list of horizontal runs. Where the level rises from 2 to 5, the runs of the masks 2, 3 and 4 begin: so
    one pass over the pixels finds the runs of all masks, and one graph of touching runs connects them. All of it is
    done on the device of the levels.
    """
    height, width = levels.shape[1:]
    row, frame = width + 1, (height + 1) * (width + 1)  # an empty column and row: no run reaches the next row or mask
    flat = F.pad(levels.short(), (0, 1, 0, 1)).flatten()
    before, here = F.pad(flat, (1, 0))[:-1], flat

    def borders(low: Tensor, high: Tensor) -> Tensor:
        """Sorted places where the masks low..high-1 of a pixel change. A place is (mask, y, x) in one number."""
        pixels = (low < high).nonzero()[:, 0]
        first, count = low[pixels].long(), (high - low)[pixels].long()
        own_frame = pixels + pixels // frame * (num_thresholds - 1) * frame
        return (own_frame.repeat_interleave(count) + frame * _ranges(first, count)).sort().values

    begin, end = borders(before, here), borders(here, before)  # (N,) run n covers begin[n] <= place < end[n]
    low = torch.searchsorted(end, begin + row)  # runs low..high-1 of the next row touch, corners included
    high = torch.searchsorted(begin, end + row, right=True)
    runs = torch.arange(len(begin), device=begin.device)
    first_run = _connect(runs.repeat_interleave(high - low), _ranges(low, high - low), runs)  # of the same region
    heads = (first_run == runs).nonzero()[:, 0]
    region = torch.searchsorted(heads, first_run)
    mask, place = begin // frame, begin % frame
    y, x, length = place // row, place % row, end - begin

    def per_region(values: Tensor, how: str) -> Tensor:
        return values[heads].scatter_reduce(0, region, values, how)

    sides = per_region(x, "amin"), per_region(y, "amin"), per_region(x + length, "amax"), per_region(y + 1, "amax")
    areas = torch.zeros_like(heads).scatter_add(0, region, length)
    return Regions(torch.stack(sides, dim=1).double(), areas, mask[heads])


def regions(mask: NDArray[np.bool_]) -> Regions:
    """The regions of one mask (height, width)."""
    return sweep_regions(torch.from_numpy(mask.astype(np.uint8))[None], 1)


def fill_empty(found: Regions, num_masks: int, size: tuple[int, int]) -> Regions:
    """Give each mask without a region the whole frame as its only box."""
    empty = (found.mask.bincount(minlength=num_masks) == 0).nonzero()[:, 0]
    mask, order = torch.cat([found.mask, empty]).sort(stable=True)
    frame = torch.tensor([0, 0, *size], dtype=found.boxes.dtype, device=empty.device)
    boxes = torch.cat([found.boxes, frame.expand(len(empty), 4)])
    areas = torch.cat([found.areas, torch.full_like(empty, size[0] * size[1])])
    return Regions(boxes[order], areas[order], mask)


def largest_regions(found: Regions, num_masks: int) -> Tensor:
    """For each mask the index of its largest region; the first one in case of a tie. No mask may be empty."""
    by_area = found.areas.argsort(descending=True, stable=True)
    by_mask = by_area[found.mask[by_area].argsort(stable=True)]
    return by_mask[torch.searchsorted(found.mask, torch.arange(num_masks, device=found.mask.device))]


def largest_region(mask: NDArray[np.bool_]) -> Boxes:
    """The box (4,) of the largest region; an empty mask gives the whole frame."""
    height, width = mask.shape
    found = fill_empty(regions(mask), 1, (width, height))
    return found.boxes[largest_regions(found, 1)[0]].numpy()


def _ranges(first: Tensor, count: Tensor) -> Tensor:
    """first[0], first[0] + 1, ... (count[0] numbers), first[1], ... in one tensor."""
    starts = (first - count.cumsum(0) + count).repeat_interleave(count)
    return starts + torch.arange(len(starts), device=starts.device)


def _connect(first: Tensor, second: Tensor, nodes: Tensor) -> Tensor:
    """The lowest node of each node's connected component. Edges join first[i] and second[i].

    Each round hooks the representatives of both ends of every edge to the lower one, and halves all paths.
    """
    lowest = nodes
    while True:
        a, b = lowest[first], lowest[second]
        lower = torch.minimum(a, b)
        hooked = lowest.scatter_reduce(0, a, lower, "amin").scatter_reduce(0, b, lower, "amin")
        shorter = hooked[hooked]
        if torch.equal(shorter, lowest):
            return lowest
        lowest = shorter
