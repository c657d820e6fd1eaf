"""CUB-200-2011, ILSVRC and the WSOL metadata: in miniature, and the real files where they are present."""

from pathlib import Path

import pytest

from fdcnet.data.records import Dataset
from fdcnet.data.sources import read, recognise
from fdcnet.errors import UserError


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def voc(wnid: str, *corners: tuple[int, int, int, int]) -> str:
    body = "".join(
        f"<object><name>{wnid}</name><bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for a, b, c, d in corners
    )
    return f"<annotation>{body}</annotation>"


def boxes(data: Dataset) -> int:
    return sum(len(record.boxes_xyxy) for record in data.test)


CUB = {
    "images.txt": "1 B/x.jpg\n2 B/y.jpg\n3 A/z.jpg\n",
    "image_class_labels.txt": "1 1\n2 1\n3 10\n",
    "train_test_split.txt": "1 1\n2 0\n3 1\n",
    "bounding_boxes.txt": "1 10.0 20.0 30.0 40.0\n2 1 1 1 1\n3 0 0 5 6\n",
    "classes.txt": "10 A\n1 B\n",
}


def write_cub(root: Path, **changes: str) -> None:
    touch(root, "images/B/x.jpg", "images/B/y.jpg", "images/A/z.jpg")
    for name, text in (CUB | {f"{key}.txt": value for key, value in changes.items()}).items():
        (root / name).write_text(text)


def test_cub_files(tmp_path: Path) -> None:
    write_cub(tmp_path / "CUB_200_2011")
    assert recognise(tmp_path) == "cub"
    for root in (tmp_path, tmp_path / "CUB_200_2011"):
        data = read(root)
        assert data.name == "CUB_200_2011"
        assert data.classes == ("B", "A")  # by id, as numbers
        assert [(r.path.name, r.boxes_xyxy) for r in data.train] == [
            ("x.jpg", ((10, 20, 40, 60),)),
            ("z.jpg", ((0, 0, 5, 6),)),
        ]
        assert [r.path.name for r in data.test] == ["y.jpg"]
    assert read(tmp_path, classes=1).classes == ("B",)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"images": "1 B/none.jpg\n"}, r"names B/none\.jpg, which is not in images/"),
        (
            {"bounding_boxes": "1 10 20 0 40\n2 1 1 1 1\n3 0 0 5 6\n"},
            r"bounding_boxes\.txt image 1: the box .* is empty",
        ),
        ({"bounding_boxes": "1 10 20 x 40\n2 1 1 1 1\n3 0 0 5 6\n"}, "is not a box"),
        ({"train_test_split": "1 1\n2 0\n"}, r"train_test_split\.txt has no row for id 3"),
        ({"classes": "one A\n"}, r"classes\.txt row 1 is not an id"),
    ],
)
def test_cub_mistakes(tmp_path: Path, changes: dict[str, str], problem: str) -> None:
    write_cub(tmp_path, **changes)
    with pytest.raises(UserError, match=problem):
        read(tmp_path)


def test_cub_asked_for_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not CUB-200-2011"):
        read(tmp_path, "cub")


def test_cub_real(shared_data: Path) -> None:
    data = read(shared_data / "CUB_200_2011")
    assert (len(data.classes), len(data.train), len(data.test), boxes(data)) == (200, 5994, 5794, 5794)
    assert data.classes[0] == "001.Black_footed_Albatross"
    assert data.classes[199] == "200.Common_Yellowthroat"
    assert data.notes == ()
    hundred = read(shared_data / "CUB_200_2011", classes=100)
    assert len(hundred.classes) == 100
    assert {record.label for record in hundred.test} == set(hundred.classes)


FISH, BIRD = "n01440764", "n01530575"


def write_imagenet(base: Path) -> None:
    touch(base, f"train/{FISH}/{FISH}_1.JPEG", f"train/{FISH}/{FISH}_2.JPEG", f"train/{BIRD}/{BIRD}_1.JPEG")
    touch(base, "val/ILSVRC2012_val_00000001.JPEG", "val/ILSVRC2012_val_00000002.JPEG")


SOLUTION = (
    "ImageId,PredictionString\n"
    f"ILSVRC2012_val_00000001,{BIRD} 1 2 3 4 {BIRD} 5 6 7 8 \n"
    f"ILSVRC2012_val_00000002,{FISH} 0 0 9 9\n"
)


def assert_two_val_photos(data: Dataset) -> None:
    assert data.classes == (FISH, BIRD)
    assert [(r.label, r.path.stem[-1], r.boxes_xyxy) for r in data.test] == [
        (FISH, "2", ((0, 0, 9, 9),)),
        (BIRD, "1", ((1, 2, 3, 4), (5, 6, 7, 8))),
    ]


def test_imagenet_flat_val_with_solution(tmp_path: Path) -> None:
    write_imagenet(tmp_path)
    (tmp_path / "LOC_val_solution.csv").write_text(SOLUTION)
    assert recognise(tmp_path) == "imagenet"
    assert_two_val_photos(read(tmp_path))
    fish = read(tmp_path, classes=1)
    assert (fish.classes, len(fish.train), len(fish.test)) == ((FISH,), 2, 1)


@pytest.mark.parametrize("folder", ["Annotations/CLS-LOC/val", "Annotations/val", "Annotations", "val"])
def test_imagenet_flat_val_with_xml(tmp_path: Path, folder: str) -> None:
    write_imagenet(tmp_path)
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / "ILSVRC2012_val_00000001.xml").write_text(voc(BIRD, (1, 2, 3, 4), (5, 6, 7, 8)))
    (tmp_path / folder / "ILSVRC2012_val_00000002.xml").write_text(voc(FISH, (0, 0, 9, 9)))
    assert_two_val_photos(read(tmp_path))


@pytest.mark.parametrize("given", [".", "ILSVRC", "ILSVRC/Data/CLS-LOC"])
def test_imagenet_from_kaggle(tmp_path: Path, given: str) -> None:
    write_imagenet(tmp_path / "ILSVRC/Data/CLS-LOC")
    touch(tmp_path, "ILSVRC/Data/CLS-LOC/test/ILSVRC2012_test_00000001.JPEG")
    (tmp_path / "LOC_val_solution.csv").write_text(SOLUTION)
    (tmp_path / "LOC_train_solution.csv").write_text(
        f"ImageId,PredictionString\n{FISH}_1,{FISH} 1 1 2 2\n{FISH}_2,{FISH} 5 5 5 9\n"
    )
    assert recognise(tmp_path / given) == "imagenet"
    data = read(tmp_path / given)
    assert_two_val_photos(data)
    assert [r.boxes_xyxy for r in data.train] == [((1, 1, 2, 2),), (), ()]
    assert data.notes == ("Skipped the boxes of 1 training photo, because one is impossible.",)


def test_imagenet_val_by_wnid_and_train_xml(tmp_path: Path) -> None:
    touch(tmp_path, f"train/{FISH}/{FISH}_1.JPEG", f"val/{FISH}/ILSVRC2012_val_00000005.JPEG")
    (tmp_path / f"Annotations/train/{FISH}").mkdir(parents=True)
    (tmp_path / f"Annotations/train/{FISH}/{FISH}_1.xml").write_text(voc(FISH, (1, 2, 3, 4)))
    data = read(tmp_path)
    assert data.train[0].boxes_xyxy == ((1, 2, 3, 4),)
    assert [(r.label, r.boxes_xyxy) for r in data.test] == [(FISH, ())]


def test_imagenet_mistakes(tmp_path: Path) -> None:
    write_imagenet(tmp_path)
    with pytest.raises(UserError, match=r"labels of .*val were not found") as caught:
        read(tmp_path)
    assert "sort the photos into" in caught.value.remedy
    (tmp_path / "LOC_val_solution.csv").write_text(SOLUTION + "ILSVRC2012_val_00000003,n1 2 3\n")
    with pytest.raises(UserError, match=r"LOC_val_solution\.csv row 4 is not groups"):
        read(tmp_path)
    (tmp_path / "LOC_val_solution.csv").write_text(SOLUTION.replace("0 0 9 9", "0 9 9 0"))
    with pytest.raises(UserError, match=r"LOC_val_solution\.csv row 3: the box 0,9,9,0"):
        read(tmp_path)
    with pytest.raises(UserError, match="not laid out like ILSVRC"):
        read(tmp_path / "val", "imagenet")


def test_imagenet_photo_without_label_is_left_out(tmp_path: Path) -> None:
    write_imagenet(tmp_path)
    touch(tmp_path, "val/ILSVRC2012_val_00000003.JPEG")
    (tmp_path / "LOC_val_solution.csv").write_text(SOLUTION)
    data = read(tmp_path)
    assert len(data.test) == 2
    assert "Skipped 1 photo of" in data.notes[0]


def test_wnids_among_other_folders_are_plain_folders(tmp_path: Path) -> None:
    touch(tmp_path, f"train/{FISH}/a.jpg", "train/my_cat/b.jpg")
    assert recognise(tmp_path) == "folders"
    assert read(tmp_path).classes == ("my_cat", FISH)
    forced = read(tmp_path, "imagenet")
    assert forced.classes == (FISH,)
    assert "my_cat, whose name is not a wnid" in forced.notes[0]


def test_imagenet_real(shared_data: Path) -> None:
    data = read(shared_data / "imagenet100_sample", classes=100)
    assert (len(data.classes), len(data.train), len(data.test), boxes(data)) == (100, 676, 724, 952)
    assert (data.classes[0], data.classes[99]) == ("n01440764", "n01855672")
    assert recognise(shared_data / "imagenet100_sample") == "imagenet"


def write_metadata(root: Path, split: str, rows: list[tuple[str, int]], localization: str | None = None) -> None:
    folder = root / split
    folder.mkdir(parents=True)
    (folder / "image_ids.txt").write_text("".join(f"{image}\n" for image, _ in rows))
    (folder / "class_labels.txt").write_text("".join(f"{image},{label}\n" for image, label in rows))
    if localization is not None:
        (folder / "localization.txt").write_text(localization)


def write_wsol(root: Path, photos: str = "dataset/NAME") -> Path:
    """Photos and metadata as that benchmark keeps them."""
    touch(root / photos, "b/1.jpg", "b/2.jpg", "a/3.jpg")
    meta = root / "metadata/NAME"
    write_metadata(meta, "train", [("b/1.jpg", 0), ("a/3.jpg", 1)])
    write_metadata(meta, "val", [("elsewhere/9.jpg", 0)])
    write_metadata(meta, "test", [("b/2.jpg", 0)], "b/2.jpg,1,2,3,4\nb/2.jpg,5,6,7,8\n")
    return meta


@pytest.mark.parametrize("photos", ["dataset/NAME", "data/NAME/images", "NAME", "metadata/NAME/images", "metadata"])
def test_wsol_finds_the_photos(tmp_path: Path, photos: str) -> None:
    meta = write_wsol(tmp_path, photos)
    assert recognise(meta) == "wsol"
    data = read(meta)
    assert data.classes == ("b", "a")  # by number; named by their folders
    assert [(r.path, r.label) for r in data.train] == [
        (tmp_path / photos / "b/1.jpg", "b"),
        (tmp_path / photos / "a/3.jpg", "a"),
    ]
    assert [r.boxes_xyxy for r in data.test] == [((1, 2, 3, 4), (5, 6, 7, 8))]
    assert data.notes == ("Skipped the validation photos, because there is a test set.",)


def test_wsol_from_inside_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_wsol(tmp_path))
    assert len(read(".").train) == 2


def test_wsol_numbers_name_classes_without_own_folders(tmp_path: Path) -> None:
    touch(tmp_path / "dataset/N", "x/1.jpg", "x/2.jpg")
    write_metadata(tmp_path / "metadata/N", "train", [("x/1.jpg", 10), ("x/2.jpg", 9)])
    assert read(tmp_path / "metadata/N").classes == ("9", "10")


def test_wsol_masks_are_left_alone(tmp_path: Path) -> None:
    touch(tmp_path / "dataset/N", "1.jpg")
    write_metadata(tmp_path / "metadata/N", "test", [("1.jpg", 0)], "1.jpg,mask.png,ignore.png\n")
    data = read(tmp_path / "metadata/N")
    assert data.test[0].boxes_xyxy == ()
    assert "which has masks instead of boxes" in data.notes[0]


def test_wsol_mistakes(tmp_path: Path) -> None:
    meta = write_wsol(tmp_path, "hidden_somewhere")
    with pytest.raises(UserError, match=r"photos of .*NAME were not found: no b/2\.jpg in any of .*dataset/NAME"):
        read(meta)
    touch(tmp_path, "dataset/NAME/b/2.jpg")
    with pytest.raises(UserError, match=r"There is no photo .*b/1\.jpg"):
        read(meta)
    (meta / "test/localization.txt").write_text("b/2.jpg,1,2,1,4\n")
    touch(tmp_path, "dataset/NAME/b/1.jpg", "dataset/NAME/a/3.jpg")
    with pytest.raises(UserError, match=r"localization\.txt row 1: the box 1,2,1,4"):
        read(meta)
    (meta / "test/class_labels.txt").write_text("b/2.jpg\n")
    with pytest.raises(UserError, match=r"class_labels\.txt row 1 is not 'path,number'"):
        read(meta)
    (meta / "test/class_labels.txt").write_text("")
    with pytest.raises(UserError, match=r"has no label for b/2\.jpg"):
        read(meta)
