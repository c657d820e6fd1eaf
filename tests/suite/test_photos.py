"""The small table of photos says the same as the large ones that it was made from."""

from pathlib import Path

import numpy as np
import pytest

from fdcnet.config import Protocol
from fdcnet.errors import UserError
from fdcnet.evaluation.metrics import METRICS, summary
from fdcnet.evaluation.table import Table
from fdcnet.suite.photos import PhotoResults, collect, right


def table(rank: list[int], iou: list[float]) -> Table:
    number = len(rank)
    overlaps = np.array(iou, dtype=np.float32)
    return Table(
        path=tuple(f"class-{i % 2}/{i}.jpg" for i in range(number)),
        label=np.arange(number) % 2,
        rank=np.array(rank),
        top5=np.zeros((number, 5), dtype=np.int64),
        p_true=np.zeros(number, dtype=np.float32),
        p_top1=np.zeros(number, dtype=np.float32),
        box=np.zeros((number, 4), dtype=np.float32),
        iou=overlaps,
        num_boxes=np.where(np.isnan(overlaps), 0, 1),
        thresholds=(0.5,),
        iou_largest=overlaps[:, None],
        iou_any=overlaps[:, None],
    )


BORDERLINE = [0.5, float(np.nextafter(np.float32(0.5), np.float32(1))), 0.4999, 0.501, 0.0, 1.0]


def test_every_metric_is_the_same_also_next_to_the_limit() -> None:
    big = table([0, 0, 0, 4, 5, 1], BORDERLINE)
    photos, columns = collect({"class": [big]})
    assert photos.columns["iou class"].tolist() == [50, 51, 50, 51, 0, 100]
    scores = summary(big, Protocol(average="image"))
    for metric in METRICS:
        assert 100 * right(photos, columns["class"], metric).mean() == pytest.approx(scores[metric])


def test_protocols_share_what_is_the_same() -> None:
    one, other = table([0, 1], [0.6, 0.2]), table([0, 1], [0.7, 0.2])
    photos, columns = collect({"class": [one], "topk-mean": [other], "class-plain": [one]})
    assert list(photos.columns) == ["rank class", "iou class", "iou topk-mean"]
    assert columns["topk-mean"] == {"rank": "rank class", "iou": "iou topk-mean"}
    assert columns["class-plain"] == columns["class"]


def test_it_reads_back_what_was_saved(tmp_path: Path) -> None:
    photos, _ = collect({"class": [table([0, 7], [0.6, float("nan")]), table([3, 0, 1], [0.1, 0.2, 0.3])]})
    photos.save(tmp_path / "photos.csv.gz")
    again = PhotoResults.load(tmp_path / "photos.csv.gz")
    assert again.path == photos.path
    assert again.task.tolist() == [1, 1, 2, 2, 2]
    assert again.columns["iou class"].tolist() == [60, -1, 10, 20, 30]
    assert again.select(again.task == 2).columns["rank class"].tolist() == [3, 0, 1]


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos.csv.gz").write_bytes(b"nothing")
    with pytest.raises(UserError, match="is not a table of photos"):
        PhotoResults.load(tmp_path / "photos.csv.gz")
