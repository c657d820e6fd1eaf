"""CSV lists and COCO JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from fdcnet.data.sources import read, recognise
from fdcnet.errors import UserError


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def write_csv(folder: Path, text: str) -> Path:
    touch(folder, "a.jpg", "b.jpg", "sub/c.jpg")
    file = folder / "list.csv"
    file.write_text(text, encoding="utf-8")
    return file


def test_csv_with_boxes_and_splits(tmp_path: Path) -> None:
    rows = "a.jpg,dog,1,2,3,4,train\nb.jpg,cat2,,,,,\nsub/c.jpg,dog,0,0,5,5,test\na.jpg,dog,5,5,6,6,train\n"
    file = write_csv(tmp_path, "path,label,x0,y0,x1,y1,split\n" + rows)
    data = read(file)
    assert data.name == "list"
    assert [(r.path.name, r.label, r.boxes_xyxy) for r in data.train] == [
        ("a.jpg", "dog", ((1, 2, 3, 4), (5, 5, 6, 6))),
        ("b.jpg", "cat2", ()),
    ]
    assert data.classes == ("cat2", "dog")
    assert [(r.path, r.boxes_xyxy) for r in data.test] == [(tmp_path / "sub/c.jpg", ((0, 0, 5, 5),))]


def test_csv_folder_delimiter_case_and_byte_order_mark(tmp_path: Path) -> None:
    write_csv(tmp_path, '\ufeffLabel;Path\n"dog";a.jpg\ncat;sub\\c.jpg\n\n')
    (tmp_path / "boxes.csv").write_text("path,x0,y0,x1,y1\n")
    assert recognise(tmp_path) == "csv"
    data = read(tmp_path)
    assert data.classes == ("cat", "dog")
    assert [r.path for r in data.train] == [tmp_path / "a.jpg", tmp_path / "sub/c.jpg"]


def test_csv_classes_come_naturally_sorted(tmp_path: Path) -> None:
    file = write_csv(tmp_path, "path,label\na.jpg,c10\nb.jpg,c9\nsub/c.jpg,c1\n")
    assert read(file).classes == ("c1", "c9", "c10")
    data = read(file, classes=1)
    assert [r.path.name for r in data.train] == ["c.jpg"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("path,name\na.jpg,x\n", "has no column label"),
        ("path,label,x0\na.jpg,x,1\n", "only the box columns x0"),
        ("path,label\na.jpg,x\nnone.jpg,x\n", r"row 3: there is no photo .*none\.jpg"),
        ("path,label\na.jpg,\n", "row 2 lacks a path or a label"),
        ("path,label\na.jpg,x\na.jpg,y\n", r"row 3: a\.jpg has another label"),
        ("path,label,split\na.jpg,x,train\na.jpg,x,test\n", r"row 3: a\.jpg has another label or split"),
        ("path,label,split\na.jpg,x,holdback\n", "row 2: there is no split 'holdback'"),
        ("path,label,x0,y0,x1,y1\na.jpg,x,1,2,,4\n", "row 2: .* is not a box"),
        ("path,label,x0,y0,x1,y1\na.jpg,x,4,2,1,4\n", "row 2: the box 4,2,1,4 is empty or inverted"),
        ("path,label\n", "holds no photos"),
    ],
)
def test_csv_mistakes_name_file_and_row(tmp_path: Path, text: str, problem: str) -> None:
    file = write_csv(tmp_path, text)
    with pytest.raises(UserError, match=problem) as caught:
        read(file)
    assert "list" in caught.value.problem


def test_csv_that_is_not_utf8(tmp_path: Path) -> None:
    file = tmp_path / "list.csv"
    file.write_bytes(b"path,label\na.jpg,caf\xe9\n")
    touch(tmp_path, "a.jpg")
    with pytest.raises(UserError, match="UTF-8"):
        read(file)


def test_several_lists_are_not_guessed(tmp_path: Path) -> None:
    write_csv(tmp_path, "path,label\na.jpg,x\n")
    (tmp_path / "other.csv").write_text("path,label\nb.jpg,y\n")
    with pytest.raises(UserError, match=r"several lists of photos: list\.csv, other\.csv"):
        read(tmp_path)


def coco(images: list[tuple[int, str]], things: list[tuple[int, int, list[float] | None]], crowd: int = 0) -> str:
    document: dict[str, Any] = {
        "images": [{"id": i, "file_name": name} for i, name in images],
        "annotations": [
            {"id": n, "image_id": i, "category_id": c, "iscrowd": crowd, **({"bbox": box} if box else {})}
            for n, (i, c, box) in enumerate(things)
        ],
        "categories": [{"id": 7, "name": "zebra"}, {"id": 9, "name": "ant"}, {"id": 11, "name": "unused"}],
    }
    return json.dumps(document)


def test_coco_file(tmp_path: Path) -> None:
    touch(tmp_path, "images/1.jpg", "images/2.jpg", "images/3.jpg", "images/4.jpg")
    file = tmp_path / "all.json"
    file.write_text(
        coco(
            [(1, "1.jpg"), (2, "2.jpg"), (3, "3.jpg"), (4, "4.jpg")],
            [(1, 9, [1, 2, 10, 20]), (1, 9, [0, 0, 5, 5]), (2, 7, None), (3, 7, [0, 0, 1, 1]), (3, 9, [0, 0, 1, 1])],
        )
    )
    data = read(file)
    assert data.classes == ("zebra", "ant")  # the order of the ids
    assert [(r.path, r.label, r.boxes_xyxy) for r in data.train] == [
        (tmp_path / "images/1.jpg", "ant", ((1, 2, 11, 22), (0, 0, 5, 5))),
        (tmp_path / "images/2.jpg", "zebra", ()),
    ]
    assert data.notes == (
        "Skipped 1 train photo with several categories. A photo needs one label.",
        "Skipped 1 train photo without annotations.",
        "Categories without training photos were left out: unused.",
    )


def test_coco_official_layout(tmp_path: Path) -> None:
    touch(tmp_path, "train2017/1.jpg", "val2017/1.jpg", "annotations/captions_train2017.json")
    for split in ("train", "val"):
        text = coco([(1, "1.jpg")], [(1, 7, [0, 0, 4, 4])])
        (tmp_path / f"annotations/instances_{split}2017.json").write_text(text)
    assert recognise(tmp_path) == "coco"
    data = read(tmp_path)
    assert [r.path for r in data.train] == [tmp_path / "train2017/1.jpg"]
    assert [r.path for r in data.test] == [tmp_path / "val2017/1.jpg"]


def test_coco_photos_in_data(tmp_path: Path) -> None:
    """FiftyOne's layout, which `fdcnet label` writes."""
    touch(tmp_path, "data/ant/1.jpg")
    (tmp_path / "labels.json").write_text(coco([(1, "ant/1.jpg")], [(1, 7, [0, 0, 4, 4])]))
    for source in (tmp_path, tmp_path / "labels.json"):
        assert [record.path for record in read(source).train] == [tmp_path / "data/ant/1.jpg"]


def test_coco_json_in_each_split_folder(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.jpg", "valid/1.jpg")
    for split in ("train", "valid"):
        (tmp_path / split / "_annotations.coco.json").write_text(coco([(1, "1.jpg")], [(1, 7, [0, 0, 4, 4])]))
    data = read(tmp_path)
    assert [r.path for r in (*data.train, *data.test)] == [tmp_path / "train/1.jpg", tmp_path / "valid/1.jpg"]


def test_coco_crowd_boxes_do_not_count(tmp_path: Path) -> None:
    touch(tmp_path, "1.jpg")
    (tmp_path / "a.json").write_text(coco([(1, "1.jpg")], [(1, 7, [0, 0, 9, 9])], crowd=1))
    assert [(r.label, r.boxes_xyxy) for r in read(tmp_path / "a.json").train] == [("zebra", ())]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is not a COCO file"),
        ('{"images": []}', "lacks 'categories'"),
        (coco([(1, "none.jpg")], [(1, 7, None)]), r"names none\.jpg, which is not there"),
        (coco([(1, "1.jpg")], [(1, 8, None)]), "annotation 0: there is no category 8"),
        (coco([(1, "1.jpg")], [(1, 7, [1, 1, 0, 5])]), "annotation 0: the box 1,1,1,6 is empty"),
        (coco([(1, "1.jpg")], [(1, 7, [1, 1, 5])]), "annotation 0: .* is not a box"),
        (coco([(1, "1.jpg")], [(1, 7, [1, 1, 5, 10**400])]), "annotation 0: .* is not a box"),
        (coco([(1, "n" * 5000)], [(1, 7, None)]), "which is not there"),
        ("[" * 200_000, "is not valid JSON"),
    ],
)
def test_coco_mistakes(tmp_path: Path, text: str, problem: str) -> None:
    touch(tmp_path, "1.jpg")
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=problem):
        read(tmp_path / "a.json")


def test_coco_files_without_a_split_in_their_names(tmp_path: Path) -> None:
    touch(tmp_path, "1.jpg")
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text(coco([(1, "1.jpg")], [(1, 7, None)]))
    with pytest.raises(UserError, match=r"not clear which of one\.json, two\.json"):
        read(tmp_path)


def test_a_stray_json_does_not_make_a_folder_coco(tmp_path: Path) -> None:
    touch(tmp_path, "cat/a.jpg", "dog/b.jpg")
    (tmp_path / "settings.json").write_text('{"theme": "dark", "images": 2}')
    assert recognise(tmp_path) == "folders"


def test_a_long_coco_file_is_recognised_by_its_ends(tmp_path: Path) -> None:
    names = [f"{i:040d}.jpg" for i in range(3000)]
    touch(tmp_path, names[0])
    (tmp_path / "a.json").write_text(coco(list(enumerate(names)), [(0, 7, None)]))
    assert (tmp_path / "a.json").stat().st_size > 2 * 65536
    assert recognise(tmp_path) == "coco"
    data = read(tmp_path)
    assert len(data.train) == 1
    assert data.notes[0] == "Skipped 2,999 train photos without annotations."
