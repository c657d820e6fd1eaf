"""Text in scripts that few fonts have. Tests do not depend on the fonts of this machine."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from fdcnet.inference import fonts
from fdcnet.inference.drawing import draw_label
from fdcnet.inference.fonts import BUILT_IN, draw_line, line_length, shortened


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only folder with fonts. It is empty."""
    caches = (fonts._font_files, fonts._installed)
    monkeypatch.setattr(fonts, "FOLDERS", (str(tmp_path / "fonts"), "${NO_SUCH_VARIABLE}/fonts"))
    for cache in caches:
        cache.cache_clear()
    yield tmp_path / "fonts"
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def two_fonts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Fonts by their characters; the first is preferred."""
    characters = {"latin": "abc …87%", "han": " 翠鸟…", "kana": "カワ 翠c"}
    monkeypatch.setattr(fonts, "_installed", lambda bold: tuple(characters))
    monkeypatch.setattr(fonts, "_has", lambda path, character: character in characters[path])
    monkeypatch.setattr(fonts, "_opened", lambda path, size: path)
    return characters


def label(text: str) -> bytes:
    photo = Image.new("RGB", (300, 300))
    draw_label(photo, text, (10, 40))
    return photo.tobytes()


def pieces(text: str) -> list[tuple[str, object]]:
    return list(fonts._pieces(text, 20, False))


def test_a_text_has_a_single_font_if_possible(two_fonts: dict[str, str]) -> None:
    assert pieces("abc 87%") == [("abc 87%", "latin")]
    assert pieces("翠鸟 鸟") == [("翠鸟 鸟", "han")]
    assert pieces("カワ c翠") == [("カワ c翠", "kana")]
    assert pieces("") == []


def test_fonts_complement_each_other(two_fonts: dict[str, str]) -> None:
    assert pieces("翠鸟  87%") == [("翠鸟  ", "han"), ("87%", "latin")]
    assert pieces("abc カワ鸟") == [("abc ", "latin"), ("カワ", "kana"), ("鸟", "han")]


def test_characters_of_no_font_are_written_in_ascii(folder: Path) -> None:
    assert label("翠鸟  87%") == label("\\u7fe0\\u9e1f  87%")
    assert label("翠鸟") != label("翠鸭")
    assert label("Grünspecht") == label("Gru\u0308nspecht") == label("Grunspecht")
    assert label("Spieß \U0001f426") == label("Spie\\xdf \\U0001f426")
    assert label("a\x01b") == label("a\\x01b")


def test_long_texts_are_cut_in_the_middle(folder: Path) -> None:
    assert shortened("翠鸟  87%", 20, 500) == "翠鸟  87%"
    short = shortened("翠" * 40 + "  87%", 20, 500)
    assert short.startswith("翠翠") and "…" in short and short.endswith("翠  87%")
    assert line_length(short, 20) <= 500 < line_length(short.replace("…", "翠…"), 20)
    assert shortened("翠", 20, 1) == ""


def test_the_built_in_font_knows_what_it_lacks() -> None:
    assert all(fonts._has(BUILT_IN, character) for character in "aZ09%…\\ ")
    assert not any(fonts._has(BUILT_IN, character) for character in "é鸟ワ물\u200d\U0001f426\uffff")


def test_fonts_are_found_in_folders_of_any_depth(folder: Path) -> None:
    built_in = ImageFont.load_default(20)
    assert isinstance(built_in, ImageFont.FreeTypeFont) and isinstance(built_in.path, io.BytesIO)
    file = folder / "truetype" / "dejavu" / "dejavusans.TTF"
    file.parent.mkdir(parents=True)
    file.write_bytes(built_in.path.getvalue())
    assert fonts._installed(bold=False) == (BUILT_IN, str(file))
    assert fonts._has(str(file), "a") and not fonts._has(str(file), "鸟")


def test_a_damaged_font_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = label("Kingfisher 鸟")
    folder.mkdir()
    (folder / "damaged.ttf").write_bytes(b"not a font")
    monkeypatch.setattr(fonts, "_installed", lambda bold: (str(folder / "damaged.ttf"), BUILT_IN))
    assert label("Kingfisher 鸟") == expected


def test_a_line_is_centred_or_begins_at_its_place(folder: Path) -> None:
    boxes = []
    for centred in (True, False):
        picture = Image.new("RGB", (400, 100))
        draw_line(ImageDraw.Draw(picture), (200, 50), "HHH", 40, (255, 255, 255), centred=centred)
        boxes.append(picture.getbbox() or (0, 0, 0, 0))
    left, top, right, bottom = boxes[0]
    assert abs((left + right) / 2 - 200) <= 2 and abs((top + bottom) / 2 - 50) <= 2
    assert 200 <= boxes[1][0] <= 206 and boxes[1][1::2] == (top, bottom)
