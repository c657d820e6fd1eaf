"""The data check: what it counts, and that nothing a folder can hold makes it stumble."""

import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image

from fdcnet.data.check import Finding, Report, Spread, check
from fdcnet.data.records import BoxXYXY, Dataset, Record
from fdcnet.data.sources import read


def photo(path: Path, size: tuple[int, int] = (100, 80), shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, shade, shade)).save(path)
    return path


def dataset(train: list[Record], test: list[Record] | None = None) -> Dataset:
    classes = tuple(sorted({record.label for record in [*train, *(test or [])]}))
    return Dataset("tiny", classes, tuple(train), tuple(test or ()))


def find(report: Report, what: str) -> Finding:
    (found,) = [finding for finding in report.findings if finding.what.startswith(what)]
    return found


def boxed(path: Path, *boxes: BoxXYXY) -> Report:
    return check(dataset([Record(path, "cat", boxes)]))


def test_a_clean_set(tmp_path: Path) -> None:
    records = [Record(photo(tmp_path / f"{i}.png", (100 + i, 80), i), "cat") for i in range(3)]
    records.append(Record(photo(tmp_path / "d.png", (300, 200), 9), "dog"))
    tests = [
        Record(photo(tmp_path / f"t{i}.png", shade=50 + i), name, ((0, 0, 9, 9),))
        for i, name in enumerate(("cat", "dog"))
    ]
    report = check(dataset(records, tests))
    assert report.findings == ()
    assert report.ok
    assert (report.train.images, report.train.boxes, report.train.classes) == (4, 0, 2)
    assert report.train.per_class == Spread(1, 2, 3)
    assert (report.test.images, report.test.boxes) == (2, 2)
    assert report.widths == Spread(100, 100.5, 300)  # 100 100 100 101 102 300
    assert report.heights == Spread(80, 80, 200)
    assert report.class_counts == {"cat": (3, 1), "dog": (1, 1)}


def bomb(path: Path, side: int) -> Path:
    """A PNG whose header promises side x side pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )
    return path


@pytest.mark.filterwarnings("error")
def test_unreadable_files_are_named_with_the_reason(tmp_path: Path) -> None:
    whole = photo(tmp_path / "whole.jpg", (400, 400))
    (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[:-500])
    (tmp_path / "text.jpg").write_text("not a photo")
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "dangling.jpg").symlink_to(tmp_path / "nowhere.jpg")
    bomb(tmp_path / "large.png", 10_000)  # Pillow warns
    bomb(tmp_path / "bomb.png", 60_000)  # Pillow refuses
    report = check(dataset([Record(path, "cat") for path in sorted(tmp_path.iterdir())]))
    found = find(report, "Photos that cannot be read: 7")
    assert found.severity == "error"
    assert not report.ok
    reasons = dict(example.removeprefix(f"{tmp_path}/").split(": ", 1) for example in found.examples)
    assert reasons == {
        "bomb.png": "too large: more than 89,478,485 pixels",
        "cut.jpg": "truncated",
        "dangling.jpg": "No such file or directory",
        "empty.jpg": "the file is empty",
        "folder.jpg": "Is a directory",
        "large.png": "too large: 10000 x 10000 pixels",
        "text.jpg": "not an image",
    }


def test_duplicates_by_seriousness(tmp_path: Path) -> None:
    copies = {
        name: photo(tmp_path / f"{name}.png", shade=name[0].encode()[0])
        for name in ("a1", "a2", "b1", "b2", "c1", "c2")
    }
    train = [Record(copies[name], "cat") for name in ("a1", "a2", "b1", "c1")] + [Record(copies["b2"], "dog")]
    report = check(dataset(train, [Record(copies["c2"], "cat")]))
    within, across = find(report, "Photos more than once"), find(report, "Photos in two classes: 1")
    leak = find(report, "Photos both in training and in test: 1")
    assert (within.severity, across.severity, leak.severity) == ("note", "warning", "error")
    assert within.examples == (f"{copies['a1']} = {copies['a2']}",)
    assert across.examples == (f"{copies['b1']} = {copies['b2']}",)
    assert leak.examples == (f"{copies['c1']} = {copies['c2']}",)
    assert report.findings[0] == leak  # the most serious first


def test_a_photo_in_two_classes_and_in_the_test_is_both(tmp_path: Path) -> None:
    copies = [photo(tmp_path / f"{name}.png", shade=7) for name in "abc"]
    train = [Record(copies[0], "cat"), Record(copies[1], "dog")]
    report = check(dataset(train, [Record(copies[2], "cat")]))
    assert (
        find(report, "Photos both in training and in test: 1").examples
        == find(report, "Photos in two classes: 1").examples
    )


def test_boxes_outside_the_photo(tmp_path: Path) -> None:
    path = photo(tmp_path / "a.png", (100, 80))
    report = boxed(path, (0, 0, 101, 81), (0, 0, 102, 80), (5, 5, 50, 82.5), (-1, 0, 10, 10))
    found = find(report, "Boxes that reach out of their photo: 2")
    assert found.severity == "warning"  # published sets have a few
    assert found.examples == (
        f"{path}: 0,0,102,80 in 100 x 80",
        f"{path}: 5,5,50,82.5 in 100 x 80",
    )


def test_boxes_count_in_the_upright_photo(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side
    Image.new("RGB", (100, 80)).save(tmp_path / "a.jpg", exif=exif)
    report = boxed(tmp_path / "a.jpg", (0, 0, 80, 100))
    assert (report.widths.median, report.heights.median) == (80, 100)
    assert not any(finding.what.startswith("Boxes") for finding in report.findings)


def test_boxes_given_as_shares(tmp_path: Path) -> None:
    report = boxed(photo(tmp_path / "a.png"), (0.1, 0.1, 0.9, 0.9))
    assert "not fractions" in find(report, "Boxes less than two pixels wide or high: 1").what_to_do


def test_small_photos(tmp_path: Path) -> None:
    records = [Record(photo(tmp_path / f"{side}.png", (side, 100)), "cat") for side in (63, 64)]
    found = find(check(dataset(records)), "Photos with a side below 64 pixels: 1")
    assert found.examples == (f"{tmp_path / '63.png'}: 63 x 100",)
    assert not [f for f in check(dataset(records), small_side=60).findings if f.what.startswith("Photos with")]


def test_classes_that_lack_something(tmp_path: Path) -> None:
    paths = [photo(tmp_path / f"{i}.png", shade=i) for i in range(5)]
    train = [Record(paths[0], "cat"), Record(paths[1], "dog")]
    test = [Record(paths[2], "cat", ((0, 0, 5, 5),)), Record(paths[3], "emu"), Record(paths[4], "emu")]
    report = check(dataset(train, test))
    assert find(report, "Classes without training photos").examples == ("emu",)
    assert find(report, "Classes without test photos").examples == ("dog",)
    assert find(report, "Classes without boxes on their test photos").examples == ("emu",)
    no_boxes = check(dataset(train, [Record(paths[2], "cat"), Record(paths[3], "dog")]))
    assert [finding.what for finding in no_boxes.findings] == ["No boxes on the test photos"]
    assert [finding.what for finding in check(dataset(train)).findings] == ["No test photos"]


def test_progress_counts_every_photo(tmp_path: Path) -> None:
    records = [Record(photo(tmp_path / f"{i}.png", shade=i), "cat") for i in range(5)]
    seen: list[tuple[int, int]] = []
    check(dataset(records), workers=3, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 5) for i in range(1, 6)]


def test_imagenet_sample_real(shared_data: Path) -> None:
    report = check(read(shared_data / "imagenet100_sample", classes=3))
    assert report.ok
    assert report.num_classes == report.train.classes == report.test.classes == 3
    assert report.widths == report.heights == Spread(256, 256, 256)
    (twice,) = find(report, "Photos more than once in their class: 1").examples
    assert "n01443537_3903" in twice
    assert "n01443537_goldfish" in twice
