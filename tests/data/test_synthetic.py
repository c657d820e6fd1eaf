import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fdcnet.data.batches import rng
from fdcnet.data.records import Dataset, Record
from fdcnet.data.synthetic import SHAPES, _box, _place, class_names, draw, make_synthetic
from fdcnet.errors import UserError

SIZE = 64


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data") / "synthetic"


@pytest.fixture(scope="module")
def dataset(root: Path) -> Dataset:
    return make_synthetic(root, train_per_class=30, test_per_class=30, size=SIZE)


def load(record: Record) -> np.ndarray:
    with Image.open(record.path) as image:
        return np.asarray(image).astype(float)


def test_classes_share_shapes_and_patterns() -> None:
    assert class_names(4) == ("ringed disc", "dotted square", "checked triangle", "striped star")
    assert class_names(8)[4:] == ("dotted disc", "checked square", "striped triangle", "ringed star")
    eight = [name.split() for name in class_names(8)]
    assert set(Counter(shape for _, shape in eight).values()) == {2}
    assert set(Counter(pattern for pattern, _ in eight).values()) == {2}
    assert len(set(class_names(16))) == 16
    assert class_names(16)[:8] == class_names(8)
    for number in (0, 17):
        with pytest.raises(UserError, match="1 to 16"):
            class_names(number)


def test_layout_on_disk(root: Path, dataset: Dataset) -> None:
    assert dataset.classes == class_names(8)
    assert Counter(record.label for record in dataset.train) == dict.fromkeys(class_names(8), 30)
    assert Counter(record.label for record in dataset.test) == dict.fromkeys(class_names(8), 30)
    assert {path.name for path in (root / "train").iterdir()} == {*class_names(8), "boxes.csv"}
    with (root / "test" / "boxes.csv").open() as file:
        row = next(csv.DictReader(file))
    record = dataset.test[0]
    assert record.path == root / "test" / row["path"]
    assert record.path.parent.name == record.label
    assert record.boxes_xyxy == (tuple(float(row[column]) for column in ("x0", "y0", "x1", "y1")),)
    assert load(record).shape == (SIZE, SIZE, 3)
    assert [path.name for path in root.parent.iterdir()] == [root.name]  # nothing is left beside it


def test_a_second_call_only_lists(root: Path, dataset: Dataset) -> None:
    victim = dataset.train[0].path
    before = victim.stat().st_mtime_ns
    assert make_synthetic(root, train_per_class=30, test_per_class=30, size=SIZE) == dataset
    assert victim.stat().st_mtime_ns == before


def test_other_settings_or_other_contents_are_refused(root: Path, dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="something other"):
        make_synthetic(root, train_per_class=31, test_per_class=30, size=SIZE)
    (tmp_path / "holiday.jpg").write_bytes(b"mine")
    with pytest.raises(UserError, match="something other"):
        make_synthetic(tmp_path, train_per_class=1, test_per_class=1)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_the_seed_decides_every_byte(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "same").mkdir()  # an empty folder is taken
    same = make_synthetic(tmp_path / "same", 2, train_per_class=2, test_per_class=1, size=SIZE)
    other = make_synthetic(tmp_path / "other", 2, train_per_class=2, test_per_class=1, size=SIZE, seed=1)
    # more photos or classes leave the others as they are
    assert same.train[0].path.read_bytes() == dataset.train[0].path.read_bytes()
    assert same.train[2].path.read_bytes() == dataset.train[30].path.read_bytes()
    assert same.train[0].boxes_xyxy == dataset.train[0].boxes_xyxy
    assert other.train[0].path.read_bytes() != same.train[0].path.read_bytes()
    assert same.train[0].path.read_bytes() != same.test[0].path.read_bytes()


@pytest.mark.parametrize("shape", SHAPES)
def test_boxes_are_tight(shape: str) -> None:
    for i in range(30):
        mask, _, _ = _place(SHAPES[shape], SIZE, rng(shape, i))
        x0, y0, x1, y1 = (int(edge) for edge in _box(mask))
        inside = mask >= 0.5
        assert inside[y0:y1, x0:x1].sum() == inside.sum()
        assert inside[y0, :].any()
        assert inside[y1 - 1, :].any()
        assert inside[:, x0].any()
        assert inside[:, x1 - 1].any()
        assert 0.4 * SIZE <= max(x1 - x0, y1 - y0) <= 0.72 * SIZE


def test_the_box_is_where_the_object_is() -> None:
    """The same picture with another pattern differs inside the box only."""
    for i in range(10):
        striped, box = draw("striped square", SIZE, rng("where", i))
        dotted, same_box = draw("dotted square", SIZE, rng("where", i))
        assert box == same_box
        changed = np.argwhere(np.abs(np.asarray(striped, float) - np.asarray(dotted, float)).max(axis=2) > 20)
        (top, left), (bottom, right) = changed.min(axis=0), changed.max(axis=0) + 1
        assert np.abs(np.array([left, top, right, bottom]) - box).max() <= 4


def nearest_centroid_accuracy(dataset: Dataset, train: np.ndarray, test: np.ndarray) -> float:
    train_labels, test_labels = (
        np.array([record.label for record in split]) for split in (dataset.train, dataset.test)
    )
    centroids = np.stack([train[train_labels == name].mean(axis=0) for name in dataset.classes])
    nearest = np.linalg.norm(test[:, None] - centroids, axis=2).argmin(axis=1)
    return float((np.array(dataset.classes)[nearest] == test_labels).mean())


def test_colour_does_not_name_the_class(dataset: Dataset) -> None:
    """Chance is 12.5 % with a standard deviation of 2.1 % on 240 pictures."""
    whole = [np.stack([load(record).mean(axis=(0, 1)) for record in split]) for split in (dataset.train, dataset.test)]
    assert nearest_centroid_accuracy(dataset, *whole) < 0.2

    def in_box(record: Record) -> np.ndarray:
        x0, y0, x1, y1 = (int(edge) for edge in record.boxes_xyxy[0])
        return load(record)[y0:y1, x0:x1].mean(axis=(0, 1))

    objects = [np.stack([in_box(record) for record in split]) for split in (dataset.train, dataset.test)]
    assert nearest_centroid_accuracy(dataset, *objects) < 0.2


def test_all_sixteen_classes_can_be_drawn() -> None:
    for name in class_names(16):
        image, _ = draw(name, 32, rng(name))
        assert image.size == (32, 32)
