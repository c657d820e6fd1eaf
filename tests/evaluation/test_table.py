import csv
import gzip
import io
from dataclasses import replace

import numpy as np
import pytest

from fdcnet.errors import UserError
from fdcnet.evaluation.table import Table


def small_table() -> Table:
    return Table(
        path=("a, b.jpg", 'quo"te.jpg', "plain.jpg"),
        label=np.array([0, 2, 1]),
        rank=np.array([0, 3, 1]),
        top5=np.array([[0, 1, 2, -1, -1], [1, 0, 3, 2, -1], [0, 1, 2, 3, -1]]),
        p_true=np.array([0.9, 1e-7, 1 / 3], dtype=np.float32),
        p_top1=np.array([0.9, 0.5, 0.4], dtype=np.float32),
        box=np.array([[0, 0, 224, 224], [1, 2, 3, 4], [5, 6, 70, 80]], dtype=np.float32),
        iou=np.array([0.1 + 0.2, np.nan, 0.50000006], dtype=np.float32),
        num_boxes=np.array([2, 0, 1]),
        thresholds=(0.15, 0.2),
        iou_largest=np.array([[0.3, 0.7], [np.nan, np.nan], [1 / 3, 1]], dtype=np.float32),
        iou_any=np.array([[0.4, 0.8], [np.nan, np.nan], [2 / 3, 1]], dtype=np.float32),
    )


def test_round_trip_keeps_every_bit(tmp_path):
    table = small_table()
    table.save(tmp_path / "task-1.csv.gz")
    again = Table.load(tmp_path / "task-1.csv.gz")
    assert again.path == table.path
    assert again.thresholds == table.thresholds
    for name in ("label", "rank", "top5", "p_true", "p_top1", "box", "iou", "num_boxes", "iou_largest", "iou_any"):
        before, after = getattr(table, name), getattr(again, name)
        assert after.dtype == before.dtype, name
        assert np.array_equal(after, before, equal_nan=before.dtype.kind == "f"), name


def test_true_boxes_are_saved_and_a_table_of_an_earlier_version_has_none(tmp_path):
    boxes = np.array([[0, 0, 9, 9], [np.nan] * 4, [1, 2, 3, 4.5]], dtype=np.float32)
    replace(small_table(), true_box=boxes).save(tmp_path / "new.csv.gz")
    again = Table.load(tmp_path / "new.csv.gz")
    assert np.array_equal(again.true_box, boxes, equal_nan=True)
    assert again.select(np.array([False, False, True])).true_box.tolist() == [[1, 2, 3, 4.5]]
    small_table().save(tmp_path / "old.csv.gz")
    assert Table.load(tmp_path / "old.csv.gz").true_box is None


def test_the_file_is_a_plain_csv(tmp_path):
    small_table().save(tmp_path / "t.csv.gz")
    rows = list(csv.DictReader(io.StringIO(gzip.decompress((tmp_path / "t.csv.gz").read_bytes()).decode(), newline="")))
    assert rows[0]["path"] == "a, b.jpg"
    assert rows[2]["iou@0.15"] == "0.33333334"
    assert rows[2]["any@0.2"] == "1.0"
    assert rows[1]["iou"] == "", "no true box, no overlap"
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.csv.gz"], "nothing is left beside it"


def test_same_table_same_bytes(tmp_path):
    small_table().save(tmp_path / "one.csv.gz")
    small_table().save(tmp_path / "two.csv.gz")
    assert (tmp_path / "one.csv.gz").read_bytes() == (tmp_path / "two.csv.gz").read_bytes()
    assert (tmp_path / "one.csv.gz").read_bytes()[4:8] == bytes(4), "no time stamp"


def test_select():
    part = small_table().select(np.array([True, False, True]))
    assert part.path == ("a, b.jpg", "plain.jpg")
    assert part.label.tolist() == [0, 1]
    assert part.iou_any.shape == (2, 2)
    assert len(part.select(np.array([False, False]))) == 0


def test_an_empty_table_survives(tmp_path):
    empty = small_table().select(np.zeros(3, dtype=bool))
    empty.save(tmp_path / "t.csv.gz")
    assert Table.load(tmp_path / "t.csv.gz").iou_largest.shape == (0, 2)


@pytest.mark.parametrize("content", ["path,label\na,1\n", "", "path,label\na\n", "path,label\na,b\n"])
def test_a_foreign_table_is_refused(tmp_path, content):
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(content.encode()))
    with pytest.raises(UserError, match=r"t\.csv\.gz"):
        Table.load(tmp_path / "t.csv.gz")


def test_a_damaged_or_missing_file_is_refused(tmp_path):
    path = tmp_path / "t.csv.gz"
    with pytest.raises(UserError, match="not a table"):
        Table.load(path)
    small_table().save(path)
    whole = path.read_bytes()
    for damaged in (whole[:-20], b"not gzip", whole[:40] + b"\xff\xff\xff\xff" + whole[44:]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="not a table"):
            Table.load(path)
