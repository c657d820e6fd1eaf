"""From a mask to a polygon: the outline of its largest region."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Corner = tuple[int, int]  # (x, y) of a pixel's corner
Points = NDArray[np.float64]  # (N, 2)
LEFT_TURN = {(1, 0): (0, -1), (0, -1): (-1, 0), (-1, 0): (0, 1), (0, 1): (1, 0)}  # y points down


def outline(mask: NDArray[np.bool_], tolerance: float = 1.0) -> Points:
    """The polygon around the largest 8-connected region of a mask (height, width). Holes are filled.

    The outline is simplified by at most `tolerance` pixels. Its extreme points are kept, so the polygon has the same
    box as the region. An empty mask gives no points.
    """
    labels, num_regions = ndimage.label(mask, np.ones((3, 3)))
    if not num_regions:
        return np.zeros((0, 2))
    region = labels == np.bincount(labels.flat)[1:].argmax() + 1
    corners = np.array(_trace(region), dtype=np.float64)
    return _simplify(corners, tolerance)


def _trace(region: NDArray[np.bool_]) -> list[Corner]:
    """Follow the outer border clockwise, from pixel corner to pixel corner, with the region on the right."""
    inside = np.pad(region, 1)
    first_y, first_x = (int(value) for value in np.argwhere(region)[0])
    start: Corner = (first_x, first_y)
    corner, direction = start, (1, 0)
    corners: list[Corner] = []
    while not corners or (corner, direction) != (start, (1, 0)):
        corners.append(corner)
        corner = (corner[0] + direction[0], corner[1] + direction[1])
        direction = _next_direction(inside, corner, direction)
    return corners


def _next_direction(inside: NDArray[np.bool_], corner: Corner, direction: Corner) -> Corner:
    """Turn left where a pixel blocks the way, also a diagonal one: regions are 8-connected."""
    left = LEFT_TURN[direction]
    right = (-left[0], -left[1])
    if inside[_pixel(corner, direction, left)]:
        return left
    return direction if inside[_pixel(corner, direction, right)] else right


def _pixel(corner: Corner, ahead: Corner, side: Corner) -> tuple[int, int]:
    """Row and column, in the padded mask, of the pixel that lies ahead and to one side of a corner."""
    x = corner[0] + (1 if ahead[0] + side[0] > 0 else 0)
    y = corner[1] + (1 if ahead[1] + side[1] > 0 else 0)
    return y, x


def _simplify(corners: Points, tolerance: float) -> Points:
    """Douglas-Peucker between the extreme points."""
    x, y = corners.T
    anchors = sorted({int(np.argmin(x)), int(np.argmax(x)), int(np.argmin(y)), int(np.argmax(y))})
    kept = set(anchors)
    number = len(corners)
    waiting = list(zip(anchors, [*anchors[1:], anchors[0] + number], strict=True))
    while waiting:
        first, last = waiting.pop()
        between = np.arange(first + 1, last)
        if not len(between):
            continue
        distances = _distances(corners[between % number], corners[first % number], corners[last % number])
        if distances.max() > tolerance:
            middle = int(between[distances.argmax()])
            kept.add(middle % number)
            waiting += [(first, middle), (middle, last)]
    return corners[sorted(kept)]


def _distances(points: Points, start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distances of points from the line through two others; from the point where these are the same."""
    chord, offsets = end - start, points - start
    length = float(np.hypot(*chord))
    if length == 0:
        return np.hypot(offsets[:, 0], offsets[:, 1])
    return np.abs(chord[0] * offsets[:, 1] - chord[1] * offsets[:, 0]) / length
