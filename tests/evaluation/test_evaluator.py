"""A network made by hand: it sees a coloured square on black, its map is the square, its class is the colour."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from fdcnet.config import Protocol
from fdcnet.errors import UserError
from fdcnet.evaluation import metrics
from fdcnet.evaluation.evaluator import (
    CENTRE,
    TEN_CROP,
    WHOLE,
    Answer,
    Target,
    View,
    class_views,
    evaluate,
    locate,
    rank_classes,
    reduce_maps,
    show,
)

SIZE, CROP = 32, 28
PROTOCOL = Protocol(threshold=0.5, crops=1, map_views=1, average="image", inclusive_pixels=False, classifier="head")


def forward(crops: Tensor, want_maps: bool) -> dict[bool, Answer]:
    """Score c: the light in channel c. Map c: the share of light in that channel, pixel by pixel.

    Compensation has turned the last two channels round.
    """
    plain = crops.permute(0, 3, 1, 2).float() / 255  # (B, 3, H, W)
    light = {True: plain, False: plain[:, [0, 2, 1]]}
    return {
        kind: Answer({"head": seen.mean(dim=(2, 3)) * 20, "lda": -seen.mean(dim=(2, 3))}, seen if want_maps else None)
        for kind, seen in light.items()
    }


# (x0, y0, x1, y1) of the square in the 32 x 32 photo, its colour, its true class
SQUARES = [((4, 6, 16, 20), 0, 0), ((10, 10, 30, 30), 1, 1), ((2, 2, 30, 12), 2, 1)]
PHOTOS = torch.zeros(3, SIZE, SIZE, 3, dtype=torch.uint8)
for n, ((x0, y0, x1, y1), colour, _) in enumerate(SQUARES):
    PHOTOS[n, y0:y1, x0:x1, colour] = 200
# The photos themselves were twice as wide and high.
TARGETS = [
    Target(f"{n}.jpg", label, (2 * SIZE, 2 * SIZE), ((2 * b[0], 2 * b[1], 2 * b[2], 2 * b[3]),))
    for n, (b, _, label) in enumerate(SQUARES)
]


def get(rows: Tensor) -> Tensor:
    return PHOTOS[rows]


def run(*protocols: Protocol, **options) -> list:
    options = {"crop": CROP, "batch_size": 2, **options}
    return evaluate(forward, get, TARGETS, protocols, **options)


def test_boxes_and_classes_by_hand():
    (table,) = run(PROTOCOL)
    assert table.path == ("0.jpg", "1.jpg", "2.jpg")
    assert table.box[:2].tolist() == [[2, 4, 14, 18], [8, 8, 28, 28]]  # 2 off each side, clipped to 28
    assert table.iou[:2].tolist() == [1, 1]
    assert table.rank[:2].tolist() == [0, 0]
    # Photo 2 is blue but its class is green: that map is black, and the box the whole frame. 28 x 10 of it are true.
    # Blue leads; red and green tie at zero, and red comes first.
    assert table.top5[2].tolist() == [2, 0, 1, -1, -1]
    assert table.rank[2] == 2
    assert table.box[2].tolist() == [0, 0, 28, 28]
    assert table.iou[2] == pytest.approx(28 * 10 / 28**2)
    scores = metrics.summary(table, PROTOCOL)
    assert scores["gt_known"] == pytest.approx(200 / 3)
    assert scores["top1_loc"] == pytest.approx(200 / 3)


def test_probabilities_by_hand():
    (table,) = run(PROTOCOL)
    lit = 12 * 14 / CROP**2 * 200 / 255 * 20  # the score of photo 0's colour; the others are 0
    expected = np.exp(lit) / (np.exp(lit) + 2)
    assert table.p_true[0] == pytest.approx(expected, rel=1e-5)
    assert table.p_top1[0] == pytest.approx(expected, rel=1e-5)
    assert table.p_true[2] < table.p_top1[2]


def test_topk_mean_needs_no_label():
    everything = dataclasses.replace(PROTOCOL, map="topk-mean")
    (table,) = run(everything)
    assert table.iou.tolist() == [1, 1, 1]
    assert table.rank[2] == 2, "only the box is found without the label"
    best = dataclasses.replace(everything, topk=1)
    assert run(best)[0].iou.tolist() == [1, 1, 1]


def test_whole_image_frame_does_not_clip():
    photo = torch.zeros(1, 32, 32, 3, dtype=torch.uint8)
    photo[0, 0:16, 0:8, 0] = 255
    target = [Target("corner.jpg", 0, (32, 32), ((0, 0, 8, 16),))]
    protocol = dataclasses.replace(PROTOCOL, frame="image")
    (table,) = evaluate(forward, lambda rows: photo[rows], target, [protocol], crop=16)
    assert table.box.tolist() == [[0, 0, 4, 8]]  # half the size
    assert table.iou.tolist() == [1]


def test_the_map_of_the_mirror_image_is_turned_back_and_averaged():
    def sees_the_left_half(crops: Tensor, want_maps: bool) -> dict[bool, Answer]:
        answers = forward(crops, want_maps)
        if answers[True].maps is not None:
            answers[True].maps[..., CROP // 2 :] = 0
        return answers

    photo = torch.zeros(1, SIZE, SIZE, 3, dtype=torch.uint8)
    photo[0, 10:20, 6:28, 0] = 255
    target = [Target("wide.jpg", 0, (SIZE, SIZE), ((6, 10, 28, 20),))]
    protocols = [PROTOCOL, dataclasses.replace(PROTOCOL, map_views=2)]
    one, two = evaluate(sees_the_left_half, lambda rows: photo[rows], target, protocols, crop=CROP)
    assert one.box.tolist() == [[4, 8, 14, 18]]
    assert two.box.tolist() == [[4, 8, 26, 18]]
    assert two.iou.tolist() == [1]


def test_with_and_without_compensation_in_one_pass():
    with_it, without = run(PROTOCOL, dataclasses.replace(PROTOCOL, compensated=False))
    assert with_it.top5[:, 0].tolist() == [0, 1, 2]
    assert without.top5[:, 0].tolist() == [0, 2, 1]


def test_protocols_share_the_views():
    seen: list[tuple[int, bool]] = []

    def counting(crops: Tensor, want_maps: bool) -> dict[bool, Answer]:
        seen.append((len(crops), want_maps))
        return forward(crops, want_maps)

    protocols = [
        dataclasses.replace(PROTOCOL, crops=10),
        dataclasses.replace(PROTOCOL, crops=2, map="topk-mean"),
        PROTOCOL,
    ]
    evaluate(counting, get, TARGETS, protocols, crop=CROP, batch_size=3)
    assert len(seen) == 10
    assert [want for _, want in seen].count(True) == 1
    evaluate(counting, get, TARGETS, [*protocols, dataclasses.replace(PROTOCOL, frame="image")], crop=CROP)
    assert len(seen) == 10 + 11


def test_several_protocols_at_once_equal_each_alone():
    protocols = [
        dataclasses.replace(PROTOCOL, crops=10),
        dataclasses.replace(PROTOCOL, map="topk-mean", crops=2, threshold=0.33, normalization="max"),
        dataclasses.replace(PROTOCOL, frame="image", inclusive_pixels=True),
    ]
    together = run(*protocols)
    for protocol, table in zip(protocols, together, strict=True):
        (alone,) = run(protocol, batch_size=64)
        for name in ("rank", "top5", "p_true", "box", "iou", "iou_largest", "iou_any"):
            assert np.array_equal(getattr(alone, name), getattr(table, name)), name
    assert together[1].thresholds[5:8] == (0.3, 0.33, 0.35), "the protocol's own threshold joins the sweep"


def test_softmax_comes_before_the_mean_over_views():
    def by_side(crops: Tensor, want_maps: bool) -> dict[bool, Answer]:
        left_lit = crops[:, :, 0, 0].sum(dim=1) > 0
        scores = torch.where(left_lit[:, None], torch.tensor([4.0, 0.0]), torch.tensor([0.0, 2.0]))
        return {True: Answer({"head": scores, "lda": scores}, torch.zeros(len(crops), 2, 4, 4))}

    photo = torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    photo[:, :, :4] = 255
    (table,) = evaluate(
        by_side, lambda rows: photo[rows], [Target("x", 0, (8, 8))], [dataclasses.replace(PROTOCOL, crops=2)], crop=8
    )
    expected = (np.exp(4) / (np.exp(4) + 1) + 1 / (1 + np.exp(2))) / 2
    assert table.p_true[0] == pytest.approx(expected, rel=1e-6)
    # The scores of a discriminant are averaged first: (4 + 0) / 2 against (0 + 2) / 2.
    linear = dataclasses.replace(PROTOCOL, crops=2, classifier="lda")
    (table,) = evaluate(by_side, lambda rows: photo[rows], [Target("x", 0, (8, 8))], [linear], crop=8)
    assert table.p_true[0] == pytest.approx(np.exp(2) / (np.exp(2) + np.exp(1)), rel=1e-6)


def test_ten_crop_equals_explicit_slices():
    photos = torch.arange(2 * 6 * 6 * 3, dtype=torch.uint8).reshape(2, 6, 6, 3)
    expected = [photos[:, :4, :4], photos[:, :4, 2:], photos[:, 2:, :4], photos[:, 2:, 2:], photos[:, 1:5, 1:5]]
    expected += [view.flip(2) for view in expected]
    assert len(TEN_CROP) == 10
    for view, wanted in zip(TEN_CROP, expected, strict=True):
        assert torch.equal(show(photos, view, 4), wanted), view


def test_views_of_each_protocol():
    assert class_views(PROTOCOL) == (CENTRE,)
    assert class_views(dataclasses.replace(PROTOCOL, crops=2)) == (CENTRE, View("centre", True))
    assert class_views(dataclasses.replace(PROTOCOL, crops=2, frame="image")) == (WHOLE, View("whole", True))
    assert class_views(dataclasses.replace(PROTOCOL, crops=10, frame="image")) == TEN_CROP


def test_the_whole_view_is_resized():
    photos = torch.zeros(1, 4, 4, 3, dtype=torch.uint8)
    photos[:, :, 2:] = 100
    assert show(photos, WHOLE, 4) is photos
    squeezed = show(photos, View("whole", True), 2)
    assert squeezed.shape == (1, 2, 2, 3)
    assert squeezed.dtype == torch.uint8
    # Triangle filter of radius 2 around 1.0 over four pixel centres: weights 3, 3, 1 (the fourth lies outside).
    assert squeezed[0, 0, :, 0].tolist() == [round(600 / 7), round(100 / 7)]


def test_reduce_maps():
    maps = torch.arange(12, dtype=torch.float32).reshape(1, 3, 2, 2)
    scores, label = torch.tensor([[1.0, 5.0, 3.0]]), torch.tensor([2])
    assert torch.equal(reduce_maps(maps, scores, label, PROTOCOL), maps[:, 2])
    mean = Protocol(map="topk-mean")
    assert torch.equal(reduce_maps(maps, scores, label, mean), maps[:, 1])  # the mean of 0, 4 and 8 is 4
    assert torch.equal(reduce_maps(maps, scores, label, dataclasses.replace(mean, topk=2)), maps[:, 1:].mean(dim=1))
    assert torch.equal(reduce_maps(maps, scores, label, dataclasses.replace(mean, topk=99)), maps[:, 1])


def test_equal_scores_rank_by_class_number():
    ranked = rank_classes(torch.full((2, 6), 1 / 6).log(), torch.tensor([0, 5]))
    assert ranked.rank.tolist() == [0, 5]
    assert ranked.top5.tolist() == [[0, 1, 2, 3, 4]] * 2


def test_locate_tells_the_largest_from_the_best_region():
    levels = torch.zeros((2, 10, 10), dtype=torch.uint8)
    levels[0, 0:4, 0:4] = 1  # the larger region, gone at the second threshold
    levels[0, 6:9, 6:9] = 2
    true = torch.tensor([[(6.0, 6, 9, 9)]] * 2)
    found = locate(levels, true, 3, inclusive=False)
    assert found.box[:, 0].tolist() == [[0, 0, 4, 4], [0, 0, 10, 10]]
    assert found.iou_largest[0] == pytest.approx([0, 1, 0.09])  # the third mask is empty: the whole frame, 9 of 100
    assert found.iou_any[0] == pytest.approx([1, 1, 0.09])
    assert found.iou_largest[:, 0].tolist() == pytest.approx([0, 0.09])


def test_the_best_of_several_true_boxes_counts():
    levels = torch.zeros((1, 10, 10), dtype=torch.uint8)
    levels[0, 0:4, 0:4] = 1
    true = torch.tensor([[(5.0, 5, 9, 9), (0, 0, 4, 8)]])
    found = locate(levels, true, 1, inclusive=False)
    assert found.iou_largest.tolist() == [[0.5]]
    assert found.true_box.tolist() == [[[0, 0, 4, 8]]]
    assert locate(levels, true, 1, inclusive=True).iou_largest[0].tolist() == pytest.approx([25 / 45])


def test_photos_without_boxes_count_for_classification_only():
    targets = [TARGETS[0], dataclasses.replace(TARGETS[1], boxes_xyxy=())]
    (table,) = evaluate(forward, get, targets, [PROTOCOL], crop=CROP)
    assert table.num_boxes.tolist() == [1, 0]
    assert np.isnan(table.iou[1])
    assert np.isnan(table.iou_any[1]).all()
    assert table.true_box is not None and np.isnan(table.true_box[1]).all()
    assert table.box[1].tolist() == [8, 8, 28, 28], "a box is still found"
    assert metrics.gt_known(table) == 100
    assert metrics.top_k_classification(table, 1) == 100


def test_kept_maps_and_progress():
    steps: list[tuple[int, int]] = []
    (table,) = run(PROTOCOL, keep={2, 0}, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(2, 3), (3, 3)]
    assert sorted(table.maps) == [0, 2]
    expected = np.zeros((CROP, CROP))
    expected[4:18, 2:14] = 1
    assert np.array_equal(table.maps[0], expected)


def test_normalization_follows_the_protocol():
    dim = PHOTOS.clamp(min=150)  # 150 of 200: 0.75 of the peak, but the lowest value
    protocols = [PROTOCOL, dataclasses.replace(PROTOCOL, normalization="max")]
    subtracted, divided = evaluate(forward, lambda rows: dim[rows], TARGETS, protocols, crop=CROP)
    assert subtracted.box[0].tolist() == [2, 4, 14, 18]
    assert divided.box[0].tolist() == [0, 0, 28, 28]


def test_own_sweep():
    (table,) = run(PROTOCOL, sweep=(0.9, 0.1))
    assert table.thresholds == (0.1, 0.5, 0.9)
    assert table.iou_largest.shape == (3, 3)


def test_mistakes():
    with pytest.raises(UserError, match="no test photos"):
        evaluate(forward, get, [], [PROTOCOL])
    with pytest.raises(AssertionError, match="does not know"):
        evaluate(forward, get, [dataclasses.replace(TARGETS[0], label=3)], [PROTOCOL], crop=CROP)


def test_many_batches_keep_their_order():
    rows = torch.arange(3).repeat(60)
    targets = [TARGETS[row] for row in rows]
    many = evaluate(forward, lambda wanted: PHOTOS[rows[wanted]], targets, [PROTOCOL], crop=CROP, batch_size=1)[0]
    assert np.array_equal(many.box.reshape(60, 3, 4), np.tile(run(PROTOCOL)[0].box, (60, 1, 1)))
