"""Text files: lines, and tables with a header line as spreadsheets write them."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from fdcnet.errors import UserError


def text_lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text.", "Save it in UTF-8.") from error


def is_number(text: str) -> bool:
    """A whole number of usual length: int() refuses thousands of digits, and other scripts' digits."""
    return text.isascii() and text.isdigit() and len(text) < 19


def header(file: Path) -> list[str]:
    """Column names in lower case; empty if the file is not a text table."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            first = stream.readline(65536)
    except UnicodeDecodeError:
        return []
    return _columns(first)


def rows(file: Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Row number (the header is row 1) and values by column name."""
    columns = header(file)
    missing = [column for column in needed if column not in columns]
    if missing:
        raise UserError(
            f"{file} has no column {', '.join(missing)}.",
            f"Its first line must name the columns ({', '.join(needed)}); the file must be UTF-8 text.",
        )
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, delimiter=_delimiter(stream.readline()))
            for values in reader:
                if any(value.strip() for value in values):
                    padded = [value.strip() for value in values] + [""] * (len(columns) - len(values))
                    yield reader.line_num + 1, dict(zip(columns, padded, strict=False))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read as a table: {error}.", "Save it as CSV in UTF-8.") from error


def _columns(line: str) -> list[str]:
    return [name.strip().strip('"').strip().lower() for name in line.split(_delimiter(line))]


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)  # spreadsheets in much of Europe write ';'
