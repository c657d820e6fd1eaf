"""Reports in a real browser: sorting, scrolling, folded parts, printing. Skipped where there is no browser."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fdcnet.evaluation.table import Table
from fdcnet.report import write_report
from fdcnet.report.pdf import write_pdf
from fdcnet.store.record import RunRecord

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no chromium to drive")

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text("utf-8")
NUM_CLASSES, PER_CLASS, SIDE = 12, 4, 224
RIGHT = [0, 3, 1, 4, 2, 4, 4, 3, 4, 1, 4, 2]  # photos of each class whose class is right


def make_run(folder: Path, num_classes: int = NUM_CLASSES, noise: float = 1.0) -> Path:
    """A run of one task whose photos are noise."""
    names = [f"{i + 1:03d}.Class_{chr(65 + i % 26)}_{i}" for i in range(num_classes)]
    config = {"method": "finetune", "weights": {"area": 1.0}, "data": {"crop": SIDE}}
    record = RunRecord.create(folder, {"config": config, "class_order": names, "tasks": [names]})
    rng = np.random.default_rng(0)
    examples = []
    for i, name in enumerate(names):
        coarse = Image.fromarray(rng.integers(0, 255, (28, 28, 3), dtype=np.uint8)).resize((SIDE, SIDE))
        grain = rng.normal(0, 12 * noise, (SIDE, SIDE, 3))
        photo = np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8)
        heat = np.outer(np.hanning(SIDE), np.hanning(SIDE))
        facts = {
            "label": name, "class_task": 1, "predicted": names[0], "score": 0.5, "iou": 0.1 if i % 2 else 0.8,
            "box": [20, 20, 60, 60] if i % 2 else [40, 40, 160, 170], "true_boxes": [[40, 40, 160, 160]],
        }  # fmt: skip
        examples.append((name, photo, heat, facts))
    record.write_examples(1, examples)
    label = np.repeat(np.arange(num_classes), PER_CLASS)
    right = np.tile(np.arange(PER_CLASS), num_classes) < np.resize(RIGHT, num_classes).repeat(PER_CLASS)
    predicted = np.where(right, label, (label + 1) % num_classes)
    count = len(label)
    overlaps = np.linspace(0, 1, count).astype(np.float32)
    box = np.tile(np.array([40, 40, 160, 160], dtype=np.float32), (count, 1))
    table = Table(
        path=tuple(map(str, range(count))), label=label, rank=(~right).astype(np.int64),
        top5=np.stack([predicted, *[np.full(count, -1)] * 4], axis=1), p_true=overlaps, p_top1=overlaps, box=box,
        iou=overlaps, num_boxes=np.ones(count, dtype=np.int64), thresholds=(0.1, 0.5, 0.9),
        iou_largest=np.stack([overlaps] * 3, axis=1), iou_any=np.stack([overlaps] * 3, axis=1), true_box=box,
    )  # fmt: skip
    (folder / "predictions").mkdir()
    table.save(folder / "predictions" / "task-1.csv.gz")
    scores = {"top1_cls": 66.0, "top5_cls": 80.0, "gt_known": 3.0, "top1_loc": 2.0, "top5_loc": 2.5}
    record.write_results(
        {
            "schema": 1, "dataset": "noise", "method": "finetune", "backbone": "tiny", "seed": 0,
            "protocol": {"map": "class", "threshold": 0.5, "iou": 0.5, "average": "class"},
            "tasks": [{"task": 1, "num_classes": num_classes, **scores, "gt_known_best": 40.0, "best_threshold": 0.1}],
            "average": scores, "last": scores, "forgetting": {}, "matrix": {m: [[v]] for m, v in scores.items()},
        }
    )  # fmt: skip
    record.finish(10)
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return write_report([make_run(folder / "run")], folder / "report.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any, report: Path) -> Iterator[Any]:
    """Opens the report; at the end, it has asked for nothing and complained about nothing."""
    contexts, asked, complaints = [], [], []

    def open_page(**options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(report.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()] * len(contexts)


def column(page: Any, number: int) -> list[str]:
    cells: list[str] = page.locator(f".sortable tbody tr > :nth-child({number})").all_inner_texts()
    return cells


def test_the_class_table_sorts(visit: Any) -> None:
    page = visit()
    classes = column(page, 1)
    assert classes[:3] == ["Class A 0", "Class B 1", "Class C 2"]
    header = page.locator(".sortable").get_by_role("columnheader", name="Top-1 Cls", exact=True)
    button = header.get_by_role("button")
    button.focus()
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    assert column(page, 4) == ["0.0", *["25.0"] * 2, *["50.0"] * 2, *["75.0"] * 2, *["100.0"] * 5]
    assert column(page, 1)[:3] == ["Class A 0", "Class C 2", "Class J 9"], "equal classes keep their order"
    button.click()
    assert header.get_attribute("aria-sort") == "descending"
    assert column(page, 4)[0] == "100.0"
    page.locator(".sortable").get_by_role("button", name="Class", exact=True).click()
    assert header.get_attribute("aria-sort") is None
    assert column(page, 1) == sorted(classes)


def test_classes_without_photos_sort_last(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 4)  # 0, 75, 25 and 100 % right
    file = run / "predictions" / "task-1.csv.gz"
    table = Table.load(file)
    table.select(table.label != 2).save(file)
    page = browser.new_page()
    page.goto(write_report([run], tmp_path / "report.html").as_uri())
    button = page.locator(".sortable").get_by_role("button", name="Top-1 Cls", exact=True)
    for expected in (["0.0", "75.0", "100.0", "–"], ["100.0", "75.0", "0.0", "–"]):
        button.click()
        assert column(page, 4) == expected
    page.close()


def test_photos_of_every_class_unfold(visit: Any) -> None:
    page = visit()
    photo = page.locator("details .small img").first
    assert not photo.is_visible()
    page.get_by_text(f"Photos of every class ({NUM_CLASSES})").click()
    assert photo.is_visible()
    assert page.locator("details .small img").count() == NUM_CLASSES
    assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_tables_and_says_so(scheme: str, visit: Any) -> None:
    page = visit(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == 390, "the page itself does not scroll sideways"
    hint = page.locator("#classes .scroll-hint")
    playwright.expect(hint).to_be_visible()
    page.set_viewport_size({"width": 320, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    name, *numbers = [box.bounding_box() for box in page.locator(".card tbody tr").first.locator("th, td").all()]
    assert all(number["y"] >= name["y"] + name["height"] for number in numbers), "the name has a line of its own"
    page.set_viewport_size({"width": 1280, "height": 800})
    playwright.expect(hint).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(scheme: str, visit: Any) -> None:
    page = visit(color_scheme=scheme)
    page.get_by_text("Photos of every class").click()
    page.evaluate(AXE)
    result = page.evaluate("axe.run()")
    assert len(result["passes"]) > 20
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in result["violations"]] == []


def test_the_headline_has_class_and_box_accuracy_and_the_banner_says_what_to_do(visit: Any) -> None:
    page = visit()
    assert page.locator(".card .big").all_inner_texts() == ["66.0 %", "3.0 %", "2.0 %"]
    banner = page.locator(".banner").inner_text()
    assert "The box threshold costs 37.0 points" in banner
    assert "protocols.0.threshold=0.1" in banner


def test_a_script_in_the_page_does_not_run(report: Path, browser: Any, tmp_path: Path) -> None:
    text = report.read_text(encoding="utf-8")
    hostile = text.replace("<h1>", "<script>document.title = 'taken'</script><h1 onclick=\"document.title = 'taken'\">")
    (tmp_path / "hostile.html").write_text(hostile, encoding="utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "hostile.html").as_uri())
    page.locator("h1").click()
    assert page.title() != "taken"
    page.locator(".sortable").get_by_role("columnheader", name="Top-1 Cls", exact=True).get_by_role("button").click()
    assert column(page, 4)[0] == "0.0", "its own script runs"
    page.close()


def test_print_cuts_nothing_off(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    settings = {f"setting_{i}": i for i in range(80)}
    RunRecord.open(run).write_run(config={"method": "finetune", "weights": {"area": 1.0}, **settings})
    page = browser.new_page(viewport={"width": 720, "height": 1000}, color_scheme="dark")
    page.goto(write_report([run], tmp_path / "report.html").as_uri())
    page.emulate_media(media="print")
    boxes = page.locator("pre, .scroll, .tiles")
    assert boxes.count() > 3
    for box in boxes.all():
        if box.is_visible():
            assert box.evaluate("e => [e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight]") == [0, 0]
            assert box.evaluate("e => getComputedStyle(e).boxShadow") == "none"
    assert page.locator("pre").is_visible() and page.get_by_text("setting_79").is_visible()
    assert not page.get_by_text("Press a column name").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.close()


def test_every_picture_is_in_the_pdf(report: Path, tmp_path: Path) -> None:
    file = write_pdf(report, tmp_path / "report.pdf")
    pictures = report.read_text(encoding="utf-8").count("<img")
    content = file.read_bytes()
    assert content.startswith(b"%PDF")
    assert pictures > NUM_CLASSES
    different = len(set(re.findall(r'src="([^"]+)"', report.read_text(encoding="utf-8"))))
    assert len(re.findall(rb"/Subtype\s*/Image", content)) >= different
    assert len(re.findall(rb"/Type\s*/Page\b", content)) > 1


def test_a_report_of_200_classes_is_at_most_10_mb(tmp_path: Path) -> None:
    """Photos as noisy as photographs are: they compress no better."""
    page = write_report([make_run(tmp_path / "run", 200)], tmp_path / "report.html")
    text = page.read_text(encoding="utf-8")
    assert text.count("<img") >= 200
    assert page.stat().st_size <= 10_000_000
