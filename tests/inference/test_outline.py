"""Polygons of masks, compared with hand-drawn ones and with the boxes and areas of random masks."""

import numpy as np
import pytest
from PIL import Image, ImageDraw
from scipy import ndimage

from fdcnet import geometry
from fdcnet.inference.outline import outline


def as_mask(*rows: str) -> np.ndarray:
    return np.array([[cell == "#" for cell in row] for row in rows])


def test_a_rectangle_has_four_corners() -> None:
    points = outline(as_mask(".....", ".###.", ".###."))
    assert {tuple(point) for point in points.tolist()} == {(1, 1), (4, 1), (4, 3), (1, 3)}


def test_pixels_that_touch_at_a_corner_are_one_region() -> None:
    points = outline(as_mask("#..", ".#.", "..#"), tolerance=0)
    assert points[:, 0].min() == 0 and points[:, 0].max() == 3
    assert points[:, 1].min() == 0 and points[:, 1].max() == 3


def test_holes_are_filled_and_small_regions_are_dropped() -> None:
    points = outline(as_mask("###..", "#.#.#", "###.."), tolerance=0)
    assert sorted(map(tuple, points.tolist())) == [(0, 0), (0, 3), (3, 0), (3, 3)]


def test_an_empty_mask_has_no_outline() -> None:
    assert outline(np.zeros((4, 4), bool)).shape == (0, 2)


@pytest.mark.parametrize("seed", range(5))
def test_a_polygon_has_the_box_and_about_the_area_of_its_region(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(size=(60, 80))
    mask = ndimage.gaussian_filter(noise, 5) > 0
    points = outline(mask)
    assert [*points.min(axis=0), *points.max(axis=0)] == geometry.largest_region(mask).tolist()
    drawn = Image.new("1", (800, 600))
    ImageDraw.Draw(drawn).polygon([(10 * x, 10 * y) for x, y in points.tolist()], fill=1)
    labels, _ = ndimage.label(mask, np.ones((3, 3)))
    region = ndimage.binary_fill_holes(labels == np.bincount(labels.flat)[1:].argmax() + 1)
    assert np.asarray(drawn).mean() == pytest.approx(region.mean(), rel=0.12)
    assert len(points) < 120
