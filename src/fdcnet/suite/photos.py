"""What a run said about every test photo after every task, small enough to keep beside its results.

One CSV row per photo and task. Protocols that share their classes or boxes share a column.
"""

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdcnet.errors import UserError
from fdcnet.evaluation.table import Table
from fdcnet.files import write_bytes

FILE = "photos.csv.gz"
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class PhotoResults:
    task: Ints  # (N,) after which task, counted from 1
    path: tuple[str, ...]  # (N,)
    label: Ints  # (N,)
    columns: Mapping[str, Ints]  # `rank ...`: 0 is best. `iou ...`: percent, rounded up; -1 without a true box

    def save(self, path: Path) -> None:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["task", "path", "label", *self.columns])
        writer.writerows(zip(self.task, self.path, self.label, *self.columns.values(), strict=True))
        write_bytes(path, gzip.compress(text.getvalue().encode("utf-8", "surrogateescape"), 9, mtime=0))

    @classmethod
    def load(cls, path: Path) -> "PhotoResults":
        try:
            text = gzip.decompress(path.read_bytes()).decode("utf-8", "surrogateescape")
            header, *rows = csv.reader(io.StringIO(text, newline=""))
            columns = dict(zip(header, zip(*rows, strict=True), strict=True))
            task, paths, label = (columns.pop(name) for name in ("task", "path", "label"))
        except (OSError, EOFError, ValueError, KeyError) as error:
            raise UserError(f"{path} is not a table of photos: {error}", "Restore the file.") from error
        numbers = {name: np.array(values, dtype=np.int64) for name, values in columns.items()}
        return cls(np.array(task, dtype=np.int64), paths, np.array(label, dtype=np.int64), numbers)

    def select(self, rows: Bools) -> "PhotoResults":
        paths = tuple(path for path, wanted in zip(self.path, rows, strict=True) if wanted)
        return PhotoResults(self.task[rows], paths, self.label[rows], {k: v[rows] for k, v in self.columns.items()})


def collect(tables: Mapping[str, Sequence[Table]]) -> tuple[PhotoResults, dict[str, dict[str, str]]]:
    """The photos of all protocols, from the tables after each task, and the columns that each protocol reads."""
    first = next(iter(tables.values()))
    columns: dict[str, Ints] = {}
    used: dict[str, dict[str, str]] = {}
    for name, own in tables.items():
        rank = np.concatenate([table.rank for table in own])
        iou = np.concatenate([_percent(table.iou) for table in own])
        used[name] = {"rank": _column(columns, f"rank {name}", rank), "iou": _column(columns, f"iou {name}", iou)}
    task = np.repeat(np.arange(1, len(first) + 1), [len(table) for table in first])
    paths = tuple(path for table in first for path in table.path)
    return PhotoResults(task, paths, np.concatenate([table.label for table in first]), columns), used


def right(photos: PhotoResults, columns: Mapping[str, str], metric: str, iou: float = 0.5) -> Bools:
    """Whether each photo counts as right. Exact for overlaps of whole percent, because they are rounded up."""
    found = photos.columns[columns["iou"]] > round(100 * iou)
    named = photos.columns[columns["rank"]] < (5 if metric.startswith("top5") else 1)
    return {"loc": found & named, "cls": named, "known": found}[metric.split("_")[1]]


def _column(columns: dict[str, Ints], name: str, values: Ints) -> str:
    """The name of the column with these values, added if there is none yet."""
    kind = name.split()[0]
    for known, others in columns.items():
        if known.startswith(f"{kind} ") and np.array_equal(others, values):
            return known
    columns[name] = values
    return name


def _percent(iou: NDArray[Any]) -> Ints:
    return np.where(np.isnan(iou), -1, np.ceil(100 * iou.astype(np.float64).round(7))).astype(np.int64)
