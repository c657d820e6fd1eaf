"""Boxes by hand; regions against scikit-image, an independent implementation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage
from skimage.measure import label, regionprops

from fdcnet import geometry as g

coordinate = st.floats(0, 100, allow_nan=False, width=32)
box = st.tuples(coordinate, coordinate, coordinate, coordinate).map(
    lambda c: (min(c[0], c[2]), min(c[1], c[3]), max(c[0], c[2]), max(c[1], c[3]))
)
level_stacks = arrays(
    np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 4)
)


def by_skimage(mask: np.ndarray) -> list[tuple[tuple[float, ...], int]]:
    found = regionprops(label(mask, connectivity=2))
    return [((r.bbox[1], r.bbox[0], r.bbox[3], r.bbox[2]), int(r.area)) for r in found]


def pairs(found: g.Regions) -> list[tuple[tuple[float, ...], int]]:
    return [(tuple(b), int(a)) for b, a in zip(found.boxes.tolist(), found.areas, strict=True)]


def test_clip_and_scale():
    assert g.clip([(-5, 3, 20, 99)], (10, 50)).tolist() == [[0, 3, 10, 50]]
    assert g.scale([(10, 20, 30, 40)], (100, 200), (50, 400)).tolist() == [[5, 40, 15, 80]]


def test_crop_frame():
    # A 512 x 128 photo squeezed to 256: x halves, y doubles; then the window [16, 240) is cut out.
    assert g.to_crop_frame([(100, 20, 300, 60)], (512, 128)).tolist() == [[34, 24, 134, 104]]
    assert g.to_crop_frame([(0, 0, 512, 128)], (512, 128)).tolist() == [[0, 0, 224, 224]]


@pytest.mark.parametrize("inclusive", [False, True])
def test_a_box_outside_the_crop_has_no_area_and_overlaps_nothing(inclusive):
    outside = g.to_crop_frame([(0, 100, 15, 200)], (256, 256))
    assert outside.tolist() == [[0, 84, 0, 184]]
    assert g.iou([(0, 0, 224, 224), (0, 84, 1, 184)], outside, inclusive).tolist() == [[0], [0]]


def test_image_frame():
    assert g.to_image_frame([(100, 20, 300, 60)], (400, 80)).tolist() == [[56, 56, 168, 168]]


def test_iou_by_hand():
    a = [(0, 0, 10, 10)]
    b = [(5, 0, 15, 10), (0, 0, 10, 10), (10, 0, 20, 10), (30, 30, 40, 40)]
    assert g.iou(a, b)[0] == pytest.approx([50 / 150, 1, 0, 0])
    # Inclusive sides are 11: 6 x 11 shared of 2 * 121; touching boxes share one column.
    assert g.iou(a, b, inclusive=True)[0] == pytest.approx([66 / (242 - 66), 1, 11 / (242 - 11), 0])
    assert g.iou(a, []).shape == (1, 0)


@given(st.lists(box, max_size=4), st.lists(box, max_size=4), st.booleans())
def test_iou_is_a_symmetric_share(a, b, inclusive):
    values = g.iou(a, b, inclusive)
    assert values.shape == (len(a), len(b))
    assert ((values >= 0) & (values <= 1)).all()
    assert np.allclose(values, g.iou(b, a, inclusive).T)


def test_normalise_map():
    maps = torch.tensor([[[1.0, 2.0], [3.0, 5.0]], [[2.0, 2.0], [2.0, 2.0]]])
    assert g.normalise_map(maps, "minmax").tolist() == [[[0, 0.25], [0.5, 1]], [[0, 0], [0, 0]]]
    assert g.normalise_map(maps, "max")[0].flatten().tolist() == pytest.approx([0.2, 0.4, 0.6, 1])
    assert g.normalise_map(maps, "max")[1].sum() == 0
    below_zero = torch.tensor([[-3.0, -1.0]])
    assert g.normalise_map(below_zero, "max").tolist() == [[0, 0]]
    assert g.normalise_map(below_zero, "minmax").tolist() == [[0, 1]]


def test_resize_maps_samples_pixel_centres():
    # Twice as wide: new centres lie at -0.25 (held at the border), 0.25, 0.75 and 1.25 of the old ones.
    maps = torch.tensor([[[0.0, 1.0]]])
    assert g.resize_maps(maps, (4, 1)).tolist() == [[[0, 0.25, 0.75, 1]]]
    assert g.resize_maps(torch.zeros(2, 28, 28), (6, 3)).shape == (2, 3, 6)


def test_regions_by_hand():
    mask = np.array(
        [
            [1, 0, 0, 0, 1],
            [0, 1, 0, 0, 1],  # touches the first pixel at a corner only
            [0, 0, 0, 0, 0],
            [1, 1, 1, 0, 0],
        ],
        dtype=bool,
    )
    assert pairs(g.regions(mask)) == [((0, 0, 2, 2), 2), ((4, 0, 5, 2), 2), ((0, 3, 3, 4), 3)]
    assert g.largest_region(mask).tolist() == [0, 3, 3, 4]
    assert g.largest_region(mask[:3]).tolist() == [0, 0, 2, 2], "among equals the first one"


def test_an_empty_mask_has_no_region_and_its_box_is_the_frame():
    mask = np.zeros((3, 5), dtype=bool)
    assert g.regions(mask).boxes.shape == (0, 4)
    assert g.largest_region(mask).tolist() == [0, 0, 5, 3]


def test_runs_at_the_end_of_a_row_do_not_touch_the_next_row():
    mask = np.array([[0, 0, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=bool)
    assert len(g.regions(mask).areas) == 2
    assert len(g.regions(mask[[0, 2]]).areas) == 2


@given(level_stacks)
@settings(max_examples=300)
def test_sweep_regions_equals_scikit_image_on_every_mask(levels):
    found = g.sweep_regions(torch.from_numpy(levels), 4)
    assert (found.mask.diff() >= 0).all()
    for number in range(len(levels) * 4):
        expected = by_skimage(levels[number // 4] > number % 4)
        mine = g.Regions(*(part[found.mask == number] for part in found))
        assert pairs(mine) == expected


def test_regions_of_smooth_maps_equal_scikit_image():
    rng = np.random.default_rng(0)
    noise = torch.tensor(ndimage.gaussian_filter(rng.normal(size=(6, 28, 28)), (0, 2, 2)), dtype=torch.float32)
    maps = g.resize_maps(g.normalise_map(noise, "minmax"), (224, 224))
    thresholds = [0.05, 0.3, 0.5, 0.9]
    found = g.sweep_regions(g.threshold_levels(maps, thresholds), 4)
    for number in range(24):
        mask = (maps[number // 4] > thresholds[number % 4]).numpy()
        mine = g.Regions(*(part[found.mask == number] for part in found))
        assert pairs(mine) == by_skimage(mask)
        largest = max(by_skimage(mask), key=lambda region: region[1])
        assert tuple(g.largest_region(mask)) == largest[0]


@given(level_stacks)
def test_higher_thresholds_never_cover_more_and_boxes_stay_inside(levels):
    num_images, height, width = levels.shape
    found = g.sweep_regions(torch.from_numpy(levels), 4)
    filled = g.fill_empty(found, num_images * 4, (width, height))
    assert set(filled.mask.tolist()) == set(range(num_images * 4))
    boxes = filled.boxes[g.largest_regions(filled, num_images * 4)]
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] <= torch.tensor([width, height])).all()
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    covered = torch.bincount(found.mask, weights=found.areas, minlength=num_images * 4).reshape(-1, 4)
    assert (covered.diff(dim=1) <= 0).all()


def test_threshold_levels_are_strict():
    levels = g.threshold_levels(torch.tensor([[[0.0, 0.15, 0.16, 0.5, 1.0]]]), [0.15, 0.5, 0.95])
    assert levels.tolist() == [[[0, 0, 1, 1, 3]]]
    assert levels.dtype == torch.uint8


def test_more_thresholds_than_a_byte_counts():
    thresholds = (np.arange(1000) / 1000).tolist()
    levels = g.threshold_levels(torch.tensor([[[0.0, 0.5005, 1.0]]]), thresholds)
    assert levels.tolist() == [[[0, 501, 1000]]]
    assert g.sweep_regions(levels, 1000).mask.tolist() == list(range(1000))


def test_a_map_that_is_normalised_before_it_is_resized():
    # One bright pixel of 4 x 4, doubled: bilinear peaks are 0.75 * 0.75 of the pixel, and fall to 0.1875 one step out.
    map_ = torch.zeros(1, 4, 4)
    map_[0, 1, 2] = 0.5
    [resized] = g.resize_maps(g.normalise_map(map_, "minmax"), (8, 8)).numpy()
    assert g.largest_region(resized > 0.5).tolist() == [4, 2, 6, 4]
    assert g.largest_region(resized > 0.1).tolist() == [3, 1, 7, 5]
    assert g.largest_region(resized > 0.6).tolist() == [0, 0, 8, 8], "the resized peak is 0.5625"
