"""Draw a line of text in any script. No font has the characters of all scripts, so a line may need several."""

import contextlib
import functools
import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

FOLDERS = (  # of Linux, macOS and Windows
    *("${HOME}/.local/share/fonts", "${HOME}/.fonts", "/usr/local/share/fonts", "/usr/share/fonts"),
    *("${HOME}/Library/Fonts", "/Library/Fonts", "/System/Library/Fonts"),
    *("${LOCALAPPDATA}/Microsoft/Windows/Fonts", "${WINDIR}/Fonts"),
)
BUILT_IN = ""  # Pillow's own font, which has hardly more than ASCII
BOLD = ("DejaVuSans-Bold.ttf", "Arial Bold.ttf", "arialbd.ttf", "NotoSansCJK-Bold.ttc", "msyhbd.ttc", "malgunbd.ttf")
SCRIPTS = (
    *("Arabic", "Armenian", "Bengali", "Devanagari", "Ethiopic", "Georgian", "Gujarati", "Gurmukhi", "Hebrew"),
    *("Kannada", "Khmer", "Lao", "Malayalam", "Myanmar", "Oriya", "Sinhala", "Tamil", "Telugu", "Thai"),
)
FONTS = (
    *("DejaVuSans.ttf", "Arial.ttf", "NotoSans-Regular.ttf"),
    *("NotoSansCJK-Regular.ttc", "NotoSansCJK-VF.ttc", "wqy-microhei.ttc", "wqy-zenhei.ttc"),
    *("NanumGothic.ttf", "DroidSansFallbackFull.ttf", "DroidSansFallback.ttf", "FreeSans.ttf"),
    *("PingFang.ttc", "Hiragino Sans GB.ttc", "AppleSDGothicNeo.ttc", "Arial Unicode.ttf"),
    *("msyh.ttc", "msgothic.ttc", "malgun.ttf", "simsun.ttc", "segoeui.ttf", "Nirmala.ttf", "Nirmala.ttc"),
    *("LeelawUI.ttf", *(f"NotoSans{script}-Regular.ttf" for script in SCRIPTS)),
)
NO_CHARACTER = "\uffff"  # a font draws it like every character that it lacks
TEST_SIZE = 24
HALF_CAPITAL = 0.35  # of the font size: how far the baseline is below the middle of the text

Colour = tuple[int, int, int]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def draw_line(
    draw: ImageDraw.ImageDraw,
    at: tuple[float, float],
    text: str,
    size: int,
    fill: Colour,
    bold: bool = False,
    centred: bool = True,
) -> None:
    """Draw text with its middle at `at`, or, if not `centred`, with the middle of its left side there."""
    x = at[0] - (line_length(text, size, bold) / 2 if centred else 0)
    for piece, font in _pieces(text, size, bold):
        draw.text((x, at[1] + HALF_CAPITAL * size), piece, fill, font, anchor="ls")
        x += font.getlength(piece)


def line_length(text: str, size: int, bold: bool = False) -> float:
    """In pixels."""
    return sum(font.getlength(piece) for piece, font in _pieces(text, size, bold))


def shortened(text: str, size: int, longest: float, bold: bool = False) -> str:
    """Cut the middle out of a text that is too long; its end may be a score."""
    if line_length(text, size, bold) <= longest:
        return text
    for kept in range(len(text) - 1, 0, -1):
        shorter = f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"
        if line_length(shorter, size, bold) <= longest:
            return shorter
    return ""


def _pieces(text: str, size: int, bold: bool) -> list[tuple[str, Font]]:
    """The text with a font that can draw it, in pieces if it takes several fonts."""
    paths = _installed(bold)
    rest = "".join(char if any(_has(path, char) for path in paths) else _in_ascii(char) for char in text)
    pieces = []
    while rest:
        path = _font_for(rest, paths)
        end = max(_num_drawable(path, rest), 1)
        pieces.append((rest[:end], _opened(path, size)))
        rest = rest[end:]
    return pieces


def _in_ascii(character: str) -> str:
    """The letter without its accent, else its number: unlike boxes, it tells class names apart."""
    letters = "".join(part for part in unicodedata.normalize("NFKD", character) if not unicodedata.combining(part))
    return letters if letters.isascii() and letters.isprintable() else ascii(character)[1:-1]


def _font_for(text: str, paths: Sequence[str]) -> str:
    """The first font that can draw all of the text, else the one that can draw most of its beginning."""
    whole = (path for path in paths if _num_drawable(path, text) == len(text))
    return next(whole, None) or max(paths, key=lambda path: _num_drawable(path, text))


def _num_drawable(path: str, text: str) -> int:
    """How many characters at the beginning of the text the font has."""
    return next((i for i, char in enumerate(text) if not _has(path, char)), len(text))


@functools.cache
def _has(path: str, character: str) -> bool:
    with contextlib.suppress(OSError):  # not a font
        return _picture(path, character) != _picture(path, NO_CHARACTER) or character.isspace()
    return False


def _picture(path: str, character: str) -> bytes:
    picture = Image.new("L", (3 * TEST_SIZE, 3 * TEST_SIZE))
    font = _opened(path, TEST_SIZE, ImageFont.Layout.BASIC)  # the other layout hides some characters that are missing
    ImageDraw.Draw(picture).text((TEST_SIZE, TEST_SIZE), character, 255, font)
    return picture.tobytes()


@functools.cache
def _opened(path: str, size: int, layout: ImageFont.Layout | None = None) -> Font:
    return ImageFont.truetype(path, size, layout_engine=layout) if path else ImageFont.load_default(size)


@functools.cache
def _installed(bold: bool) -> tuple[str, ...]:
    """Paths of the known fonts, the preferred one first."""
    files = {BUILT_IN: BUILT_IN} | _font_files()
    names = (*BOLD, BUILT_IN, *FONTS) if bold else (BUILT_IN, *FONTS)
    return tuple(files[name.lower()] for name in names if name.lower() in files)


@functools.cache
def _font_files() -> dict[str, str]:
    """Paths of all fonts, by name in lower case. There may be thousands."""
    found: dict[str, str] = {}
    for folder in FOLDERS:
        for root, _, names in os.walk(os.path.expandvars(folder)):
            for name in names:
                found.setdefault(name.lower(), str(Path(root, name)))
    return found
