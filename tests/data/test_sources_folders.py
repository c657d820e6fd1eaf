"""A folder per class: order, splits, boxes, and what a user may get wrong."""

from pathlib import Path

import pytest

from fdcnet.data.sources import read, recognise
from fdcnet.data.sources.files import natural_key
from fdcnet.errors import UserError


def touch(root: Path, *names: str) -> None:
    """Photos for readers, which never open them."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def voc(*objects: tuple[str, int, int, int, int]) -> str:
    body = "".join(
        f"<object><name>{n}</name><bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for n, a, b, c, d in objects
    )
    return f"<annotation><filename>x</filename>{body}</annotation>"


def names(records: tuple) -> list[str]:
    return [record.path.name for record in records]


def test_natural_order_counts_numbers_by_value() -> None:
    assert sorted(["b", "class10", "Class2", "class1", "a10b2", "a10b1"], key=natural_key) == [
        "a10b1",
        "a10b2",
        "b",
        "class1",
        "Class2",
        "class10",
    ]


def test_one_folder_per_class(tmp_path: Path) -> None:
    touch(tmp_path, "class10/a.jpg", "class2/b.PNG", "class2/a.jpeg", "class2/c.txt")
    data = read(tmp_path)
    assert recognise(tmp_path) == "folders"
    assert data.classes == ("class2", "class10")
    assert [(r.label, r.path.name) for r in data.train] == [
        ("class2", "a.jpeg"),
        ("class2", "b.PNG"),
        ("class10", "a.jpg"),
    ]
    assert data.test == ()
    assert data.name == tmp_path.name


def test_every_accepted_suffix_and_no_other(tmp_path: Path) -> None:
    good = [f"x.{s}" for s in ("jpg", "JPEG", "png", "webp", "bmp", "gif", "tif", "TIFF")]
    touch(tmp_path, *(f"cat/{name}" for name in [*good, "._x.jpg", ".hidden.png", "x.mp4", "x.psd"]))
    touch(tmp_path, ".cache/a.jpg", "__MACOSX/cat/a.jpg")
    data = read(tmp_path)
    assert sorted(names(data.train)) == sorted(good)
    assert data.classes == ("cat",)
    assert data.notes == ("Skipped 1 .psd file. Convert to jpg.",)


@pytest.mark.parametrize("test", ["test", "val", "valid", "Test"])
def test_train_and_test_folders(tmp_path: Path, test: str) -> None:
    touch(tmp_path, "train/cat/1.jpg", "train/dog/2.jpg", f"{test}/cat/3.jpg")
    data = read(tmp_path)
    assert data.classes == ("cat", "dog")
    assert names(data.train) == ["1.jpg", "2.jpg"]
    assert names(data.test) == ["3.jpg"]


def test_test_wins_over_val(tmp_path: Path) -> None:
    touch(tmp_path, "train/cat/1.jpg", "val/cat/2.jpg", "test/cat/3.jpg", "docs/readme.txt")
    data = read(tmp_path)
    assert names(data.test) == ["3.jpg"]
    assert data.notes == (
        "Folders beside test/ and train/ and val/ were skipped: docs.",
        "Skipped 1 validation photo, because there is a test set.",
    )


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.jpg", "bus/2.jpg")
    assert read(tmp_path).classes == ("bus", "train")


def test_first_classes_in_natural_order(tmp_path: Path) -> None:
    touch(tmp_path, "c10/a.jpg", "c9/a.jpg", "c1/a.jpg")
    assert read(tmp_path, classes=2).classes == ("c1", "c9")
    assert len(read(tmp_path, classes=2).train) == 2
    with pytest.raises(UserError, match="4 classes are asked for, the data has 3"):
        read(tmp_path, classes=4)


def test_boxes_csv_beside(tmp_path: Path) -> None:
    touch(tmp_path, "cat/a.jpg", "cat/b.jpg", "dog/c.jpg")
    (tmp_path / "boxes.csv").write_text(
        "path,x0,y0,x1,y1\ncat/a.jpg,1,2,3,4\ncat/a.jpg,5,6,7.5,8\ndog\\c.jpg,0,0,9,9\n"
    )
    a, b, c = read(tmp_path).train
    assert a.boxes_xyxy == ((1, 2, 3, 4), (5, 6, 7.5, 8))
    assert b.boxes_xyxy == ()
    assert c.boxes_xyxy == ((0, 0, 9, 9),)
    assert read(tmp_path, classes=1).classes == ("cat",)  # the row of a class that is left out is no mistake


@pytest.mark.parametrize("place", ["test", "test/cat"])
def test_boxes_csv_in_a_split_or_class_folder(tmp_path: Path, place: str) -> None:
    touch(tmp_path, "train/cat/a.jpg", "test/cat/a.jpg")
    row = "cat/a.jpg" if place == "test" else "a.jpg"
    (tmp_path / place / "boxes.csv").write_text(f"path;x0;y0;x1;y1\n{row};1;2;3;4\n")
    data = read(tmp_path)
    assert data.test[0].boxes_xyxy == ((1, 2, 3, 4),)
    assert data.train[0].boxes_xyxy == ()


def test_voc_beside_a_photo(tmp_path: Path) -> None:
    touch(tmp_path, "cat/a.jpg", "cat/b.jpg")
    (tmp_path / "cat/a.xml").write_text(voc(("cat", 1, 2, 3, 4), ("dog", 5, 6, 7, 8)))
    (tmp_path / "cat/b.xml").write_text(voc(("thing", 5, 6, 7, 8)))
    a, b = read(tmp_path).train
    assert a.boxes_xyxy == ((1, 2, 3, 4),)
    assert b.boxes_xyxy == ((5, 6, 7, 8),)  # other names than the folder's: all boxes count


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("cat/a.jpg,3,2,3,4", "is empty or inverted"),
        ("cat/a.jpg,1,5,3,4", "is empty or inverted"),
        ("cat/a.jpg,-1.5,2,3,4", "starts outside of the photo"),
        ("cat/a.jpg,1,2,nan,4", "is not finite"),
        ("cat/a.jpg,1,2,inf,4", "is not finite"),
        ("cat/a.jpg,1,2,three,4", "is not a box"),
        ("cat/a.jpg,1,2,3", "is not a box"),
        ("cat/none.jpg,1,2,3,4", "there is no photo"),
    ],
)
def test_impossible_boxes_name_file_and_row(tmp_path: Path, row: str, problem: str) -> None:
    touch(tmp_path, "cat/a.jpg")
    (tmp_path / "boxes.csv").write_text(f"path,x0,y0,x1,y1\ncat/a.jpg,-1,0,2,2\n{row}\n")
    with pytest.raises(UserError, match=rf"boxes\.csv row 3: .*{problem}"):
        read(tmp_path)


def test_broken_xml_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "cat/a.jpg")
    (tmp_path / "cat/a.xml").write_text("<annotation><object>")
    with pytest.raises(UserError, match=r"a\.xml is not valid XML"):
        read(tmp_path)
    (tmp_path / "cat/a.xml").write_text("<annotation><object><name>cat</name></object></annotation>")
    with pytest.raises(UserError, match=r"a\.xml: .* is not a box"):
        read(tmp_path)


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no file or folder"):
        read(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no class folders"):
        read(tmp_path)
    touch(tmp_path, "a.jpg")
    with pytest.raises(UserError, match="holds photos but no class folders"):
        read(tmp_path)


def test_empty_class_folder_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "cat/a.jpg", "dog/a.psd")
    with pytest.raises(UserError, match=r"Class 'dog' has no photos: .*1 \.psd cannot be read") as caught:
        read(tmp_path)
    assert "remove the folder" in caught.value.remedy


def test_class_only_in_test_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "train/cat/a.jpg", "test/cat/b.jpg", "test/dgo/c.jpg")
    with pytest.raises(UserError, match="Class 'dgo' has no training photos"):
        read(tmp_path)


def test_test_photos_alone_can_be_read(tmp_path: Path) -> None:
    touch(tmp_path, "test/cat/a.jpg", "test/dog/b.jpg")
    data = read(tmp_path)
    assert (data.train, names(data.test)) == ((), ["a.jpg", "b.jpg"])
    assert "it can be evaluated, not learned" in data.notes[0]


def test_photos_in_deeper_folders(tmp_path: Path) -> None:
    touch(tmp_path, "cat/images/a.jpg", "dog/b.jpg", "dog/2024/c.jpg", "stray.jpg")
    data = read(tmp_path)
    assert [(r.label, r.path.name) for r in data.train] == [("cat", "a.jpg"), ("dog", "c.jpg"), ("dog", "b.jpg")]
    assert "Skipped 1 photo directly in" in data.notes[0]


def test_a_wrapped_data_set_is_not_taken_for_one_class(tmp_path: Path) -> None:
    touch(tmp_path, "my_photos/cat/a.jpg", "my_photos/dog/b.jpg")
    with pytest.raises(UserError, match="holds no photos itself, only folders: cat, dog") as caught:
        read(tmp_path)
    assert str(tmp_path / "my_photos") in caught.value.remedy


def test_links_outside_and_in_circles(tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/a.jpg", "data/dog/b.jpg")
    (tmp_path / "data/cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/round").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/dog/c.jpg").symlink_to(tmp_path / "elsewhere/a.jpg")
    assert names(read(tmp_path / "data").train) == ["a.jpg", "b.jpg", "c.jpg"]


def test_accents_written_in_two_ways_are_one_class(tmp_path: Path) -> None:
    touch(tmp_path, "train/caf\u00e9/a.jpg", "test/cafe\u0301/b.jpg")
    data = read(tmp_path)
    assert data.classes == ("caf\u00e9",)
    assert len(data.test) == 1


def test_unknown_format_names_the_nearest(tmp_path: Path) -> None:
    touch(tmp_path, "cat/a.jpg")
    with pytest.raises(UserError, match="Did you mean 'folders'"):
        read(tmp_path, "folder")
    with pytest.raises(UserError, match="Choose one of: cub"):
        read(tmp_path, "zzz")
    with pytest.raises(UserError, match="classes cannot be -1"):
        read(tmp_path, classes=-1)
    (tmp_path / "photos.zip").write_bytes(b"PK")
    with pytest.raises(UserError, match="Unrecognized dataset format"):
        read(tmp_path / "photos.zip")


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "cat/a.jpg")
    monkeypatch.chdir(tmp_path)
    data = read(".")
    assert data.name == tmp_path.name
    assert data.train[0].path == tmp_path / "cat/a.jpg"
