"""Tables, with old and new classes computed by hand."""

import csv
import io
from typing import Any
from xml.etree import ElementTree

import pytest
import rich.console

from fdcnet.report.tables import (
    Table,
    brief_table,
    old_and_new,
    results_table,
    summary_table,
    to_csv,
    to_html,
    to_markdown,
    to_rich,
)
from fdcnet.report.text import show

RESULTS: dict[str, Any] = {
    "tasks": [
        {"task": 1, "num_classes": 10, "top1_loc": 60.0, "gt_known": 80.0, "top1_cls": 70.0},
        {"task": 2, "num_classes": 14, "top1_loc": 55.0, "gt_known": 78.0, "top1_cls": 66.0},
        {"task": 3, "num_classes": 16, "top1_loc": 50.0, "gt_known": 75.0, "top1_cls": 61.0},
    ],
    "average": {"top1_loc": 55.0, "gt_known": 77.66},
    "last": {"top1_loc": 50.0, "gt_known": 75.0},
    "forgetting": {"top1_loc": 8.0, "gt_known": -0.5},
    "matrix": {"top1_loc": [[60.0], [50.0, 67.5], [40.0, 61.0, 78.0]], "gt_known": [[80], [78, None], [70, None, 90]]},
}


def column(table: Table, name: str) -> list[object]:
    return [row[table.header.index(name)] for row in table.rows]


def test_old_classes_are_weighted_by_their_number() -> None:
    assert old_and_new(RESULTS, "top1_loc") == (pytest.approx((10 * 40 + 4 * 61) / 14), 78.0)
    assert old_and_new(RESULTS, "top1_loc", 0) == (None, 60.0)
    assert old_and_new(RESULTS, "top1_loc", 1) == (50.0, 67.5)


def test_old_and_new_survive_gaps() -> None:
    assert old_and_new(RESULTS, "gt_known") == (70.0, 90.0)
    assert old_and_new(RESULTS, "gt_known", 1) == (78.0, None)
    assert old_and_new(RESULTS, "top5_loc") == (None, None)
    assert old_and_new(RESULTS, "top1_loc", 7) == (None, None)
    assert old_and_new({}, "top1_loc") == (None, None)


def test_the_brief_table_without_boxes_has_classes() -> None:
    scores = {"top1_cls": [[90.0], [70.0, 80.0]], "gt_known": [[None], [None, None]]}
    classes_only = {
        "tasks": [{"task": 1, "num_classes": 2}, {"task": 2, "num_classes": 3}],
        "last": {"top1_cls": 75.0, "gt_known": None},
        "forgetting": {"top1_cls": 20.0},
        "matrix": scores,
    }
    table = brief_table({"mine": classes_only})
    assert table.header == ("Run", "Top-1 Cls old", "Top-1 Cls new", "Top-1 Cls lost")
    assert table.rows == (("mine", 70.0, 80.0, 20.0),)
    assert brief_table({"mine": RESULTS, "other": classes_only}).header[1] == "Top-1 Loc old"


def test_results_table_holds_every_task_and_the_summaries() -> None:
    table = results_table({"mine": RESULTS})
    assert column(table, "Run") == ["mine"] * 6
    assert column(table, "After task") == [1, 2, 3, "average", "last", "forgetting"]
    assert column(table, "Classes") == [10, 14, 16, "", "", ""]
    assert column(table, "Top-1 Loc all") == [60.0, 55.0, 50.0, 55.0, 50.0, 8.0]
    assert column(table, "Top-1 Loc old") == [None, 50.0, pytest.approx(46.0), "", "", ""]
    assert column(table, "Top-1 Loc new") == [60.0, 67.5, 78.0, "", "", ""]
    assert column(table, "Top-1 Cls") == [70.0, 66.0, 61.0, None, None, None]


def test_metrics_that_no_run_has_take_no_column() -> None:
    assert not {"Top-5 Loc", "MaxBoxAcc"} & set(results_table({"mine": RESULTS}).header)
    extended = {**RESULTS, "tasks": [{**RESULTS["tasks"][0], "max_box_acc": 66.6}]}
    assert column(results_table({"a": RESULTS, "b": extended}), "MaxBoxAcc")[6] == 66.6


def test_summary_table_has_a_row_per_run() -> None:
    table = summary_table({"mine": RESULTS, "empty": {}})
    assert column(table, "Run") == ["mine", "empty"]
    assert column(table, "Top-1 Loc average") == [55.0, None]
    assert column(table, "Top-1 Loc old") == [pytest.approx(46.0), None]
    assert column(table, "GT-known new") == [90.0, None]
    assert column(table, "GT-known forgetting") == [-0.5, None]


def test_no_results_make_an_empty_table() -> None:
    assert results_table({"mine": {}}).rows == ()
    assert results_table({}).header == ()


def test_numbers_for_people() -> None:
    assert [show(v) for v in (None, 12.345, -0.55, -0.04, 7, "x", "")] == ["–", "12.3", "−0.6", "0.0", "7", "x", ""]
    assert show(12.346, 2) == "12.35"


def test_html_is_escaped_and_has_scopes() -> None:
    hostile = "<script>alert(1)</script>"
    page = ElementTree.fromstring(to_html(results_table({hostile: RESULTS}), caption=hostile))
    assert not list(page.iter("script"))
    assert page.findtext(".//tbody/tr/th") == hostile
    assert all(cell.get("scope") for cell in page.iter("th"))
    width = len(results_table({hostile: RESULTS}).columns)
    upper, lower = page.findall(".//thead/tr")
    assert sum(int(cell.get("colspan", 1)) for cell in upper) == width
    assert len(lower) == sum(int(cell.get("colspan", 0)) for cell in upper)


def test_html_without_parts_has_one_header_row() -> None:
    page = ElementTree.fromstring(to_html(Table((("A", ""), ("B", "")), (("x", 1.0),))))
    assert [cell.text for cell in page.findall(".//thead/tr/th")] == ["A", "B"]
    assert page.findtext(".//tbody/tr/td") == "1.00"


def test_csv_keeps_full_numbers() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(summary_table({"a,b": RESULTS})))))
    assert rows[1][0] == "a,b"
    assert rows[1][rows[0].index("GT-known average")] == "77.66"


def test_markdown_is_one_line_per_row() -> None:
    text = to_markdown(Table((("Run", ""), ("X", "old")), (("a|b\nc", 1.234), ("d", None))))
    assert text == "| Run | X old |\n|---|---:|\n| a\\|b c | 1.23 |\n| d | – |\n"


def test_terminal_shows_names_as_they_are() -> None:
    console = rich.console.Console(width=200, record=True, file=io.StringIO())
    console.print(to_rich(summary_table({"[red]x[/]": RESULTS})))
    text = console.export_text()
    assert "[red]x[/]" in text
    assert "77.7" in text
