from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from fdcnet.data.sources import read, recognise
from fdcnet.errors import UserError


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """As Ultralytics lays it out: photos of 200 x 100 pixels."""
    root = tmp_path / "birds"
    labels = {
        "train/a": "0 0.5 0.5 0.2 0.4\n",
        "train/b": "1 0.25 0.5 0.5 1.0 0.93\n1 0.75 0.5 0.1 0.2\n",
        "train/two": "0 0.5 0.5 0.1 0.1\n1 0.5 0.5 0.1 0.1\n",
        "train/bare": "",
        "val/c": "1 0.1 0.2 0.4 0.2 0.3 0.6\n",
    }
    for name, text in labels.items():
        image, label = root / "images" / f"{name}.jpg", root / "labels" / f"{name}.txt"
        image.parent.mkdir(parents=True, exist_ok=True)
        label.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (200, 100)).save(image)
        label.write_text(text)
    (root / "data.yaml").write_text("train: images/train\nval: images/val\nnames:\n  0: heron\n  1: wren\n  2: owl\n")
    return root


def test_boxes_in_pixels_and_one_label_per_photo(birds: Path) -> None:
    assert recognise(birds) == recognise(birds / "data.yaml") == "yolo"
    dataset = read(birds)
    assert dataset.name == "birds" and dataset.classes == ("heron", "wren")
    a, b = dataset.train
    assert (a.path, a.label) == (birds / "images/train/a.jpg", "heron")
    assert a.boxes_xyxy[0] == pytest.approx((80, 30, 120, 70))
    assert b.label == "wren" and len(b.boxes_xyxy) == 2
    assert b.boxes_xyxy[0] == pytest.approx((0, 0, 100, 100)) and b.boxes_xyxy[1] == pytest.approx((140, 40, 160, 60))
    (c,) = dataset.test
    assert c.boxes_xyxy[0] == pytest.approx((20, 20, 80, 60))  # around a polygon
    assert dataset.notes == (
        "Skipped 1 train photo with several classes. A photo needs one label.",
        "Skipped 1 train photo without boxes.",
    )


def test_other_ways_to_name_photos(birds: Path) -> None:
    """Roboflow's ../, lists of files, one folder for training and validation, absolute paths."""
    (birds / "train.txt").write_text("./images/train/a.jpg\n./images/train/b.jpg\n")
    for train in ("../images/train", "train.txt", str(birds / "images/train"), "[images/train]"):
        (birds / "data.yaml").write_text(f"train: {train}\nval: {train}\nnames: [heron, wren]\n")
        dataset = read(birds)
        assert [record.path.name for record in dataset.train] == ["a.jpg", "b.jpg"]
        assert dataset.test == ()
    (birds / "data.yaml").write_text(f"path: {birds}\ntrain: images/train\nnames: [heron, wren]\n")
    assert len(read(birds / "data.yaml").train) == 2


def test_an_unreadable_photo_has_a_label_but_no_boxes(birds: Path) -> None:
    (birds / "images/train/a.jpg").write_bytes(b"no photo")
    assert read(birds).train[0].boxes_xyxy == ()


def label(text: str | bytes) -> Callable[[Path], object]:
    content = text if isinstance(text, bytes) else text.encode()
    return lambda root: (root / "labels/train/a.txt").write_bytes(content)


def description(text: str) -> Callable[[Path], object]:
    return lambda root: (root / "data.yaml").write_text(text)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (label("7 0.5 0.5 0.1 0.1"), "there is no class '7'"),
        (label("9" * 5000 + " 0 0 0 0"), "there is no class"),
        (label("0 0.5 0.5"), "row 1 is not 'class x y width height'"),
        (label("0 x y z w"), "row 1 is not 'class x y width height'"),
        (label("0 0.5 0.5 nan 0.1"), "is not finite"),
        (label(b"\xff\xfe"), "is not UTF-8 text"),
        (description("train: missing\nnames: [a]"), "names missing, which does not exist"),
        (description("train: images\nnames: 7"), "no list of class names"),
        (description("train: images\nnames: [a, a]"), "class name twice"),
        (description("train: [\nnames:"), "not valid YAML"),
    ],
)
def test_mistakes_are_named(birds: Path, change: Callable[[Path], object], problem: str) -> None:
    change(birds)
    with pytest.raises(UserError, match=problem):
        read(birds)
