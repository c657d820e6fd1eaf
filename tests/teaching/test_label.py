"""`fdcnet.label`: boxes for photos whose classes are known, corrections, and bad input."""

import contextlib
import csv
import io
import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

import fdcnet
from fdcnet import Localizer
from fdcnet.data.sources import read
from fdcnet.errors import UserError
from fdcnet.inference.writers import YoloWriter
from fdcnet.runtime.listener import Listener
from fdcnet.store.versions import versions
from fdcnet.teaching.label import LabelReport, label
from fdcnet.teaching.label_files import FORMATS, read_record
from fdcnet.teaching.label_shapes import read_shapes

TINY = {"backbone": "tiny", "weights": "none", "epochs": 1, "full": True, "overrides": ["data.size=40", "data.crop=32"]}


@pytest.fixture(scope="module")
def model(taught: Path) -> Path:
    return taught / "run" / "model"


@pytest.fixture
def photos(taught: Path) -> Path:
    return taught / "photos" / "test"


@pytest.fixture
def labelled(model: Path, photos: Path, tmp_path: Path) -> LabelReport:
    return label(photos, tmp_path / "out", model=model, formats=list(FORMATS), device="cpu")


def entries(out: Path) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in json.loads((out / "labels.json").read_text())["photos"]}


def test_each_photo_is_boxed_as_its_own_label(labelled: LabelReport, model: Path, photos: Path) -> None:
    assert fdcnet.label is label
    assert len(labelled.photos) == 8 and not labelled.skipped and labelled.num_reviewed == 0
    localizer = Localizer.load(model, "cpu")
    for photo in labelled.photos:
        [annotation] = photo.annotations
        assert annotation.class_name == photo.path.parent.name
        assert 0 <= annotation.score <= 1 and photo.image_size == (40, 40)
        x0, y0, x1, y1 = annotation.box_xyxy
        assert 0 <= x0 < x1 <= 40 and 0 <= y0 < y1 <= 40
        corners = np.array(annotation.polygon)
        if len(corners):  # an empty mask is boxed as the whole photo
            assert [*corners.min(axis=0), *corners.max(axis=0)] == pytest.approx(annotation.box_xyxy)
    assert {photo.annotations[0].class_name for photo in labelled.photos} == set(localizer.classes)


def test_all_formats_are_complete(labelled: LabelReport) -> None:
    out, names = labelled.out, [photo.name for photo in labelled.photos]
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(out / "coco" / "labels.json"))
    assert [image["file_name"] for image in coco.loadImgs(coco.getImgIds())] == names
    for annotation in coco.loadAnns(coco.getAnnIds()):
        if annotation["segmentation"]:
            assert coco.annToMask(annotation).sum() == pytest.approx(annotation["area"], abs=60)
    for name in names:
        for folder in ("coco/data", "yolo/images", "yolo-seg/images", "voc/JPEGImages"):
            assert Image.open(out / folder / name).size == (40, 40)
        line = (out / "yolo" / "labels" / name).with_suffix(".txt").read_text().split()
        assert len(line) == 5
        root = ET.parse((out / "voc" / "Annotations" / name).with_suffix(".xml")).getroot()
        assert root.findtext("object/name") == Path(name).parent.name
    assert len(json.loads((out / "labelstudio.json").read_text())) == 8
    assert len(list(csv.DictReader((out / "boxes.csv").open()))) == 8
    assert len(read(out / "boxes.csv").train) == 8  # its paths lead to the photos
    assert not [path for path in out.iterdir() if path.name.startswith(".") or path.name == "lock"]


def test_the_contact_sheet_shows_the_least_certain_first(labelled: LabelReport) -> None:
    page = (labelled.out / "index.html").read_text()
    ranked = sorted(labelled.photos, key=lambda photo: photo.confidence)
    places = [page.index(f'alt="{photo.name}"') for photo in ranked]
    assert places == sorted(places)
    assert page.count("data:image/jpeg") == 8
    assert page.count('class="bar low"') == 2  # the worst 20 % of 8
    assert "http://" not in page and "https://" not in page


def test_a_model_is_learned_if_none_is_named(photos: Path, tmp_path: Path) -> None:
    small = tmp_path / "photos"
    for name in ("ringed disc", "dotted square"):
        shutil.copytree(photos.parent / "train" / name, small / name)
    first = label(small, tmp_path / "out", learn_options=TINY, device="cpu")
    assert Localizer.load(tmp_path / "out" / "model", "cpu").classes == list(first.classes)
    shutil.copytree(photos.parent / "train" / "striped star", small / "striped star")
    later = label(small, tmp_path / "out", learn_options={"epochs": 1}, device="cpu")
    assert Localizer.load(tmp_path / "out" / "model", "cpu").tasks == [1, 1, 2]
    assert len(later.photos) == len(first.photos) + 6


def test_boxes_of_later_classes_are_trained_unless_checked_boxes_taught_the_model(photos: Path, tmp_path: Path) -> None:
    first, second, third, fourth = sorted(path for path in (photos.parent / "train").iterdir() if path.is_dir())
    small, out = tmp_path / "photos", tmp_path / "out"

    def label_with(folder: Path, **options: Any) -> bool:
        """-> whether the lesson trained"""
        shutil.copytree(folder, small / folder.name)
        label(small, out, device="cpu", **options)
        return bool(versions(out / "model")[-1].learned["trained"])

    shutil.copytree(first, small / first.name)
    assert label_with(second, learn_options=TINY | {"full": False})
    assert label_with(third)
    label(small, out, corrections=corrected(out), learn_boxes=True, device="cpu")
    assert not label_with(fourth, learn_options={"keep": 0})  # now the version that learned from boxes is gone
    (tmp_path / "noise").mkdir()
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "noise" / f"{number}.png")
    assert not label_with(tmp_path / "noise")


def corrected(out: Path) -> Path:
    """The boxes as written, except the first."""
    file = out / "coco" / "labels.json"
    boxes = json.loads(file.read_text())
    boxes["annotations"][0]["bbox"] = [5, 10, 7, 9]
    file.write_text(json.dumps(boxes))
    return file


def test_a_single_class_needs_other_photos(photos: Path, tmp_path: Path) -> None:
    disc, square = photos.parent / "train" / "ringed disc", photos.parent / "train" / "dotted square"
    shutil.copytree(disc, tmp_path / "photos" / "ringed disc")
    with pytest.raises(UserError, match=r"one class only, 'ringed disc'(.|\n)*--others"):
        label(tmp_path / "photos", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    report = label(tmp_path / "photos", tmp_path / "out", others=square, learn_options=TINY, device="cpu")
    assert {a.class_name for photo in report.photos for a in photo.annotations} == {"ringed disc"}


def test_several_labels_per_photo(model: Path, photos: Path, tmp_path: Path) -> None:
    first, second = sorted(photos.rglob("*.jpg"))[:2]
    rows = f"path,label\n{first},ringed disc|striped star\n{second},striped star\n{second},dotted square\n"
    (tmp_path / "photos.csv").write_text(rows)
    report = label(tmp_path / "photos.csv", tmp_path / "out", model=model, device="cpu")
    classes = [[a.class_name for a in photo.annotations] for photo in report.photos]
    assert classes == [["ringed disc", "striped star"], ["striped star", "dotted square"]]


def test_a_class_that_is_never_alone_cannot_be_learned(photos: Path, tmp_path: Path) -> None:
    first, second = sorted(photos.rglob("*.jpg"))[:2]
    (tmp_path / "photos.csv").write_text(f"path,label\n{first},disc|star\n{second},disc\n")
    with pytest.raises(UserError, match=r"All photos of the class 'star' have other labels(.|\n)*this label only"):
        label(tmp_path / "photos.csv", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unreadable_photos_are_skipped(model: Path, photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "ringed disc" / "bad.jpg").write_text("not a photo")
    report = label(tmp_path / "photos", tmp_path / "out", model=model, device="cpu")
    assert len(report.photos) == 8
    assert report.skipped == ("ringed disc/bad.jpg: not an image",)


class Notes(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_unreadable_photos_of_a_lesson_are_named_once(photos: Path, tmp_path: Path) -> None:
    small, others = tmp_path / "photos", tmp_path / "others"
    shutil.copytree(photos.parent / "train" / "ringed disc", small / "ringed disc")
    shutil.copytree(photos.parent / "train" / "dotted square", others)
    (small / "ringed disc" / "bad.jpg").write_text("not a photo")
    (others / "bad_too.jpg").write_text("not a photo")
    listener = Notes()
    report = label(small, tmp_path / "out", others=others, learn_options=TINY, device="cpu", listener=listener)
    assert report.skipped == ("ringed disc/bad.jpg: not an image",)
    assert not [note for note in listener.notes if "bad.jpg" in note]
    at = listener.notes.index("Skipped unreadable photos: 1 of 14")  # not boxed, so not in the report
    assert listener.notes[at + 1] == f"  {others / 'bad_too.jpg'}: not an image"


def test_unreadable_photos_are_named_if_the_lesson_fails(photos: Path, tmp_path: Path) -> None:
    small = tmp_path / "photos"
    for name in ("ringed disc", "dotted square"):
        shutil.copytree(photos.parent / "train" / name, small / name)
    spoilt = sorted((small / "ringed disc").iterdir())[:3]
    for photo in spoilt:
        photo.write_text("not a photo")
    listener = Notes()
    with pytest.raises(UserError, match="has 3 training photos"):
        label(small, tmp_path / "out", learn_options=TINY, device="cpu", listener=listener)
    assert listener.notes[-3:] == [f"  {photo}: not an image" for photo in spoilt]


def edit_coco(out: Path) -> str:
    content = json.loads((out / "coco" / "labels.json").read_text())
    content["annotations"][3]["bbox"] = [4, 5, 20, 30]
    (out / "coco" / "labels.json").write_text(json.dumps(content))
    return str(content["images"][3]["file_name"])


def edit_yolo(out: Path) -> str:
    name = list(entries(out))[3]
    file = (out / "yolo" / "labels" / name).with_suffix(".txt")
    file.write_text(f"{file.read_text().split()[0]} 0.35 0.5 0.5 0.75\n")
    return name


def edit_labelstudio(out: Path) -> str:
    tasks = json.loads((out / "labelstudio.json").read_text())
    region = tasks[3]["predictions"][0]["result"][0]
    region["value"] |= {"x": 10, "y": 12.5, "width": 50, "height": 75}
    tasks[3] |= {"annotations": [{"was_cancelled": False, "result": [region]}]}
    tasks[3]["data"] = {"caption": "seen at the pond"} | tasks[3]["data"]
    (out / "labelstudio.json").write_text(json.dumps(tasks))
    return list(entries(out))[3]


@pytest.mark.parametrize(
    ("edit", "file"),
    [(edit_coco, "coco/labels.json"), (edit_yolo, "yolo"), (edit_labelstudio, "labelstudio.json")],
)
def test_corrections_come_back_and_stay(
    edit: Any, file: str, labelled: LabelReport, model: Path, photos: Path, taught: Path
) -> None:
    out = labelled.out
    name = edit(out)
    with pytest.raises(UserError, match=r"was edited after(.|\n)*--corrections"):
        label(photos, out, model=model, device="cpu")
    corrected = label(photos, out, model=model, corrections=out / file, device="cpu")
    assert [photo.name for photo in corrected.photos if photo.reviewed] == [name]
    again = label(photos, out, model=model, device="cpu")
    assert again.num_reviewed == 1
    assert entries(out)[name]["objects"][0]["box"] == pytest.approx([4, 5, 24, 35])
    others = [entry for entry in entries(out).values() if entry["name"] != name]
    before = {photo.name: photo.annotations[0].box_xyxy for photo in labelled.photos}
    assert all(entry["objects"][0]["box"] == pytest.approx(before[entry["name"]]) for entry in others)
    assert "(reviewed)" in (out / "index.html").read_text()


def test_a_rotated_label_studio_box_becomes_its_bounds(labelled: LabelReport, model: Path, photos: Path) -> None:
    name = edit_labelstudio(labelled.out)
    tasks = json.loads((labelled.out / "labelstudio.json").read_text())
    value = tasks[3]["annotations"][0]["result"][0]["value"]
    value |= {"x": 50, "y": 25, "width": 50, "height": 25, "rotation": 90}  # turned around (20, 10) pixels
    (labelled.out / "labelstudio.json").write_text(json.dumps(tasks))
    label(photos, labelled.out, model=model, corrections=labelled.out / "labelstudio.json", device="cpu")
    assert entries(labelled.out)[name]["objects"][0]["box"] == pytest.approx([10, 10, 20, 30])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"file_name": "elsewhere.jpg"}, "corrects 1 photo not in this set, such as elsewhere.jpg"),
        ({"bbox": [30, 30, 20, 5]}, "reaches beyond the photo, which has 40 x 40 pixels"),
        ({"bbox": [3, 3, 0, 5]}, "is empty"),
        ({"bbox": [float("nan"), 3, 2, 5]}, "reaches beyond the photo"),
        ({"bbox": None}, "lacks a value, or one has the wrong type"),
        ({"category_id": 77}, "lacks a value, or one has the wrong type"),
    ],
)
def test_bad_corrections_change_nothing(
    change: dict[str, Any], message: str, labelled: LabelReport, model: Path, photos: Path, tmp_path: Path
) -> None:
    content = json.loads((labelled.out / "coco" / "labels.json").read_text())
    content["images" if "file_name" in change else "annotations"][0] |= change
    if "bbox" in change:
        content["annotations"][0]["segmentation"] = []
    (tmp_path / "new.json").write_text(json.dumps(content))
    before = (labelled.out / "labels.json").read_bytes()
    with pytest.raises(UserError, match=message):
        label(photos, labelled.out, model=model, corrections=tmp_path / "new.json", device="cpu")
    assert (labelled.out / "labels.json").read_bytes() == before


def test_corrections_of_an_unreadable_photo_are_refused(model: Path, photos: Path, tmp_path: Path) -> None:
    own, out = shutil.copytree(photos, tmp_path / "photos"), tmp_path / "out"
    label(own, out, model=model, device="cpu")
    name = json.loads((out / "coco" / "labels.json").read_text())["images"][0]["file_name"]
    (own / name).write_bytes(b"no photo")
    with pytest.raises(UserError, match=f"corrects {name}, which cannot be read"):
        label(own, out, model=model, corrections=corrected(out), device="cpu")


def test_polygons_come_back_and_must_lie_on_the_photo(
    labelled: LabelReport, model: Path, photos: Path, tmp_path: Path
) -> None:
    content = json.loads((labelled.out / "coco" / "labels.json").read_text())
    content["annotations"][0] |= {"bbox": [2, 3, 20, 30], "segmentation": [[2, 3, 22, 3, 2, 33]]}
    (tmp_path / "new.json").write_text(json.dumps(content))
    label(photos, labelled.out, model=model, corrections=tmp_path / "new.json", device="cpu")
    [found] = [entry for entry in entries(labelled.out).values() if entry["reviewed"]]
    assert found["objects"][0]["polygon"] == [[2, 3], [22, 3], [2, 33]]
    content["annotations"][0] |= {"bbox": [2, 3, 120, 30], "segmentation": [[2, 3, 122, 3, 2, 33]]}
    (tmp_path / "new.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="reaches beyond the photo"):
        label(photos, labelled.out, model=model, corrections=tmp_path / "new.json", device="cpu")


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "is not valid JSON"), ("{}", "Unrecognized corrections format"), ("[1]", "Unrecognized corrections format")],
)
def test_other_files_are_not_corrections(content: str, message: str, model: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "new.json").write_text(content)
    with pytest.raises(UserError, match=message):
        label(photos, tmp_path / "out", model=model, corrections=tmp_path / "new.json", device="cpu")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"checksums": {"unheard-of": ""}}, "labels.json is damaged"),
        ({"photos": [{"name": "a.jpg"}]}, "labels.json is damaged"),
        ({"schema": 2}, "written by another version"),
    ],
)
def test_a_record_that_was_changed_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    record = {"schema": 1, "model": "", "classes": [], "checksums": {"coco": ""}, "photos": []}
    (tmp_path / "labels.json").write_text(json.dumps(record))
    assert read_record(tmp_path).checksums == {"coco": ""}
    (tmp_path / "labels.json").write_text(json.dumps(record | change))
    with pytest.raises(UserError, match=message):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("data.yaml", b"names: [", "data.yaml cannot be read"),
        ("data.yaml", b"names: {first: disc}", "data.yaml cannot be read"),
        ("data.yaml", b"names: \xff", "data.yaml cannot be read"),
        ("labels/classes.txt", b"disc\xff\n", "classes.txt is not UTF-8 text"),
        ("labels/classes.txt", b"disc\n", "a.txt line 1 is not a YOLO label: 1 0.5 0.5 0.2 0.2"),
        ("labels/a.jpg", b"", "does not name the classes of its labels"),
    ],
)
def test_damaged_yolo_folders_are_not_corrections(file: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("1 0.5 0.5 0.2 0.2\n")
    (tmp_path / file).write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(read_shapes(tmp_path))


def make_flat(folder: Path) -> None:
    Image.new("RGB", (40, 40)).save(folder / "a.png")


def make_empty(folder: Path) -> None:
    pass


def make_unknown(folder: Path) -> None:
    (folder / "rnged disc").mkdir()
    Image.new("RGB", (40, 40)).save(folder / "rnged disc" / "a.png")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_flat, "holds photos but no class folders"),
        (make_empty, "holds no class folders"),
        (make_unknown, r"does not know the class 'rnged disc'\.\nDid you mean 'ringed disc'\?"),
    ],
)
def test_bad_photo_sets(make: Any, message: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    make(tmp_path / "photos")
    with pytest.raises(UserError, match=message):
        label(tmp_path / "photos", tmp_path / "out", model=model)
    assert not (tmp_path / "out").exists()


def test_a_run_that_was_stopped_while_writing_can_be_repeated(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    for _ in range(2):  # into a new folder, and into one that is complete
        with monkeypatch.context() as patch:
            patch.setattr(YoloWriter, "__exit__", stop)
            with pytest.raises(KeyboardInterrupt):
                label(photos, tmp_path / "out", model=model, formats=["coco", "yolo"], device="cpu")
        report = label(photos, tmp_path / "out", model=model, formats=["coco"], device="cpu")
        assert tmp_path / "out" / "yolo" in report.written
    label(photos, tmp_path / "out", model=model, device="cpu")


def test_other_output_folders_are_left_alone(model: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match=r"holds something else, such as thesis\.tex"):
        label(photos, tmp_path / "out", model=model)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]
    with pytest.raises(UserError, match="is a file"):
        label(photos, tmp_path / "out" / "thesis.tex", model=model)
    with pytest.raises(UserError, match="is inside the folder of photos"):
        label(photos, photos / "boxes", model=model)
    assert not (photos / "boxes").exists()
    with pytest.raises(UserError, match=r"There is no label format 'yollo'\.\nDid you mean 'yolo'"):
        label(photos, tmp_path / "new", model=model, formats=["yollo"])
