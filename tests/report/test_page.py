"""The page as a reader gets it: complete, safe, and showing the numbers of the results."""

import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fdcnet.errors import UserError
from fdcnet.evaluation.table import Table
from fdcnet.report import write_report
from fdcnet.report.page import SCRIPT
from fdcnet.store.record import RunRecord, read_json, write_json

HOSTILE = """"><script>alert('x')</script><img src=http://evil.example onerror=alert(1)>&amp;"""


def page_of(runs: list[Path], folder: Path, title: str | None = None) -> ElementTree.Element:
    """The page is well-formed XML too, so a parser sees exactly what a browser does."""
    return ElementTree.fromstring(write_report(runs, folder / "report.html", title).read_text(encoding="utf-8"))


def words(element: ElementTree.Element | None) -> str:
    assert element is not None
    return " ".join("".join(element.itertext()).split())


def section(page: ElementTree.Element, name: str) -> ElementTree.Element | None:
    return page.find(f".//section[@id='{name}']")


@pytest.fixture
def runs(finished_runs: list[Path], tmp_path: Path) -> list[Path]:
    """Copies that a test may change."""
    return [Path(shutil.copytree(run, tmp_path / run.name)) for run in finished_runs]


@pytest.fixture(scope="module")
def page(finished_runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> ElementTree.Element:
    return page_of(finished_runs, tmp_path_factory.mktemp("page"))


def test_sections_come_in_order(page: ElementTree.Element) -> None:
    names = ["result", "tasks", "photos", "classes", "boxes", "losses", "numbers", "making"]
    assert [found.get("id") for found in page.iter("section")] == names
    assert [link.get("href") for link in page.iter("a")] == [f"#{name}" for name in names[1:]]


def test_headline_shows_old_and_new_of_each_run(page: ElementTree.Element) -> None:
    cards = page.findall(".//article[@class='card']")
    big = [[words(cell) for cell in card.findall(".//td[@class='big']")] for card in cards]
    # fdcnet, old classes: Top-1 Cls (3 * 74.75 + 2 * 70.5) / 5 = 73.05, GT-known (3 * 89 + 2 * 86.5) / 5 = 88,
    # Top-1 Loc (3 * 70.25 + 2 * 66) / 5 = 68.55
    assert big[0] == ["73.0 %", "88.0 %", "68.5 %", "76.5 %", "90.0 %", "72.0 %"]
    # finetune: (3 * 9 + 2 * 21.5) / 5 = 14, (3 * 31 + 2 * 52.5) / 5 = 39.6 and (3 * 4.5 + 2 * 17) / 5 = 9.5
    assert big[1] == ["14.0 %", "39.6 %", "9.5 %", "87.5 %", "93.0 %", "83.0 %"]
    assert "5 classes, tasks 1–2" in words(cards[0])
    assert words(page.find(".//h1")) == "7 classes learned in 3 tasks"
    outcome = (
        "After the last task, for old classes: fdcnet recognizes 73.0 % of the photos and finds 88.0 % of the objects; "
        "finetune recognizes 14.0 % of the photos and finds 39.6 % of the objects."
    )
    assert outcome in words(page.find(".//header"))


def test_curves_and_heat_tables_show_the_results(page: ElementTree.Element, finished_runs: list[Path]) -> None:
    results = read_json(finished_runs[1] / "results.json")
    part = section(page, "tasks")
    assert part is not None
    hints = [words(title) for title in part.iter("title")]
    for task in results["tasks"]:
        assert f"finetune: {task['gt_known']:.1f}" in hints
    tables = part.findall(".//table[@class='heat']")
    assert len(tables) == 6  # three metrics, two runs
    first_row = [words(cell) for cell in tables[3].findall(".//tbody/tr[1]/td")]
    assert first_row == ["92.0", "55.0", "31.0", "−61.0"]
    assert [words(cell) for cell in tables[3].findall(".//tbody/tr[3]/td")] == ["", "", "93.0", ""]


def test_every_number_of_the_results_is_in_the_tables(page: ElementTree.Element, finished_runs: list[Path]) -> None:
    shown = words(section(page, "numbers"))
    for run in finished_runs:
        results = read_json(run / "results.json")
        for values in (*results["tasks"], results["average"], results["last"], results["forgetting"]):
            for metric, value in values.items():
                if metric not in ("task", "num_classes"):
                    assert f"{value:.2f}".replace("-", "−") in shown
    assert "exceeds 0.15 (threshold source: BAS, CUB-200)" in shown
    assert shown.count("How it was measured.") == 1  # the runs share a protocol


def test_photos_are_there_for_each_run_after_each_task(page: ElementTree.Element) -> None:
    part = section(page, "photos")
    assert part is not None
    images = list(part.iter("img"))
    # Photos of 3, 2 and 2 classes, seen after 3, 2 and 1 tasks, by two runs.
    assert len(images) == 2 * (3 * 3 + 2 * 2 + 2 * 1)
    assert all((image.get("src") or "").startswith("data:image/jpeg;base64,") for image in images)
    alts = [image.get("alt") or "" for image in images]
    assert "disc after task 3 (finetune): predicted bar 85\xa0%. IoU 0.11" in alts
    captions = [[words(line) for line in caption] for caption in part.iter("figcaption")]
    assert captions[0] == ["after task 1", "✓ disc 97 %", "✓ IoU 1.00"]
    assert captions[5] == ["after task 3", "✗ bar 85 %", "✗ IoU 0.11"]
    assert len(part.findall(".//div[@class='unknown']")) == 2 * (2 + 2)  # one blank per photo of a later task and run


def test_photos_that_were_stored_after_every_task_are_preferred(runs: list[Path], tmp_path: Path) -> None:
    file = runs[0] / "examples" / "task-2.json"
    write_json(file, [example for example in read_json(file) if example["label"] != "disc"])
    part = section(page_of([runs[0]], tmp_path), "photos")
    assert part is not None
    assert [words(name) for name in part.findall(".//h4")] == ["ring", "square", "kite", "cross", "star", "bar"]
    assert "–" not in [words(blank) for blank in part.findall(".//div[@class='unknown']")]


def test_there_is_a_chart_for_every_loss(page: ElementTree.Element) -> None:
    part = section(page, "losses")
    assert part is not None
    names = [words(name) for name in part.findall(".//figcaption/code")]
    assert names == ["cls", "cls_fg", "bas", "area", "kd_cls", "kd_loc", "dc_cls", "dc_loc"]
    assert words(part.find(".//figcaption")) == "Classification cls"
    assert len(part.findall(".//svg[@class='chart']")) == 8
    assert "“drift”" in words(part)


def test_the_making_is_told(page: ElementTree.Element) -> None:
    told = words(section(page, "making"))
    for fact in ("recipes/shapes.yaml", "0123456789abcdef", "sha256:5f2c", "torch 2.11.0", "1,400 training photos"):
        assert fact in told
    assert "24 photos" in told
    assert "212 images/s" in told
    assert "main 56 s (1.5 M parameters), drift 16 s (1.5 M parameters)" in told
    assert "backbone: tiny" in told


def test_a_first_task_from_elsewhere_is_told(runs: list[Path], tmp_path: Path) -> None:
    facts = read_json(runs[0] / "run.json")
    base = {"method": "finetune", "seed": 0, "train": {"base_epochs": 32, "step_epochs": 9}}
    write_json(runs[0] / "run.json", facts | {"base_model": "runs/base/model", "base_config": base})
    told = words(section(page_of([runs[0]], tmp_path), "making"))
    assert "First task taken from runs/base/model" in told
    assert "Settings of the first task train.base_epochs 32" in told
    assert "step_epochs 9" not in told


def test_nothing_is_loaded_from_anywhere(finished_runs: list[Path], tmp_path: Path) -> None:
    text = write_report(finished_runs, tmp_path / "report.html").read_text(encoding="utf-8")
    sources = re.findall(r'src="([^"]*)"', text)
    assert sources
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    without_pictures = re.sub(r'src="[^"]*"', "", text)
    without_script = without_pictures.replace(f"<script>{SCRIPT}</script>", "")
    assert without_script != without_pictures
    assert not re.search(r"https?:|//|url\(|@import|<script|<link|<iframe|javascript:", without_script)
    assert not re.search(r"https?:|//|import|fetch|XMLHttpRequest|WebSocket|eval|innerHTML", SCRIPT)
    assert "default-src 'none'" in html.unescape(text)
    assert len(text) < 3_000_000


def test_hostile_names_stay_text(runs: list[Path], tmp_path: Path) -> None:
    run = runs[0]
    facts = read_json(run / "run.json")
    facts["config"]["method"] = HOSTILE
    facts |= {"class_order": [HOSTILE] * 7, "tasks": [[HOSTILE] * 3, [HOSTILE] * 2, [HOSTILE] * 2], "device": HOSTILE}
    facts |= {"command": [HOSTILE], "commit": HOSTILE, "versions": {HOSTILE: HOSTILE}, "started": HOSTILE}
    facts["data"] = {"name": HOSTILE, "fingerprint": HOSTILE}
    write_json(run / "run.json", facts)
    for path in run.glob("examples/task-*.json"):
        write_json(path, [example | {"label": HOSTILE, "predicted": HOSTILE} for example in read_json(path)])
    line = {"task": 3, "phase": HOSTILE, "epoch": 1, "losses": {HOSTILE: 1.0}}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    results = read_json(run / "results.json")
    results["protocol"] |= {"map": HOSTILE, "threshold_source": HOSTILE, "normalization": HOSTILE, "frame": HOSTILE}
    write_json(run / "results.json", results | {"backbone": HOSTILE, "dataset": HOSTILE})

    page = page_of([run], tmp_path, title=HOSTILE)
    assert [script.text for script in page.iter("script")] == [SCRIPT]
    assert all((image.get("src") or "").startswith("data:") for image in page.iter("img"))
    assert not [element for element in page.iter() if any(name.startswith("on") for name in element.attrib)]
    assert words(page.find(".//h1")) == HOSTILE
    assert HOSTILE in words(section(page, "making"))


def test_a_photo_outside_the_run_folder_is_not_shown(runs: list[Path], tmp_path: Path) -> None:
    (photo,) = runs[1].glob("examples/images/disc*.jpg")
    listed = read_json(runs[0] / "examples" / "task-1.json")
    listed[0]["image"] = f"../{runs[1].name}/examples/images/{photo.name}"
    write_json(runs[0] / "examples" / "task-1.json", listed)
    for later in (2, 3):
        (runs[0] / "examples" / f"task-{later}.json").unlink()
    page = page_of([runs[0]], tmp_path)
    part = section(page, "photos")
    assert part is not None
    assert len(list(part.iter("img"))) == len(listed) - 1
    assert not [image for image in page.iter("img") if (image.get("alt") or "").startswith("disc")]


def strip_boxes(results: dict[str, Any]) -> dict[str, Any]:
    located = ("top1_loc", "top5_loc", "gt_known")
    for task in results["tasks"]:
        task |= dict.fromkeys(located)
    for summary in ("average", "last", "forgetting"):
        results[summary] |= dict.fromkeys(located)
    blank = {metric: [[None] * (t + 1) for t in range(3)] for metric in located}
    return results | {"matrix": {**blank, "top1_cls": [[90.0], [80.0, 85.0], [70.0, 75.0, 95.0]]}}


def test_without_boxes_the_class_is_judged(runs: list[Path], tmp_path: Path) -> None:
    write_json(runs[0] / "results.json", strip_boxes(read_json(runs[0] / "results.json")))
    for path in runs[0].glob("examples/task-*.json"):
        write_json(path, [{**e, "true_boxes": [], "iou": None, "box": [None] * 4} for e in read_json(path)])
    table = Table.load(runs[0] / "predictions/task-3.csv.gz")
    unknown = {name: np.full_like(getattr(table, name), np.nan) for name in ("iou", "iou_largest", "iou_any")}
    replace(table, num_boxes=np.zeros_like(table.num_boxes), **unknown).save(runs[0] / "predictions/task-3.csv.gz")
    page = page_of([runs[0]], tmp_path)
    assert "no boxes" in words(section(page, "result"))
    assert [words(cell) for cell in page.findall(".//td[@class='big']")][::2] == ["72.0 %", "95.0 %"]  # (3*70+2*75)/5
    assert section(page, "boxes") is None
    outcome = "it recognizes 72.0 % of the photos of old classes, and recognizes 95.0 % of the photos of new classes"
    assert outcome in words(page.find(".//header"))
    for name in ("photos", "classes", "numbers"):
        text = words(section(page, name))
        assert "IoU" not in text and "true box" not in text
    # After a last lesson of too few photos, only old classes are evaluated.
    results = read_json(runs[0] / "results.json")
    results["matrix"]["top1_cls"][-1][-1] = None
    write_json(runs[0] / "results.json", results)
    lead = words(page_of([runs[0]], tmp_path).find(".//header"))
    assert "it recognizes 72.0 % of the photos of old classes. " in lead
    # Without any metric for the groups, the dash says so.
    write_json(runs[0] / "results.json", read_json(runs[0] / "results.json") | {"matrix": {}})
    page = page_of([runs[0]], tmp_path)
    assert {words(cell) for cell in page.findall(".//td[@class='big']")} == {"–"}


def test_new_classes_without_test_photos_are_said(runs: list[Path], tmp_path: Path) -> None:
    results = read_json(runs[0] / "results.json")
    for rows in results["matrix"].values():
        rows[2][2] = None
    write_json(runs[0] / "results.json", results)
    part = section(page_of([runs[0]], tmp_path), "result")
    assert part is not None
    assert words(part.find("p[@class='note']")) == "–: there are no test photos of these classes."
    assert section(page_of([runs[1]], tmp_path), "result").find("p[@class='note']") is None  # type: ignore[union-attr]


def test_an_unfinished_run_shows_what_there_is(runs: list[Path], tmp_path: Path) -> None:
    facts = read_json(runs[0] / "run.json")
    write_json(runs[0] / "run.json", facts | {"finished": None, "seconds": None})
    results = read_json(runs[0] / "results.json")
    matrix = {metric: rows[:2] for metric, rows in results["matrix"].items()}
    cut = {"tasks": results["tasks"][:2], "matrix": matrix, "last": None, "average": None, "forgetting": None}
    write_json(runs[0] / "results.json", results | cut)
    page = page_of(runs, tmp_path)
    assert "unfinished: 2 of 3 tasks evaluated" in words(page.find(".//article[@class='card']"))
    assert "not finished" in words(section(page, "making"))
    assert "So far, for old classes: fdcnet recognizes 78.5 %" in words(page.find(".//header"))


def test_a_run_that_has_only_begun_can_be_shown(tmp_path: Path) -> None:
    RunRecord.create(tmp_path / "bare", {})
    page = page_of([tmp_path / "bare"], tmp_path)
    assert "Nothing has been evaluated yet." in words(section(page, "result"))
    assert [found.get("id") for found in page.iter("section")] == ["result", "making"]


def test_missing_files_leave_their_section_out(runs: list[Path], tmp_path: Path) -> None:
    shutil.rmtree(runs[0] / "examples" / "images")
    (runs[0] / "metrics.jsonl").unlink()
    page = page_of([runs[0]], tmp_path)
    assert section(page, "losses") is None
    assert not list(page.iter("img"))
    shutil.rmtree(runs[0] / "examples")
    (runs[0] / "results.json").unlink()
    page = page_of([runs[0]], tmp_path)
    assert [found.get("id") for found in page.iter("section")] == ["result", "making"]


def test_one_task_has_nothing_to_forget(runs: list[Path], tmp_path: Path) -> None:
    results = read_json(runs[0] / "results.json")
    matrix = {metric: rows[:1] for metric, rows in results["matrix"].items()}
    write_json(runs[0] / "results.json", results | {"tasks": results["tasks"][:1], "matrix": matrix, "forgetting": {}})
    write_json(runs[0] / "run.json", read_json(runs[0] / "run.json") | {"tasks": [["disc", "ring", "square"]]})
    page = page_of([runs[0]], tmp_path)
    assert section(page, "tasks") is None
    assert [words(cell) for cell in page.findall(".//td[@class='big']")] == ["84.5 %", "92.0 %", "80.0 %"]


def test_two_protocols_are_told_apart(runs: list[Path], tmp_path: Path) -> None:
    results = read_json(runs[0] / "results.json")
    results["protocol"] = results["protocol"] | {"map": "topk-mean", "topk": 5}
    write_json(runs[0] / "results-topk-mean.json", results)
    shown = words(section(page_of([runs[0]], tmp_path), "numbers"))
    assert "fdcnet, class map" in shown
    assert "fdcnet, topk-mean map" in shown
    assert "the mean map of the 5 classes with the highest scores" in shown
    assert shown.count("How it was measured.") == 2


def test_runs_of_one_method_are_told_apart(runs: list[Path], tmp_path: Path) -> None:
    other = Path(shutil.copytree(runs[0], tmp_path / "seed1"))
    cards = page_of([runs[0], other, other], tmp_path).findall(".//article[@class='card']/h3")
    assert [words(card) for card in cards] == ["fdcnet (fdcnet)", "fdcnet (seed1) #2", "fdcnet (seed1) #3"]


def test_many_tasks_stay_below_the_size_limit(runs: list[Path], tmp_path: Path) -> None:
    example = read_json(runs[0] / "examples" / "task-1.json")[0]
    for task in range(1, 21):
        seen = [example | {"class_task": j, "image": f"{example['image']}"} for j in range(1, task + 1)]
        write_json(runs[0] / "examples" / f"task-{task}.json", seen)
    page = page_of([runs[0]], tmp_path)
    part = section(page, "photos")
    assert part is not None
    assert 0 < len(list(part.iter("img"))) <= 120


def test_target_may_be_a_folder(finished_runs: list[Path], tmp_path: Path) -> None:
    assert write_report(finished_runs[:1], tmp_path) == tmp_path / "report.html"
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert write_report(finished_runs[:1], tmp_path / "new" / "page.html").is_file()


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run to report"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(UserError, match="is neither a run nor a model"):
        write_report([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_altered_files_of_a_run_end_in_a_message(runs: list[Path], tmp_path: Path) -> None:
    """Found by the soak: a metrics line without its task was a KeyError."""
    (runs[0] / "metrics.jsonl").write_text('{"epoch": 1, "losses": {}}\n')
    with pytest.raises(UserError, match=r"Cannot make sense of .*KeyError: 'task'") as caught:
        write_report([runs[0]], tmp_path / "report.html")
    assert "Restore the JSON files" in caught.value.remedy
