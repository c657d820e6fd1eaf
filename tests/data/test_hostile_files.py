"""Files that are damaged or made to harm: each must end in a short message, soon, and without much memory."""

import io
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fdcnet.config import load
from fdcnet.data.check import check
from fdcnet.data.decode import BadImage, decode, readable_formats
from fdcnet.data.inputs import find_photos
from fdcnet.data.sources import read
from fdcnet.data.sources.files import IMAGE_SUFFIXES, natural_key
from fdcnet.errors import UserError, out_of_memory, printable


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + kind + content + checksum

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(1, 80_000_000), (80_000_000, 1), (20_000, 20_000)])
def test_very_large_pictures_are_refused_before_they_are_decoded(size: tuple[int, int]) -> None:
    with pytest.raises(BadImage, match="too large"):
        decode(png_header(*size), 64)


def test_a_tiff_of_a_few_bytes_cannot_hold_a_huge_picture() -> None:
    buffer = io.BytesIO()
    Image.new("1", (9000, 9000)).save(buffer, "TIFF", compression="group4")
    assert len(buffer.getvalue()) < 9000 * 9000 / 1000
    with pytest.raises(BadImage, match="too large: 9000 x 9000 pixels in a file of"):
        decode(buffer.getvalue(), 64)


def test_pipes_are_neither_listed_nor_opened(tmp_path: Path) -> None:
    for number, name in enumerate(("a/photo.jpg", "b/x.jpg")):
        (tmp_path / name).parent.mkdir()
        Image.new("RGB", (80, 80), (50 * number, 0, 0)).save(tmp_path / name)
    for name in ("a/pipe.jpg", "list.csv", "boxes.csv", "images.json", "data.yaml", "a/photo.xml"):
        os.mkfifo(tmp_path / name)
    dataset = read(tmp_path)
    assert [record.path.name for record in dataset.train] == ["photo.jpg", "x.jpg"]
    assert check(dataset).ok
    with pytest.raises(BadImage, match="not a regular file"):
        decode(tmp_path / "a/pipe.jpg", 64)
    with pytest.raises(UserError, match="There is no photo"):
        list(find_photos([str(tmp_path / "a/pipe.jpg")], io.BytesIO()))


@pytest.mark.parametrize(
    "text",
    [
        b"<?xml version='1.0' encoding='klingon'?><annotation/>",
        b"<?xml version='1.0' encoding='utf-8'?><a>\xff</a>",
        b"<?xml version='1.0' encoding='utf-7'?><a/>",
        b"\xff\xfe<\x00",
        b"",
    ],
)
def test_voc_in_any_encoding(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (80, 80)).save(tmp_path / "cat/a.jpg")
    (tmp_path / "cat/a.xml").write_bytes(text)
    with pytest.raises(UserError, match="is not valid XML"):
        read(tmp_path)


def test_lists_that_are_not_utf8_or_have_endless_numbers(tmp_path: Path) -> None:
    names = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "bounding_boxes.txt", "classes.txt")
    (tmp_path / "cub").mkdir()
    for content, problem in ((b"1 \xff.jpg\n", "not UTF-8"), (b"9" * 5000 + b" a\n", "is not an id")):
        for name in names:
            (tmp_path / "cub" / name).write_bytes(content)
        with pytest.raises(UserError, match=problem):
            read(tmp_path / "cub")
    (tmp_path / "wsol/train").mkdir(parents=True)
    for content, problem in ((b"\xff.jpg,1\n", "not UTF-8"), (b"a.jpg," + b"9" * 5000, "is not 'path,number'")):
        for name in ("image_ids.txt", "class_labels.txt"):
            (tmp_path / "wsol/train" / name).write_bytes(content)
        with pytest.raises(UserError, match=problem):
            read(tmp_path / "wsol")
    assert natural_key("class" + "9" * 5000) > natural_key("class10")


@pytest.mark.parametrize(
    "setting",
    ["seed=2001-99-99", "seed=!!int ''", f"train.optim.lr={'9' * 400}", f"seed={'[' * 3000}", "seed=*a", "x\0.y=1"],
    ids=["date", "int", "digits", "nested", "alias", "null"],
)
def test_odd_settings_are_refused(setting: str) -> None:
    with pytest.raises(UserError) as error:
        load(None, [setting])
    assert len(str(error.value)) < 400


def test_a_recipe_of_a_few_lines_cannot_fill_the_memory(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    with pytest.raises(UserError, match="more than 20 aliases"):
        load(tmp_path / "bomb.yaml")


@pytest.mark.parametrize("text", ["seed: " + "[" * 10_000, "- " * 10_000, "# " + "x" * 2**20])
def test_a_recipe_that_would_take_minutes_to_read_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "deep.yaml").write_text(text)
    with pytest.raises(UserError, match=r"nested more than 50 deep|more than 1,048,576 characters"):
        load(tmp_path / "deep.yaml")


def test_messages_do_not_quote_whole_files() -> None:
    error = UserError(f"a.txt row 1: there is no class '{'9' * 5000}'.", "data.yaml lists the classes.")
    assert len(str(error)) < 2100 and error.problem.startswith("a.txt row 1") and error.problem.endswith("9'.")


def test_names_cannot_send_commands_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    from fdcnet.cli.console import console, errors

    evil = "a\x1b]0;title\x07\x1b[2J\u202e\x9b.jpg"
    assert printable(evil) == r"a\x1b]0;title\x07\x1b[2J\u202e\x9b.jpg"
    assert printable("Bär 猫 \u200d\n\t") == "Bär 猫 \u200d\n\t"
    table = Table(evil)
    table.add_row(evil)
    for output in (console, errors):
        output.print(evil, markup=False)
        output.print(table)
    for text in capsys.readouterr():
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text) and "title" in text


def test_shortage_is_told_from_damage() -> None:
    shortages = (
        MemoryError(),
        RuntimeError("can't start new thread"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        OSError(12, "Cannot allocate memory"),
    )
    for error in shortages:
        found = out_of_memory(error, "training")
        assert found is not None and "lower train.batch_size" in found.remedy
    on_gpu = out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "training")
    assert on_gpu is not None and on_gpu.problem == "Out of GPU memory while training."
    assert "lower train.batch_size" in on_gpu.remedy and "--device cpu" in on_gpu.remedy
    assert out_of_memory(RuntimeError("size mismatch"), "training") is None


@pytest.mark.parametrize("suffix", [".jpe", ".jfif", ".mpo", ".avif", ".heic", ".JPG"])
def test_every_kind_of_photo_is_read_everywhere(suffix: str, tmp_path: Path) -> None:
    name = {".mpo": "MPO", ".avif": "AVIF", ".heic": "HEIF"}.get(suffix, "JPEG")
    if name in ("AVIF", "HEIF") and name not in readable_formats():
        pytest.skip(f"{name} is optional: pip install 'fdcnet[heic]'")
    (tmp_path / "cat").mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (80, 90, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "cat" / f"a{suffix}", name)
    dataset = read(tmp_path)
    assert len(dataset.train) == 1 and suffix.lower() in IMAGE_SUFFIXES
    assert check(dataset).widths.minimum == 90
    (photo,) = find_photos([str(tmp_path)], io.BytesIO())
    assert photo.decode(64)[1] == (90, 80)
