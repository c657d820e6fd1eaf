"""The per-image table of one evaluation: all that the metrics need, on disk as CSV."""

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fdcnet.errors import UserError
from fdcnet.files import write_bytes

Floats = NDArray[np.float32]
Texts = dict[bytes, list[str]]
Ints = NDArray[np.int64]

TOP = ("top1", "top2", "top3", "top4", "top5")
BOX = ("x0", "y0", "x1", "y1")
TRUE_BOX = tuple(f"true_{name}" for name in BOX)
LEVEL = 6  # of compression: level 9 takes three times as long for 1 % less


@dataclass(frozen=True, eq=False)
class Table:
    """One row per photo. Overlaps are the best over its true boxes, and nan where it has none."""

    path: tuple[str, ...]
    label: Ints  # (N,)
    rank: Ints  # (N,) place of the true class among the predicted ones; 0: the best
    top5: Ints  # (N, 5) best first; -1 where there are fewer classes
    p_true: Floats  # (N,)
    p_top1: Floats  # (N,)
    box: Floats  # (N, 4) at the protocol's threshold, in pixels of its frame
    iou: Floats  # (N,) of that box
    num_boxes: Ints  # (N,) true boxes
    thresholds: tuple[float, ...]  # ascending
    iou_largest: Floats  # (N, T) the largest region at each threshold
    iou_any: Floats  # (N, T) the best region at each threshold
    true_box: Floats | None = None  # (N, 4) the true box that `box` overlaps most; None in tables of earlier versions
    maps: dict[int, NDArray[np.float16]] = field(default_factory=dict)  # row -> normalised map; not saved

    def __len__(self) -> int:
        return len(self.path)

    def select(self, rows: NDArray[np.bool_]) -> "Table":
        """The table of the rows where `rows` (N,) is true, without maps."""
        columns = {name: array[rows] for name in _ARRAYS if (array := getattr(self, name)) is not None}
        path = tuple(self.path[row] for row in np.flatnonzero(rows))  # `by_class` selects each class of many
        return Table(path=path, thresholds=self.thresholds, **columns)

    @classmethod
    def joined(cls, parts: Sequence["Table"]) -> "Table":
        """The parts of one evaluation, in order."""
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
        maps: dict[int, NDArray[np.float16]] = {}
        start = 0
        for part in parts:
            maps |= {start + row: own for row, own in part.maps.items()}
            start += len(part)
        path = tuple(path for part in parts for path in part.path)
        return cls(path=path, thresholds=parts[0].thresholds, maps=maps, **columns)

    def save(self, path: Path) -> None:
        """Write a .csv.gz whose bytes depend on the table alone; a reader never sees half a file."""
        write_compressed(path, self.as_csv())

    def as_csv(self, texts: "Texts | None" = None) -> bytes:
        """`texts` remembers columns for the next table: the protocols of a run share most of them."""
        columns = _columns(self, {} if texts is None else texts)
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        return text.getvalue().encode("utf-8", "surrogateescape")

    @classmethod
    def load(cls, path: Path) -> Self:
        try:
            text = gzip.decompress(path.read_bytes()).decode("utf-8", "surrogateescape")
            header, *rows = csv.reader(io.StringIO(text, newline=""))
            values = {name: [row[i] for row in rows] for i, name in enumerate(header)}
            names = [name.removeprefix("iou@") for name in header if name.startswith("iou@")]
            return cls(
                path=tuple(values["path"]),
                label=_ints(values, ["label"])[:, 0],
                rank=_ints(values, ["rank"])[:, 0],
                top5=_ints(values, TOP),
                p_true=_floats(values, ["p_true"])[:, 0],
                p_top1=_floats(values, ["p_top1"])[:, 0],
                box=_floats(values, BOX),
                iou=_floats(values, ["iou"])[:, 0],
                num_boxes=_ints(values, ["num_boxes"])[:, 0],
                thresholds=tuple(map(float, names)),
                iou_largest=_floats(values, [f"iou@{name}" for name in names]),
                iou_any=_floats(values, [f"any@{name}" for name in names]),
                true_box=_floats(values, TRUE_BOX) if TRUE_BOX[0] in values else None,
            )
        except (OSError, EOFError, zlib.error, KeyError, ValueError, IndexError) as error:
            raise UserError(
                f"{path} is not a table of predictions: {error}", "Name a .csv.gz file of a run."
            ) from error


def write_compressed(path: Path, text: bytes) -> None:
    write_bytes(path, gzip.compress(text, LEVEL, mtime=0))


_ARRAYS = ("label", "rank", "top5", "p_true", "p_top1", "box", "iou", "num_boxes", "iou_largest", "iou_any", "true_box")


def _columns(table: Table, texts: Texts) -> dict[str, Iterable[Any]]:
    def text(values: Floats) -> list[str]:
        values = values.astype(np.float32)
        key = values.tobytes()
        if key not in texts:
            texts[key] = _text(values)
        return texts[key]

    columns: dict[str, Iterable[Any]] = {"path": table.path, "label": table.label, "rank": table.rank}
    columns |= zip(TOP, table.top5.T, strict=True)
    columns |= {"p_true": text(table.p_true), "p_top1": text(table.p_top1)}
    columns |= zip(BOX, map(text, table.box.T), strict=True)
    columns |= {"iou": text(table.iou), "num_boxes": table.num_boxes}
    if table.true_box is not None:
        columns |= zip(TRUE_BOX, map(text, table.true_box.T), strict=True)
    for prefix, sweep in (("iou", table.iou_largest), ("any", table.iou_any)):
        columns |= {f"{prefix}@{t!r}": text(sweep[:, i]) for i, t in enumerate(table.thresholds)}
    return columns


def _text(values: Floats) -> list[str]:
    """The shortest text that reads back as the same float32; an empty cell for nan."""
    return ["" if text == "nan" else text for text in values.astype(str)]


def _floats(values: dict[str, list[str]], names: Iterable[str]) -> Floats:
    columns = [[cell or "nan" for cell in values[name]] for name in names]
    return np.array(columns, dtype=np.float32).reshape(len(columns), len(values["path"])).T


def _ints(values: dict[str, list[str]], names: Iterable[str]) -> Ints:
    columns = [[int(cell) for cell in values[name]] for name in names]
    return np.array(columns, dtype=np.int64).reshape(len(columns), len(values["path"])).T
