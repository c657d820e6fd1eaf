"""`fdcnet predict`, `fdcnet label` and `fdcnet export`, run as commands."""

import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from fdcnet import Localizer, Prediction
from fdcnet.cli.predict import write_predictions
from fdcnet.inference.writers import CsvWriter, JsonWriter


def fdcnet(*arguments: str | Path, cwd: Path, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fdcnet", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "FORCE_COLOR": ""}
    done = subprocess.run(command, cwd=cwd, input=stdin, env=environment, capture_output=True, timeout=120, check=False)
    text = (done.stdout.decode(), done.stderr.decode())
    assert "Traceback" not in text[1], text[1]
    return subprocess.CompletedProcess(command, done.returncode, *text)


@pytest.fixture
def model(taught: Path) -> Path:
    return taught / "run" / "model"


@pytest.fixture
def damaged(taught: Path, tmp_path: Path) -> Path:
    """A folder with one good photo among bad ones."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    good = next((taught / "photos" / "test").rglob("*.jpg")).read_bytes()
    (folder / "good.jpg").write_bytes(good)
    (folder / "text.jpg").write_text("not a photo")
    (folder / "empty.png").write_bytes(b"")
    (folder / "cut.jpg").write_bytes(good[: len(good) // 2])
    (folder / "phone.HEIC").write_bytes(b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic")
    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    (folder / "bomb.png").write_bytes(bomb + b"\x00\x00\x00\x00IDAT" + struct.pack(">I", zlib.crc32(b"IDAT")))
    return folder


def test_everything_at_once(model: Path, taught: Path, tmp_path: Path) -> None:
    outputs = ("--save", "seen", "--json", "all.json", "--csv", "all.csv", "--coco", "coco.json", "--yolo", "yolo")
    done = fdcnet("predict", model, taught / "photos" / "test", *outputs, "--labelstudio", "ls.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    assert "%  [" in lines[0]
    answers = json.loads((tmp_path / "all.json").read_text())
    localizer = Localizer.load(model, device="cpu")
    for answer in answers:
        assert answer["class"] == localizer.predict(answer["source"]).class_name
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 9
    assert len(json.loads((tmp_path / "coco.json").read_text())["annotations"]) == 8
    assert len(json.loads((tmp_path / "ls.json").read_text())) == 8
    names = {path.relative_to(taught / "photos" / "test") for path in (taught / "photos" / "test").rglob("*.jpg")}
    assert {path.relative_to(tmp_path / "seen") for path in (tmp_path / "seen").rglob("*.jpg")} == names
    for name in names:
        assert (tmp_path / "yolo" / "labels" / name.with_suffix(".txt")).is_file()
    written = {"seen", "all.json", "all.csv", "coco.json", "yolo", "ls.json", "ls.xml"}
    assert {path.name for path in tmp_path.iterdir()} == written


def test_bad_photos_are_listed_and_skipped(model: Path, damaged: Path, tmp_path: Path) -> None:
    done = fdcnet("predict", model, "mixed", "--json", "-", cwd=tmp_path)
    assert done.returncode == 1
    [answer] = map(json.loads, done.stdout.splitlines())
    assert answer["source"] == "mixed/good.jpg"
    for line in (
        *("mixed/text.jpg: not an image", "mixed/empty.png: not an image", "mixed/cut.jpg: truncated"),
        *(
            "Skipped mixed/phone.HEIC: ",
            "mixed/bomb.png: too large",
            "5 of 6 photos could not be read",
        ),
    ):
        assert line in done.stderr
    done = fdcnet("predict", model, "mixed/text.jpg", "--json", "out.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "No photo could be read" in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_a_jpeg_with_another_name_does_not_lose_the_answers(model: Path, taught: Path, tmp_path: Path) -> None:
    photos = tmp_path / "phone"
    photos.mkdir()
    for name, file in zip(("IMG_0042.HEIC", "b.JPG"), (taught / "photos" / "test").rglob("*.jpg"), strict=False):
        shutil.copy(file, photos / name)
    done = fdcnet("predict", model, "phone", "--save", "seen", "--json", "answers.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [Path(answer["source"]).name for answer in json.loads((tmp_path / "answers.json").read_text())] == [
        *("IMG_0042.HEIC", "b.JPG")
    ]
    assert sorted(file.name for file in (tmp_path / "seen").iterdir()) == ["IMG_0042.HEIC.jpg", "b.JPG"]
    assert {Image.open(file).format for file in (tmp_path / "seen").iterdir()} == {"JPEG"}


def test_files_hold_what_was_done_before_a_stop(
    model: Path, taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    localizer = Localizer.load(model, device="cpu")
    photos = sorted((taught / "photos" / "test").rglob("*.jpg"))
    json_file, csv_file, lines = (tmp_path / name for name in ("a.json", "a.csv", "a.jsonl"))

    def stopped() -> Iterator[Prediction]:
        yield from localizer.predict(photos[:2])
        assert len(lines.read_text().splitlines()) == 2 and not json_file.exists()
        raise KeyboardInterrupt

    writers = [JsonWriter(json_file, localizer.classes), CsvWriter(csv_file, localizer.classes)]
    with pytest.raises(KeyboardInterrupt):
        write_predictions(stopped(), [*writers, JsonWriter(lines, localizer.classes)], quiet=True)
    assert [answer["source"] for answer in json.loads(json_file.read_text())] == [str(photo) for photo in photos[:2]]
    assert len(csv_file.read_text().splitlines()) == 3
    assert "The files hold the photos done so far." in capsys.readouterr().err


def test_photos_with_one_yolo_name_do_not_affect_other_files(model: Path, damaged: Path, tmp_path: Path) -> None:
    same = tmp_path / "same"
    same.mkdir()
    for name in ("a.jpeg", "a.jpg"):
        (same / name).write_bytes((damaged / "good.jpg").read_bytes())
    done = fdcnet("predict", model, "same", "--json", "all.json", "--yolo", "yolo", cwd=tmp_path)
    assert done.returncode == 1
    assert "Skipped: no YOLO labels for a.jpg: a.jpeg has the same label file, a.txt" in done.stderr
    assert len(json.loads((tmp_path / "all.json").read_text())) == 2


@pytest.mark.parametrize("to_stdout", [(), ("--json", "-"), ("--coco", "-")])
def test_files_are_completed_when_stdout_is_closed(
    to_stdout: tuple[str, ...], model: Path, taught: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "fdcnet", "predict", str(model), str(taught / "photos" / "test"), *to_stdout]
    process = subprocess.Popen(
        [*command, "--csv", "all.csv"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout and process.stderr
    process.stdout.close()  # before the first line is there
    said = process.stderr.read().decode()
    assert process.wait(120) == 0, said
    assert said == "Wrote all.csv\n"
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 9


def test_without_files_it_stops_when_stdout_is_closed(model: Path, taught: Path, tmp_path: Path) -> None:
    photos = [str(taught / "photos" / "test")] * 20
    command = [sys.executable, "-m", "fdcnet", "predict", str(model), *photos]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(120) == 0


def test_standard_input(model: Path, taught: Path, tmp_path: Path) -> None:
    photo = next((taught / "photos" / "test").rglob("*.jpg"))
    done = fdcnet("predict", model, "-", "--csv", "-", cwd=tmp_path, stdin=photo.read_bytes())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("stdin.jpg,40,40,")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing.jpg",), "There is no photo, folder or video nothing.jpg"),
        (("empty",), "There are no photos in empty"),
        (("*.gif",), "No file matches"),
        (("a.png", "--class", "sparrow"), "does not know the class 'sparrow'"),
        (("a.png", "--threshold", "7"), "threshold must be from 0 to 1, not 7"),
        (("a.png", "--json", "-", "--csv", "-"), "Only one output can go to standard output"),
        (("a.png", "--json", "empty"), "empty is a folder"),
        (("a.png", "--save", "a.png"), "a.png is a file"),
    ],
)
def test_wrong_input(arguments: tuple[str, ...], message: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    done = fdcnet("predict", model, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "a.png"}


def test_unusual_file_names(model: Path, tmp_path: Path) -> None:
    for name in ("a b:é [1].jpg", os.fsdecode(b"\xff.jpg"), "x" * 240 + ".jpg"):
        Image.new("RGB", (40, 40)).save(tmp_path / name)
    outputs = (
        "--json",
        "-",
        "--coco",
        "c/c.json",
        "--labelstudio",
        "l/l.json",
        "--yolo",
        "y",
        "--voc",
        "v",
        "--save",
        "s",
    )
    done = fdcnet("predict", model, ".", *outputs, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["source"] for line in done.stdout.splitlines()} == {
        path.name for path in tmp_path.glob("*.jpg")
    }
    assert len(json.loads((tmp_path / "c" / "c.json").read_text())["images"]) == 3
    assert "%FF.jpg" in (tmp_path / "l" / "l.json").read_text()
    assert len(list((tmp_path / "s").iterdir())) == 3


def test_none_of_these(model: Path, tmp_path: Path) -> None:
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    done = fdcnet("predict", model, "a.png", "--min-score", "1", "--save", "seen", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("a.png: none of these (best: ")
    assert (tmp_path / "seen" / "a.png").is_file()


def test_label(model: Path, taught: Path, tmp_path: Path) -> None:
    photos = taught / "photos" / "test"
    done = fdcnet("label", photos, "--out", "boxes", "--model", model, "--yolo", "--csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "8 boxes on 8 photos, 0 reviewed" in done.stdout
    assert done.stdout.splitlines()[-3:] == ["Wrote boxes/index.html", "Wrote boxes/yolo", "Wrote boxes/boxes.csv"]
    assert {path.name for path in (tmp_path / "boxes").iterdir()} == {"index.html", "yolo", "boxes.csv", "labels.json"}
    wrong = fdcnet("label", photos / "ringed disc", "--out", "new", "--model", model, cwd=tmp_path)
    assert wrong.returncode == 2 and "holds photos but no class folders" in wrong.stderr
    assert not (tmp_path / "new").exists()


def test_export(model: Path, tmp_path: Path) -> None:
    done = fdcnet("export", model, "--onnx", "model.onnx", "--no-memory", "shared", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Checked on 8 photos from its memory: scores differ from PyTorch's by at most" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "shared"}
    assert fdcnet("export", model, cwd=tmp_path).returncode == 2
    again = fdcnet("export", model, "--no-memory", "shared", cwd=tmp_path)
    assert again.returncode == 2
    assert "shared already exists" in again.stderr
