"""Boxes that a person checked teach the localizer, and nothing else."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fdcnet import geometry, read_dataset
from fdcnet.data.synthetic import make_synthetic
from fdcnet.errors import UserError
from fdcnet.store.bundle import load_bundle
from fdcnet.store.versions import versions
from fdcnet.teaching.label import LabelReport, label
from fdcnet.teaching.label_boxes import LabelledPhoto
from fdcnet.teaching.label_learning import box_mask, lost_inside, projection_loss
from fdcnet.teaching.learn import learn


def test_a_box_covers_the_cells_whose_centres_it_contains() -> None:
    mask = box_mask((10, 0, 30, 20), (40, 80), side=4)  # cells of 10 x 20 pixels
    assert mask.tolist() == [[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert box_mask((6, 0, 40, 80), (40, 80), side=4)[0].tolist() == [0, 1, 1, 1]  # the first centre is at 5


def test_the_loss_compares_the_extent_alone() -> None:
    box = torch.zeros(1, 4, 4)
    box[0, 1:3, 0:2] = 1
    diagonal = torch.zeros(1, 4, 4)
    diagonal[0, 1, 0] = diagonal[0, 2, 1] = 1
    assert projection_loss(box, box).item() == pytest.approx(0)
    assert projection_loss(diagonal, box).item() == pytest.approx(0)  # it reaches as far, so it is as good
    assert projection_loss(torch.zeros(1, 4, 4), box).item() == pytest.approx(2)
    wide = box.clone()
    wide[0, 1:3, 2:4] = 1  # four columns instead of two: 1 - 2 * 2 / (4 + 2); the rows are right
    assert projection_loss(wide, box).item() == pytest.approx(1 / 3)
    assert projection_loss(torch.cat([wide, box]), torch.cat([box, box])).item() == pytest.approx(1 / 6)


def test_masks_should_lose_nothing_inside_of_their_boxes() -> None:
    before, boxes = torch.tensor([[[1.0, 0.5], [1.0, 0.0]]]), torch.tensor([[[1.0, 1.0], [0.0, 0.0]]])
    assert lost_inside(before, before, boxes).item() == 0
    now = torch.tensor([[[0.4, 0.9], [0.0, 0.0]]])  # less, and more inside; less outside
    assert lost_inside(now, before, boxes).item() == pytest.approx(0.36 / 2)
    assert lost_inside(now, before, torch.zeros(1, 2, 2)).item() == 0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/, and a model that has learned them from their labels."""
    root = tmp_path_factory.mktemp("boxes")
    photos = make_synthetic(root / "photos", num_classes=2, train_per_class=10, test_per_class=0, size=128)
    learn(root / "model", photos, epochs=4, holdout=0, overrides=("data.size=128", "data.crop=112"), device="cpu")
    return root


@pytest.fixture
def labelled(home: Path, tmp_path: Path) -> LabelReport:
    return label(home / "photos", tmp_path / "out", model=home / "model", formats=["yolo"], device="cpu")


@pytest.fixture(scope="module")
def true_boxes(home: Path) -> dict[Path, Any]:
    return {record.path: record.boxes_xyxy for record in read_dataset(home / "photos").train}


def correct(labelled: LabelReport, true_boxes: dict[Path, Any]) -> None:
    """Every second photo gets its true box."""
    for photo in labelled.photos[::2]:
        (x0, y0, x1, y1), (width, height) = true_boxes[photo.path][0], photo.image_size
        file = (labelled.out / "yolo" / "labels" / photo.name).with_suffix(".txt")
        box = ((x0 + x1) / 2 / width, (y0 + y1) / 2 / height, (x1 - x0) / width, (y1 - y0) / height)
        file.write_text(f"{file.read_text().split()[0]} {' '.join(f'{value:.6f}' for value in box)}\n")


def test_only_the_localizer_learns_and_the_named_model_stays(
    labelled: LabelReport, home: Path, true_boxes: dict[Path, Any]
) -> None:
    model, out = home / "model", labelled.out
    correct(labelled, true_boxes)
    before = load_bundle(model)
    report = label(
        home / "photos", out, model=model, corrections=out / "yolo", learn_boxes=True, formats=["yolo"], device="cpu"
    )
    after = load_bundle(out / "model")
    old, new = before.network.state_dict(), after.network.state_dict()
    assert {name for name in old if not torch.equal(old[name], new[name])} == {"localizer.weight", "localizer.bias"}
    assert [version.learned["boxes"] for version in versions(out / "model")] == [report.num_reviewed]
    again = load_bundle(model).network.state_dict()
    assert all(torch.equal(old[name], again[name]) for name in old)

    # The boxes that nobody checked follow those that somebody did.
    def mean_iou(photos: Sequence[LabelledPhoto]) -> float:
        overlaps = [geometry.iou([p.annotations[0].box_xyxy], true_boxes[p.path]).max() for p in photos]
        return float(sum(overlaps) / len(overlaps))

    assert mean_iou(report.photos[1::2]) > mean_iou(labelled.photos[1::2]) + 0.04  # 0.78, then 0.85
    assert mean_iou(report.photos[::2]) > 0.99
    assert label(home / "photos", out, formats=["yolo"], device="cpu").photos == report.photos  # the model is kept


def test_a_checked_photo_that_is_unreadable_is_named(
    labelled: LabelReport, home: Path, true_boxes: dict[Path, Any], tmp_path: Path
) -> None:
    correct(labelled, true_boxes)
    photos = shutil.copytree(home / "photos", tmp_path / "photos")
    damaged = photos / labelled.photos[0].name
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])  # its header says the size
    with pytest.raises(UserError, match=f"{damaged.name} has a checked box, but cannot be read"):
        label(photos, labelled.out, model=home / "model", corrections=labelled.out / "yolo", learn_boxes=True,
              formats=["yolo"], device="cpu")  # fmt: skip
    assert not (labelled.out / "model").exists()


def test_what_cannot_learn_from_boxes(home: Path, taught: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no checked boxes to learn from(.|\n)*--corrections"):
        label(home / "photos", tmp_path / "new", model=home / "model", learn_boxes=True, device="cpu")
    assert not (tmp_path / "new").exists()
    drifted = label(
        taught / "photos", tmp_path / "drift", model=taught / "run" / "model", formats=["yolo"], device="cpu"
    )
    own = read_dataset(taught / "photos")
    correct(drifted, {record.path: record.boxes_xyxy for record in (*own.train, *own.test)})
    with pytest.raises(UserError, match="drift modules"):
        label(taught / "photos", drifted.out, model=taught / "run" / "model", corrections=drifted.out / "yolo",
              learn_boxes=True, device="cpu")  # fmt: skip
    assert not (drifted.out / "model").exists()
