"""Problems are found, with what to do, and none where all is well."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fdcnet.evaluation.table import Table
from fdcnet.report import write_report
from fdcnet.report.diagnosis import problems_of
from fdcnet.report.runs import load
from fdcnet.store.record import read_json, write_json

TABLE = "predictions/task-3.csv.gz"


@pytest.fixture
def run(finished_runs: list[Path], tmp_path: Path) -> Path:
    """A copy of FDCNet's run that a test may change."""
    return Path(shutil.copytree(finished_runs[0], tmp_path / "fdcnet"))


def problem(run: Path) -> tuple[str, str]:
    [run_] = load([run])
    [found] = problems_of(run_)
    return found


def append(run: Path, *losses: dict[str, Any], unweighted: dict[str, Any] | None = None) -> None:
    lines = [
        json.dumps({"task": 3, "phase": "late", "epoch": i, "losses": own, "unweighted": unweighted or own}) + "\n"
        for i, own in enumerate(losses, 1)
    ]
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(lines)


def change_table(run: Path, change: Callable[[Table], Table]) -> None:
    change(Table.load(run / TABLE)).save(run / TABLE)


def words(element: ElementTree.Element | None) -> str:
    assert element is not None
    return " ".join("".join(element.itertext()).split())


def page_of(run: Path) -> ElementTree.Element:
    return ElementTree.fromstring(write_report([run], run / "report.html").read_text(encoding="utf-8"))


def section(page: ElementTree.Element, name: str) -> ElementTree.Element:
    found = page.find(f".//section[@id='{name}']")
    assert found is not None
    return found


def test_a_good_run_has_no_problems(finished_runs: list[Path]) -> None:
    assert problems_of(load(finished_runs[:1])[0]) == []
    assert page_of(finished_runs[0]).find(".//aside") is None


def test_forgotten_classes_are_named(finished_runs: list[Path], tmp_path: Path) -> None:
    page = ElementTree.fromstring(write_report(finished_runs, tmp_path / "report.html").read_text(encoding="utf-8"))
    banner = words(page.find(".//aside"))
    # fine-tuning predicts the star for every photo of an old class
    assert "5 of 7 classes are never predicted: disc, ring, square, kite and cross." in banner
    assert "raise memory.budget" in banner
    assert "fdcnet" not in banner


def test_many_missed_classes_are_shortened(run: Path) -> None:
    change_table(run, lambda table: replace(table, top5=np.full_like(table.top5, 9)))
    what, _ = problem(run)
    assert what == "7 of 7 classes are never predicted: disc, ring, square, kite, cross and 2 more."


def test_boxes_of_whole_photos_are_noticed(finished_runs: list[Path]) -> None:
    [run] = load(finished_runs[1:])
    assert any("71\xa0% of the boxes are wrong because they cover the whole photo" in p.what for p in problems_of(run))


def test_a_loss_that_rises_or_is_not_a_number(run: Path) -> None:
    append(run, {"cls": 1.0, "bas": 0.5}, {"cls": 2.0, "bas": 1.1})
    assert problem(run)[0] == "The loss rose from 1.5 to 3.1 in task 3, phase “late”."
    append(run, {"cls": None})
    assert problem(run)[0] == "The loss is NaN or infinite in task 3, phase “late”."
    assert "train.optim.lr" in problem(run)[1]


@pytest.mark.parametrize(
    ("area", "weight", "what", "remedy"),
    [
        (0.008, 0.5, "almost empty", "Lower weights.area (now 0.5)"),
        (0.94, 0.5, "almost the whole photo", "Raise weights.area (now 0.5)"),
        (0.008, 0.0, "almost empty", "Train for more epochs."),
        (0.94, 0.0, "almost the whole photo", "Raise weights.area (now 0)"),
    ],
)
def test_empty_and_full_masks(area: float, weight: float, what: str, remedy: str, run: Path) -> None:
    facts = read_json(run / "run.json")
    facts["config"]["weights"]["area"] = weight
    write_json(run / "run.json", facts)
    append(run, {"area": 0.0}, unweighted={"area": area})
    assert what in problem(run)[0]
    assert remedy in problem(run)[1]


def test_a_threshold_far_from_the_best(run: Path) -> None:
    results = read_json(run / "results.json")
    used = results["tasks"][-1]["gt_known"]
    results["tasks"][-1] |= {"gt_known_best": used + 4.9, "best_threshold": 0.05}
    write_json(run / "results.json", results)
    assert problems_of(load([run])[0]) == []
    results["tasks"][-1]["gt_known_best"] = used + 7  # 4.9 of 70 photos
    write_json(run / "results.json", results)
    assert problems_of(load([run])[0]) == []
    results["tasks"][-1]["gt_known_best"] = used + 8
    write_json(run / "results.json", results)
    what, remedy = problem(run)
    assert what.startswith("The box threshold costs 8.0 points")
    assert "protocols.0.threshold=0.05" in remedy


def test_confused_classes_have_a_photo_of_each(finished_runs: list[Path]) -> None:
    part = section(page_of(finished_runs[0]), "classes")
    [pair] = part.findall(".//div[@class='confused']")
    assert words(pair.find("p")) == "ring predicted as disc: 3 of 10 photos"
    assert [words(caption) for caption in pair.iter("figcaption")] == ["ring", "disc"]
    assert len(list(pair.iter("img"))) == 2


def test_every_class_has_a_row_and_a_photo(finished_runs: list[Path]) -> None:
    part = section(page_of(finished_runs[0]), "classes")
    rows = [[words(cell) for cell in row] for row in part.findall(".//table/tbody/tr")]
    # 7 of 10 rings are recognized, 8 of 10 boxes are right; photos 0 and 1 have both the wrong class and the wrong box
    assert rows[1] == ["ring", "1", "10", "70.0", "80.0", "70.0", "disc (3)"]
    assert rows[5] == ["star", "3", "10", "100.0", "80.0", "80.0", ""]
    names = [words(name) for name in part.findall(".//div[@class='small']/p")]
    assert names == ["disc", "ring", "square", "kite", "cross", "star", "bar"]


def test_classes_without_test_photos_are_listed_with_a_dash(run: Path) -> None:
    change_table(run, lambda table: table.select(table.label != 3))
    part = section(page_of(run), "classes")
    rows = [[words(cell) for cell in row] for row in part.findall(".//table/tbody/tr")]
    assert rows[3] == ["kite", "2", "0", "–", "–", "–", ""]
    assert [row[0] for row in rows] == ["disc", "ring", "square", "kite", "cross", "star", "bar"]
    assert words(part.find(".//caption")).endswith("–: no test photos.")


def test_classes_that_are_not_learned_yet_are_not_listed(run: Path) -> None:
    results = read_json(run / "results.json")
    write_json(run / "results.json", results | {"tasks": results["tasks"][:2]})
    Table.load(run / TABLE).select(np.arange(70) < 50).save(run / "predictions/task-2.csv.gz")
    part = section(page_of(run), "classes")
    assert len(part.findall(".//table/tbody/tr")) == 5
    assert "no test photos" not in words(part.find(".//caption"))


def test_without_true_boxes_the_class_table_has_classes_only(run: Path) -> None:
    results = read_json(run / "results.json")
    for task in results["tasks"]:
        task.update(gt_known=None, top1_loc=None)
    write_json(run / "results.json", results)
    change_table(run, lambda table: replace(table, num_boxes=np.zeros(70, dtype=np.int64), iou=np.full(70, np.nan)))
    header = section(page_of(run), "classes").findall(".//table/thead//th")
    assert [words(name) for name in header[3:-1]] == ["Top-1 Cls", "Top-5 Cls"]


def test_wrong_boxes_are_counted_and_shown(run: Path) -> None:
    last = run / "examples/task-3.json"
    examples = read_json(last)
    examples[0] |= {"true_boxes": [[10, 10, 90, 90]], "box": [30, 30, 60, 60], "iou": 0.14}
    write_json(last, examples)
    part = section(page_of(run), "boxes")
    assert [words(item) for item in part.findall(".//ul/li")] == [
        "14 of 70 boxes are wrong:",
        "7 too small",
        "0 too large",
        "7 elsewhere",
    ]
    assert [words(title) for title in part.findall("./article/h3")] == ["Too small"]
    assert len(part.findall(".//img")) == 1


def test_without_wrong_boxes_their_kinds_are_not_explained(run: Path) -> None:
    change_table(run, lambda table: replace(table, iou=np.ones(70, dtype=np.float32), box=table.true_box))
    part = section(page_of(run), "boxes")
    assert words(part.find(".//ul")) == "0 of 70 boxes are wrong."
    assert "A wrong box is" not in words(part)


def test_the_threshold_curve_marks_the_threshold_used(finished_runs: list[Path]) -> None:
    chart = section(page_of(finished_runs[0]), "boxes").find(".//svg[@class='chart']")
    assert chart is not None
    assert "used: 0.15" in [text.text for text in chart.iter("text")]
    [mark] = [line for line in chart.iter("line") if line.get("class") == "mark"]
    ticks = {text.text: float(text.get("x", 0)) for text in chart.iter("text")}
    share = (float(mark.get("x1", 0)) - ticks["0"]) / (ticks["1"] - ticks["0"])
    assert share == pytest.approx(0.15, abs=0.01)


def test_a_table_of_an_earlier_version_shows_no_kinds_of_wrong_boxes(run: Path) -> None:
    change_table(run, lambda table: replace(table, true_box=None))
    part = section(page_of(run), "boxes")
    assert not part.findall(".//ul")
    assert part.find(".//svg[@class='chart']") is not None


def test_a_damaged_table_is_left_out(run: Path) -> None:
    (run / TABLE).write_bytes(b"damaged")
    page = page_of(run)
    assert page.find(".//section[@id='boxes']") is None
    assert not section(page, "classes").findall(".//table")


def test_a_class_with_few_photos_may_be_missed(run: Path) -> None:
    def two_of_first_class(table: Table) -> Table:
        kept = table.select((table.label > 0) | (np.arange(70) < 2))
        return replace(kept, top5=np.where(kept.top5 == 0, 1, kept.top5))

    change_table(run, two_of_first_class)
    assert problems_of(load([run])[0]) == []
