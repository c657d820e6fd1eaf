"""Boxes, and how a map becomes a box.

A box is (x0, y0, x1, y1), half-open; arrays of boxes are (N, 4). A size is (width, height). Masks are (height, width).
"""

from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

Boxes = NDArray[np.float64]  # (N, 4)
Ints = NDArray[np.int64]
Normalization = Literal["minmax", "max"]


class Regions(NamedTuple):
    """The 8-connected regions of a stack of masks, ordered by mask and then by first pixel, row by row."""

    boxes: Boxes  # (R, 4)
    areas: Ints  # (R,) in pixels
    mask: Ints  # (R,) number of the mask that it belongs to


def as_boxes(boxes: ArrayLike) -> Boxes:
    """(N, 4) in float64; an empty sequence gives (0, 4)."""
    return np.asarray(boxes, dtype=np.float64).reshape(-1, 4)


def xywh_to_xyxy(boxes: ArrayLike) -> Boxes:
    boxes = as_boxes(boxes)
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)


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
    """Intersection over union, (N, M). `inclusive` adds one pixel to every width and height, as the papers' scripts do.

    A box without area overlaps nothing, under either convention.
    """
    first, second = as_boxes(boxes_a), as_boxes(boxes_b)
    border = 1.0 if inclusive else 0.0
    low = np.maximum(first[:, None, :2], second[None, :, :2])  # (N, M, 2)
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = (high - low + border).clip(0).prod(axis=2)  # (N, M)
    sides_a, sides_b = first[:, 2:] - first[:, :2], second[:, 2:] - second[:, :2]
    union = (sides_a + border).prod(axis=1)[:, None] + (sides_b + border).prod(axis=1)[None, :] - shared
    real = (sides_a.min(axis=1) > 0)[:, None] & (sides_b.min(axis=1) > 0)[None, :]
    return np.divide(shared, union, out=np.zeros_like(shared), where=real)


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


def sweep_regions(levels: NDArray[np.integer], num_thresholds: int) -> Regions:
    """Regions of `levels[b] > i`, with i < num_thresholds, as mask number b * num_thresholds + i. levels: (B, h, w).

    A mask is a list of horizontal runs. Where the level rises from 2 to 5, the runs of the masks 2, 3 and 4 begin: so
    one pass over the pixels finds the runs of all masks, and one graph of touching runs connects them. Labelling one
    mask after another takes several times as long.
    """
    num_images, height, width = levels.shape
    row, frame = width + 1, (height + 1) * (width + 1)  # an empty column and row: no run reaches the next row or mask
    flat = np.zeros(num_images * frame + 1, dtype=np.int16)
    flat[1:].reshape(num_images, height + 1, row)[:, :height, :width] = levels
    before, here = flat[:-1], flat[1:]

    def borders(pixels: Ints, low: NDArray[np.int16], high: NDArray[np.int16]) -> Ints:
        """Sorted places where the masks low..high-1 change. A place is (mask, y, x) in one number."""
        count = (high - low).astype(np.int64)
        own_frame = pixels + pixels // frame * (num_thresholds - 1) * frame
        return np.sort(np.repeat(own_frame, count) + frame * _ranges(low.astype(np.int64), count))

    up, down = np.flatnonzero(before < here), np.flatnonzero(before > here)
    begin = borders(up, before[up], here[up])  # (N,) run n covers begin[n] <= place < end[n]
    end = borders(down, here[down], before[down])
    if not len(begin):
        return Regions(as_boxes([]), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

    low = np.searchsorted(end, begin + row, side="left")  # runs low..high-1 of the next row touch, corners included
    high = np.searchsorted(begin, end + row, side="right")
    touching = _ranges(low, high - low)
    pointers = np.concatenate([[0], np.cumsum(high - low)])
    graph = csr_array((np.ones(len(touching), dtype=np.int8), touching, pointers), shape=(len(begin), len(begin)))
    _, region = connected_components(graph, directed=False)

    order = np.argsort(region, kind="stable")
    begin, length = begin[order], (end - begin)[order]
    head = np.flatnonzero(np.diff(region[order], prepend=-1))  # first run of each region
    tail = np.append(head[1:], len(begin)) - 1
    mask, place = np.divmod(begin, frame)
    y, x = np.divmod(place, row)
    right = np.maximum.reduceat(x + length, head)
    boxes = np.stack([np.minimum.reduceat(x, head), y[head], right, y[tail] + 1], axis=1)
    return Regions(as_boxes(boxes), np.add.reduceat(length, head), mask[head])


def regions(mask: NDArray[np.bool_]) -> Regions:
    """The regions of one mask (height, width)."""
    return sweep_regions(mask[None].astype(np.uint8), 1)


def fill_empty(found: Regions, num_masks: int, size: tuple[int, int]) -> Regions:
    """Give each mask without a region the whole frame as its only box."""
    empty = np.setdiff1d(np.arange(num_masks), found.mask)
    mask = np.concatenate([found.mask, empty])
    order = np.argsort(mask, kind="stable")
    boxes = np.concatenate([found.boxes, np.tile(as_boxes((0, 0, *size)), (len(empty), 1))])
    areas = np.concatenate([found.areas, np.full(len(empty), size[0] * size[1])])
    return Regions(boxes[order], areas[order], mask[order])


def largest_regions(found: Regions, num_masks: int) -> Ints:
    """For each mask the index of its largest region; the first one in case of a tie. No mask may be empty."""
    by_area = np.lexsort((-found.areas, found.mask))
    return by_area[np.searchsorted(found.mask, np.arange(num_masks))]


def largest_region(mask: NDArray[np.bool_]) -> Boxes:
    """The box (4,) of the largest region; an empty mask gives the whole frame."""
    height, width = mask.shape
    found = fill_empty(regions(mask), 1, (width, height))
    return found.boxes[largest_regions(found, 1)[0]]


def box_from_map(map_: Tensor, normalization: Normalization, threshold: float, size: tuple[int, int]) -> Boxes:
    """The box (4,) of a map (h, w) in a frame of `size`. The map is normalized before it is resized, as in BAS."""
    resized = resize_maps(normalise_map(map_.float()[None], normalization), size)[0]
    return largest_region((resized > threshold).cpu().numpy())


def _ranges(first: Ints, count: Ints) -> Ints:
    """first[0], first[0] + 1, ... (count[0] numbers), first[1], ... in one array."""
    return np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
