"""Files for other tools, read back by those tools where possible."""

import contextlib
import csv
import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from PIL import Image
from pycocotools.coco import COCO

from fdcnet.data.photo import Photo
from fdcnet.errors import UserError
from fdcnet.inference.annotation import Annotation
from fdcnet.inference.prediction import ClassScore, Prediction
from fdcnet.inference.writers import (
    CocoWriter,
    CsvWriter,
    JsonWriter,
    LabelStudioWriter,
    OverlayWriter,
    VocWriter,
    Writer,
    YoloWriter,
)

CLASSES = ["heron", 'grey "wren" <&>', "Eisvögel/groß"]
BOXES = ((10.0, 20.0, 110.0, 60.0), (0.0, 0.0, 20.0, 10.0))


def prediction(name: str, label: int | None, num_boxes: int = 1) -> Prediction:
    class_name = None if label is None else CLASSES[label]
    return Prediction(
        name=name,
        image_size=(200, 100),
        class_name=class_name,
        score=0.75,
        task=None if label is None else 1,
        boxes_xyxy=BOXES[:num_boxes] if class_name else (),
        top=(ClassScore(CLASSES[0], 0.75, 1),),
        threshold=0.15,
        heat=np.zeros((4, 4), np.float32),
        side=32,
        photo=Photo(Image.new("RGB", (200, 100)), name),
    )


class LabelledPhoto(NamedTuple):
    name: str
    image_size: tuple[int, int]
    annotations: tuple[Annotation, ...]


PREDICTIONS = [prediction("a.jpg", 0), prediction("sub/ü b.png", 2, 2), prediction("c.jpg", None)]


def write(writer: Writer) -> None:
    with writer:
        for item in PREDICTIONS:
            writer.add(item)


def test_json_is_a_list(tmp_path: Path) -> None:
    write(JsonWriter(tmp_path / "new" / "out.json", CLASSES))
    assert json.loads((tmp_path / "new" / "out.json").read_text()) == [item.to_dict() for item in PREDICTIONS]
    write(JsonWriter(tmp_path / "out.jsonl", CLASSES))
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [item.to_dict() for item in PREDICTIONS]


def test_files_without_photos_are_valid(tmp_path: Path) -> None:
    for kind in (JsonWriter, CocoWriter, LabelStudioWriter):
        with kind(tmp_path / "out.json", CLASSES):
            pass
        json.loads((tmp_path / "out.json").read_text())


def test_csv_has_a_row_per_box(tmp_path: Path) -> None:
    write(CsvWriter(tmp_path / "out.csv", CLASSES))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert [row["path"] for row in rows] == ["a.jpg", "sub/ü b.png", "sub/ü b.png", "c.jpg"]
    assert [float(rows[0][key]) for key in ("x0", "y0", "x1", "y1")] == list(BOXES[0])
    assert rows[3]["class"] == rows[3]["x0"] == ""


def test_pycocotools_reads_coco(tmp_path: Path) -> None:
    write(CocoWriter(tmp_path / "coco.json", CLASSES))
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(tmp_path / "coco.json"))
    assert [category["name"] for category in coco.loadCats(coco.getCatIds())] == CLASSES
    assert [image["file_name"] for image in coco.loadImgs(coco.getImgIds())] == ["a.jpg", "sub/ü b.png", "c.jpg"]
    [first] = coco.loadAnns(coco.getAnnIds(imgIds=[1]))
    assert first["bbox"] == [10, 20, 100, 40]
    assert first["area"] == 4000
    assert coco.loadCats(first["category_id"])[0]["name"] == "heron"
    assert len(coco.getAnnIds(catIds=coco.getCatIds(catNms=[CLASSES[2]]))) == 2
    assert coco.getAnnIds(imgIds=[3]) == []
    results = [{k: a[k] for k in ("image_id", "category_id", "bbox", "score")} for a in coco.loadAnns(coco.getAnnIds())]
    with contextlib.redirect_stdout(io.StringIO()):
        assert len(coco.loadRes(results).anns) == 3


def test_yolo_labels(tmp_path: Path) -> None:
    write(YoloWriter(tmp_path / "yolo", CLASSES))
    labels = tmp_path / "yolo" / "labels"
    assert (labels / "a.txt").read_text() == "0 0.300000 0.400000 0.500000 0.400000\n"
    rows = [line.split() for line in (labels / "sub" / "ü b.txt").read_text().splitlines()]
    assert [len(row) for row in rows] == [5, 5]  # Ultralytics takes five columns, no score
    assert all(0 <= float(value) <= 1 for row in rows for value in row[1:])
    assert (labels / "c.txt").read_text() == ""
    facts = yaml.safe_load((tmp_path / "yolo" / "data.yaml").read_text())
    assert facts == {"train": "images", "val": "images", "names": dict(enumerate(CLASSES))}  # no "path": see the writer
    assert (labels / "classes.txt").read_text().splitlines() == CLASSES


def test_yolo_masks_and_coco_segmentation(tmp_path: Path) -> None:
    triangle = ((10.0, 20.0), (110.0, 20.0), (10.0, 60.0))
    photo = LabelledPhoto("a.jpg", (200, 100), (Annotation("heron", BOXES[0], 0.75, triangle),))
    with YoloWriter(tmp_path, CLASSES, masks=True) as yolo, CocoWriter(tmp_path / "coco.json", CLASSES) as coco:
        yolo.add(photo)
        coco.add(photo)
    expected = "0 0.050000 0.200000 0.550000 0.200000 0.050000 0.600000\n"
    assert (tmp_path / "labels" / "a.txt").read_text() == expected
    with contextlib.redirect_stdout(io.StringIO()):
        read = COCO(str(tmp_path / "coco.json"))
    [annotation] = read.loadAnns(read.getAnnIds())
    assert annotation["area"] == 2000
    assert read.annToMask(annotation).sum() == pytest.approx(2000, rel=0.05)


def test_voc_has_a_file_per_photo_and_a_list(tmp_path: Path) -> None:
    write(VocWriter(tmp_path / "voc", CLASSES))
    assert (tmp_path / "voc/ImageSets/Main/trainval.txt").read_text() == "a\nsub/ü b\nc\n"
    root = ET.parse(tmp_path / "voc" / "Annotations" / "sub" / "ü b.xml").getroot()
    assert [root.findtext(path) for path in ("filename", "size/width", "size/height")] == ["sub/ü b.png", "200", "100"]
    assert [element.findtext("name") for element in root.iter("object")] == [CLASSES[2]] * 2
    corners = ("xmin", "ymin", "xmax", "ymax")
    assert [root.findtext(f"object/bndbox/{corner}") for corner in corners] == ["10", "20", "110", "60"]
    assert not list(ET.parse(tmp_path / "voc" / "Annotations" / "c.xml").getroot().iter("object"))


@pytest.mark.parametrize(
    ("names", "file"), [(["a.jpg", "a.png"], "a.txt"), (["sub/a.jpg", "classes.jpg"], "classes.txt")]
)
def test_the_first_of_two_photos_with_one_yolo_file_gets_it(names: list[str], file: str, tmp_path: Path) -> None:
    first, second = (prediction(name, label) for label, name in enumerate(names))
    with YoloWriter(tmp_path, CLASSES) as writer:
        writer.add(first)
        before = (tmp_path / "labels" / file).read_bytes()
        writer.add(second)
    [skipped] = writer.skipped
    assert skipped.startswith(f"no YOLO labels for {names[1]}: ") and skipped.endswith(f"same label file, {file}")
    assert (tmp_path / "labels" / file).read_bytes() == before


def test_names_as_long_as_a_file_system_allows(tmp_path: Path) -> None:
    name = "x" * 251 + ".jpg"
    for writer in (YoloWriter(tmp_path / "yolo", CLASSES), OverlayWriter(tmp_path / "seen", CLASSES)):
        with writer:
            writer.add(prediction(name, 0))
    with CsvWriter(tmp_path / ("x" * 251 + ".csv"), CLASSES) as writer:
        writer.add(prediction(name, 0))
    assert {path.name for path in tmp_path.iterdir()} == {"yolo", "seen", "x" * 251 + ".csv"}
    assert [path.name for path in (tmp_path / "seen").iterdir()] == [name]


def check_task(task: dict[str, Any], controls: dict[str, tuple[str, set[str]]]) -> None:
    """Check what Label Studio's guide requires of a task with rectangle predictions."""
    assert task.keys() == {"data", "predictions"}
    for answer in task["predictions"]:
        assert isinstance(answer["model_version"], str)
        assert 0 <= answer["score"] <= 1
        ids = [region["id"] for region in answer["result"]]
        assert len(set(ids)) == len(ids)
        for region in answer["result"]:
            assert region["type"] == "rectanglelabels"
            to_name, labels = controls[region["from_name"]]
            assert region["to_name"] == to_name
            assert (region["original_width"], region["original_height"], region["image_rotation"]) == (200, 100, 0)
            value = region["value"]
            assert value.keys() == {"x", "y", "width", "height", "rotation", "rectanglelabels"}
            assert 0 <= value["x"] <= value["x"] + value["width"] <= 100
            assert 0 <= value["y"] <= value["y"] + value["height"] <= 100
            assert set(value["rectanglelabels"]) <= labels


def test_label_studio_tasks_fit_their_interface(tmp_path: Path) -> None:
    write(LabelStudioWriter(tmp_path / "tasks.json", CLASSES))
    view = ET.parse(tmp_path / "tasks.xml").getroot()
    image = view.find("Image")
    assert image is not None
    controls = {
        control.attrib["name"]: (control.attrib["toName"], {label.attrib["value"] for label in control})
        for control in view.findall("RectangleLabels")
    }
    assert controls["label"][1] == set(CLASSES)
    assert controls["label"][0] == image.attrib["name"]
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    for task in tasks:
        check_task(task, controls)
        assert image.attrib["value"].removeprefix("$") in task["data"]
    assert tasks[0]["predictions"][0]["result"][0]["value"]["x"] == 5
    assert tasks[0]["predictions"][0]["result"][0]["value"]["y"] == 20
    assert tasks[1]["data"]["image"] == "/data/local-files/?d=sub/%C3%BC%20b.png"
    assert len(tasks[1]["predictions"][0]["result"]) == 2
    assert tasks[2]["predictions"][0]["result"] == []


@pytest.mark.parametrize("kind", [JsonWriter, CsvWriter, CocoWriter, LabelStudioWriter])
def test_a_failure_leaves_the_old_file(kind: type[Writer], tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    with pytest.raises(AttributeError), kind(path, CLASSES) as writer:
        writer.add(None)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["out.json"]


def test_overlays_never_overwrite_a_photo(tmp_path: Path) -> None:
    Image.new("RGB", (200, 100)).save(tmp_path / "a.jpg")
    own = prediction("a.jpg", 0)
    object.__setattr__(own, "photo", Photo(tmp_path / "a.jpg", "a.jpg"))
    with OverlayWriter(tmp_path / "out", CLASSES) as writer:
        writer.add(own)
    assert Image.open(tmp_path / "out" / "a.jpg").size == (400, 200)
    with pytest.raises(UserError, match="would be overwritten"), OverlayWriter(tmp_path, CLASSES) as writer:
        writer.add(own)


def test_a_drawing_that_fails_is_skipped(tmp_path: Path) -> None:
    gone = prediction("a.jpg", 0)
    object.__setattr__(gone, "photo", Photo(tmp_path / "a.jpg", "a.jpg"))
    with OverlayWriter(tmp_path / "out", CLASSES) as writer:
        writer.add(gone)
    assert writer.skipped == ["no drawing of a.jpg: No such file or directory"]


def test_a_file_in_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for writer in (
        YoloWriter(tmp_path / "file", CLASSES),
        JsonWriter(tmp_path, CLASSES),
        CsvWriter(tmp_path / "file" / "x.csv", CLASSES),
    ):
        with pytest.raises(UserError), writer:
            pass
