"""A table `path,label[,x0,y0,x1,y1][,split]`. Paths are relative to the table; a row per box."""

from pathlib import Path

from fdcnet.data.records import BoxXYXY, Dataset, Record
from fdcnet.data.sources.boxes import COLUMNS, make_box
from fdcnet.data.sources.files import FileIndex, class_name, files_named, natural_key, set_name
from fdcnet.data.sources.splits import Split, assemble, split_of
from fdcnet.data.sources.tables import header, rows
from fdcnet.errors import UserError

_NEEDED = ("path", "label")


def recognises(root: Path) -> bool:
    return root.suffix.lower() == ".csv" if root.is_file() else bool(_tables(root))


def read(root: Path, limit: int) -> Dataset:
    table = root if root.is_file() else _only_table(root)
    columns = header(table)
    given = [column for column in COLUMNS if column in columns]
    if given and len(given) < 4:
        raise UserError(
            f"{table} has only the box columns {', '.join(given)}.", f"Give all of {', '.join(COLUMNS)}, or none."
        )

    photos: dict[Path, tuple[str, Split]] = {}
    boxes: dict[Path, list[BoxXYXY]] = {}
    exists = FileIndex()
    for number, row in rows(table, _NEEDED):
        where = f"{table} row {number}"
        path = table.parent / row["path"].replace("\\", "/")
        photo = (_label(row, where), _split(row, where))
        if photos.setdefault(path, photo) != photo:
            raise UserError(
                f"{where}: {row['path']} has another label or split above.", "Give each photo one label and one split."
            )
        if path not in boxes and path not in exists:
            raise UserError(f"{where}: there is no photo {path}.", f"Paths are relative to {table.parent}.")
        corners = [row[column] for column in given]
        boxes.setdefault(path, []).extend([make_box(corners, where)] if any(corners) else [])

    splits: dict[Split, list[Record]] = {"train": [], "val": [], "test": []}
    for path, (label, split) in photos.items():
        splits[split].append(Record(path, label, tuple(boxes[path])))
    classes = sorted({label for label, _ in photos.values()}, key=natural_key)
    return assemble(set_name(root), classes, splits, limit)


def _label(row: dict[str, str], where: str) -> str:
    if not row["path"] or not row["label"]:
        raise UserError(f"{where} lacks a path or a label.", "Fill it in, or delete the row.")
    return class_name(row["label"])


def _split(row: dict[str, str], where: str) -> Split:
    value = row.get("split", "")
    split = split_of(value) if value else "train"
    if split is None:
        raise UserError(f"{where}: there is no split '{value}'.", "Write train, val or test.")
    return split


def _tables(root: Path) -> list[Path]:
    return [file for file in files_named(root, ".csv") if set(_NEEDED) <= set(header(file))]


def _only_table(root: Path) -> Path:
    tables = _tables(root)
    if not tables:
        raise UserError(
            f"{root} holds no .csv with the columns path and label.", "Write one, or name it if it lies elsewhere."
        )
    if len(tables) > 1:
        names = ", ".join(table.name for table in tables)
        raise UserError(
            f"{root} holds several lists of photos: {names}.",
            "Name the one to use; a column 'split' separates test photos.",
        )
    return tables[0]
