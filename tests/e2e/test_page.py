"""The page in a real browser: look, teach a new class, see it localized, go back. Skipped where there is none."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fdcnet import geometry
from fdcnet.data.records import Dataset, Record
from fdcnet.data.synthetic import make_synthetic
from fdcnet.inference.localizer import Localizer
from fdcnet.store.versions import rollback, versions
from fdcnet.teaching.learn import learn

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
playwright.expect.set_options(timeout=30_000)  # a loaded machine is slow
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no chromium to drive")

FROM_SCRATCH = (  # as the demo learns
    *("data.size=56", "data.crop=48", "data.zoom=0.6", "model.weights=none", "model.head_width=64"),
    *(
        "model.score_relu=false",
        "weights.area=1.0",
        "weights.kd_cls=2.0",
        "weights.kd_loc=2.0",
        "weights.kd_feat_loc=1.0",
    ),
    *("train.batch_size=16", "train.loc_warmup=0", "train.optim.lr=0.03", "train.optim.head_factor=0.1"),
    *("train.optim.bias_factor=0.1", "train.optim.weight_decay=0.0005", "train.optim.clip_norm=3.0"),
    "protocols.0.threshold=0.3",
)
PHONE = {"viewport": {"width": 320, "height": 640}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_synthetic(tmp_path_factory.mktemp("page") / "all", 3, train_per_class=30, test_per_class=6, size=56)


@pytest.fixture(scope="module")
def made(photos: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the first two classes."""
    path = tmp_path_factory.mktemp("made") / "shapes"
    first = Dataset("first", photos.classes[:2], tuple(of(photos.train, *photos.classes[:2])))
    learn(path, first, full=True, backbone="tiny", epochs=30, device="cpu", overrides=FROM_SCRATCH)
    return path


def of(records: tuple[Record, ...], *names: str) -> list[Record]:
    return [record for record in records if record.label in names]


@pytest.fixture
def server(made: Path, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The command itself; (address, model)"""
    model = Path(shutil.copytree(made, tmp_path / "shapes"))
    command = [sys.executable, "-m", "fdcnet", "serve", str(model), "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONUNBUFFERED": "1"}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), model
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, process.stdout.read()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page, everything that it asked for, and everything that it complained about."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.context.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "console", lambda line: self.complaints.append(line.text) if line.type in ("error", "warning") else None
        )
        self.address = address
        self.page.goto(address)

    def look_at(self, photo: Path) -> None:
        self.page.set_input_files("#look-file", photo)
        self.page.wait_for_selector("#stage:not(.waiting) rect.found", state="attached")

    def until(self, condition: str) -> None:
        """As wait_for_function, which the page's policy forbids."""
        for _ in range(300):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(100)
        raise AssertionError(condition)

    def box(self) -> list[float]:
        return [float(v) for v in self.page.eval_on_selector("rect.found", BOX)]

    def end(self) -> None:
        assert self.complaints == []
        outside = [url for url in self.asked if not url.startswith((self.address, "blob:", "data:"))]
        assert outside == []
        self.context.close()


BOX = (
    "r => { const [x, y, w, h] = ['x', 'y', 'width', 'height'].map(n => +r.getAttribute(n)); return [x, y, x+w, y+h] }"
)
SLIDE = "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')) }"


def test_look_teach_see_and_go_back(browser: Any, server: tuple[str, Path], photos: Dataset) -> None:
    address, model = server
    visit = Visit(browser, address)
    page, new = visit.page, photos.classes[2]
    of_new = of(photos.test, new)
    expect = playwright.expect

    # Look: the page shows what the library says, and the box follows the slider.
    [old, *_] = of(photos.test, photos.classes[0])
    visit.look_at(old.path)
    localizer = Localizer.load(model, "cpu")
    found = localizer.predict(old.path)
    expect(page.locator("#answer-class")).to_have_text(found.class_name)
    expect(page.locator(".guess")).to_have_count(2)
    assert visit.box() == pytest.approx(found.box_xyxy, abs=0.02)
    for threshold in (10, 55, 80):
        page.eval_on_selector("#threshold", SLIDE, threshold)
        near = [found.at(threshold / 100 + shift).box_xyxy for shift in (-0.001, 0, 0.001)]  # heat has four digits
        assert any(visit.box() == pytest.approx(box, abs=0.02) for box in near)
    page.locator(".guess input").nth(1).check()
    other = localizer.predict(old.path, class_name=found.top[1].class_name).at(0.8)
    expect(page.locator("#photo")).to_have_attribute("alt", f"Your photo: {other.class_name} is boxed")
    assert visit.box() == pytest.approx(other.box_xyxy, abs=1.5)
    expect(page.locator("#past")).to_be_hidden()

    # Teach: cancel once, then to the end; meanwhile the old version answers.
    page.click("nav >> text=Teach")
    card = page.locator(".card")
    card.locator("input[type=file]").set_input_files([record.path for record in of(photos.train, new)[:3]])
    expect(page.locator("#start")).to_be_disabled()
    card.locator("input[type=text]").fill(new)
    expect(card.locator(".state")).to_have_text("3 photos: 1 more at least.")
    card.locator("input[type=file]").set_input_files([record.path for record in of(photos.train, new)[3:]])
    page.click("#start")
    page.wait_for_selector("#lesson-curves polyline")
    page.click("nav >> text=Look")
    visit.look_at(of_new[0].path)
    expect(page.locator(".guess")).to_have_count(2)
    page.click("nav >> text=Teach")
    page.click("#cancel")
    expect(page.locator("#lesson-title")).to_have_text("Cancelled")
    page.click("text=Back to the photos")
    expect(card.locator(".thumbs img")).to_have_count(30)
    page.click("#start")
    expect(page.locator("#lesson-title")).to_have_text(f"It has learned {new}", timeout=180_000)
    expect(page.locator("#outcome table tbody tr")).to_have_count(3)
    expect(page.locator("#outcome .pairs figure")).to_have_count(8)
    expect(page.locator("#outcome rect.was")).to_have_count(8)
    visit.until("[...document.images].filter(i => i.offsetParent).every(i => i.complete && i.naturalWidth)")

    # See it localized.
    taught = Localizer.load(model, "cpu")
    right = [record for record in of_new if taught.predict(record.path).class_name == new]
    assert len(right) >= 3
    page.click("nav >> text=Look")
    expect(page.locator(".guess")).to_have_count(3)  # the photo that was open is asked about again
    expect(page.locator("#answer-note")).to_contain_text("one of the 3 classes it knows")
    page.eval_on_selector("#threshold", SLIDE, 30)
    overlaps = []
    for record in right:
        visit.look_at(record.path)
        expect(page.locator("#answer-class")).to_have_text(new)
        overlaps += [geometry.iou([visit.box()], record.boxes_xyxy)[0, 0]]
    assert max(overlaps) > 0.5 and sum(overlaps) / len(overlaps) > 0.3

    # What it knew before.
    page.eval_on_selector("#after", SLIDE, 1)
    expect(page.locator("#after-note")).to_contain_text("as it was kept: 2 classes")
    expect(page.locator("#answer-class")).not_to_have_text(new)
    expect(page.locator("#answer-note")).to_contain_text("one of the 2 classes it knew")
    second = page.locator(".guess input").nth(1).input_value()
    page.locator(".guess input").nth(1).check()
    expect(page.locator("#photo")).to_have_attribute("alt", f"Your photo: {second} is boxed")

    # Report: nothing has changed, so Look stays as it is.
    page.click("nav >> text=Report")
    expect(page.locator("#history tbody tr")).to_have_count(2)
    expect(page.locator("#classes")).to_contain_text(new)
    for row, version in enumerate(versions(model)):  # as 'fdcnet history' writes it
        size = f"{round(version.num_bytes / 1e6, 1):g} MB"
        expect(page.locator("#history tbody tr").nth(row).locator("[data-head=size]")).to_have_text(size)
    page.click("nav >> text=Look")
    expect(page.locator("#after")).to_have_value("1")
    expect(page.locator(".guess input").nth(1)).to_be_checked()

    # Back: the panel and Look follow the version that is in use.
    line, back = page.locator("#lesson-line"), page.locator("#roll-back")
    page.click("nav >> text=Teach")
    expect(line).to_contain_text("The new version is in use.")
    back.click()
    expect(page.locator("#model-facts")).to_have_text("Knows 2 classes, learned in 1 task")
    expect(line).to_have_text("Taken back: version 1 is in use.")
    expect(page.locator("#lesson-title")).to_have_text(f"Version 2 learned {new}")
    expect(page.locator("#lesson-title")).to_be_focused()
    expect(back).to_be_hidden()
    assert new not in Localizer.load(model).classes
    page.click("nav >> text=Look")
    expect(page.locator("#answer-when")).to_have_text("The model sees")
    expect(page.locator(".guess input").nth(0)).to_be_checked()
    page.click("nav >> text=Report")
    page.click("text=Use this one")
    expect(page.locator("#model-facts")).to_have_text("Knows 3 classes, learned in 2 tasks")
    page.click("nav >> text=Look")
    expect(page.locator("#after")).to_have_value("2")
    expect(page.locator(".guess")).to_have_count(3)
    page.click("nav >> text=Teach")
    expect(line).to_contain_text("The new version is in use.")
    assert visit.complaints == []
    rollback(model)  # in a terminal: the page does not know
    back.click()
    expect(page.locator("#problem")).to_contain_text("Version 1 is in use, not version 2.")
    expect(line).to_have_text("Taken back: version 1 is in use.")
    expect(back).to_be_hidden()
    assert "409" in visit.complaints.pop()
    visit.end()


def test_what_was_left_out_is_seen(browser: Any, server: tuple[str, Path], photos: Dataset, tmp_path: Path) -> None:
    visit = Visit(browser, server[0])
    page, expect = visit.page, playwright.expect
    notes, blank = page.locator("#lesson-notes"), page.locator(".thumbs .blank img")
    (tmp_path / "broken.jpg").write_bytes(b"no photo")
    page.click("nav >> text=Teach")
    good = [record.path for record in of(photos.train, photos.classes[2])]
    page.fill(".card input[type=text]", "heron")
    page.set_input_files(".card input[type=file]", [*good[:3], tmp_path / "broken.jpg"])
    expect(blank).to_have_count(1)
    expect(blank).to_have_attribute("alt", "broken.jpg")

    page.click("#start")  # four were sent, three can be read
    expect(page.locator("#lesson-title")).to_have_text("It did not learn")
    expect(notes.locator("text=broken.jpg: not an image")).to_be_visible()

    page.click("text=Back to the photos")
    page.set_input_files(".card input[type=file]", good[3:])
    page.click("#start")
    expect(page.locator("#outcome")).to_contain_text("1 photo could not be used: see below.")
    expect(notes.locator("li").first).to_be_visible()
    notes.locator("summary").click()
    page.wait_for_selector("#lesson-curves polyline")
    expect(notes.locator("li").first).to_be_hidden()  # who closed it has seen it
    page.click("#cancel")
    expect(page.locator("#lesson-title")).to_have_text("Cancelled")
    visit.end()


def test_on_a_phone_and_in_the_dark_nothing_hangs_over(browser: Any, server: tuple[str, Path], photos: Dataset) -> None:
    visit = Visit(browser, server[0], color_scheme="dark", reduced_motion="reduce", **PHONE)
    page = visit.page
    wide = "document.documentElement.scrollWidth"
    playwright.expect(page.locator("#look-take")).to_be_visible()
    assert page.get_attribute("#look-camera", "capture") == "environment"
    visit.look_at(photos.test[0].path)
    assert page.evaluate(wide) == 320
    page.locator("nav >> text=Teach").tap()
    long = "a very long name without end " * 6
    page.fill(".card input[type=text]", long.strip())
    page.set_input_files(".card input[type=file]", [record.path for record in photos.train[:12]])
    playwright.expect(page.locator(".thumbs img")).to_have_count(12)
    assert page.evaluate(wide) == 320
    page.locator("nav >> text=Report").tap()
    page.wait_for_selector("#history table")
    assert page.evaluate(wide) == 320
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", dark))) < 60
    visit.end()


def test_a_photo_may_be_chosen_before_the_model_is_known(
    browser: Any, server: tuple[str, Path], photos: Dataset
) -> None:
    visit = Visit(browser, server[0])
    held: list[Any] = []
    visit.page.route("**/api/model", lambda route: held.append(route))  # it wants a function
    visit.page.reload()
    visit.page.set_input_files("#look-file", photos.test[0].path)
    held[0].continue_()
    visit.page.wait_for_selector("#stage:not(.waiting) rect.found", state="attached")
    visit.end()


def test_by_keyboard_alone(browser: Any, server: tuple[str, Path], photos: Dataset) -> None:
    visit = Visit(browser, server[0])
    page = visit.page
    focus = "document.activeElement.id || document.activeElement.textContent"
    playwright.expect(page).to_have_title("shapes · fdcnet")

    def tab_to(name: str) -> None:
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate(focus) == name:
                return
        raise AssertionError(f"{name} is not reached")

    tab_to("look-choose")
    page.on("filechooser", lambda chooser: chooser.set_files(photos.test[0].path))
    page.wait_for_timeout(300)  # until the browser knows that somebody waits for it
    page.keyboard.press("Enter")
    page.wait_for_selector("#stage:not(.waiting) rect.found", state="attached")
    tab_to("threshold")
    before = page.input_value("#threshold")
    page.keyboard.press("ArrowRight")
    assert int(page.input_value("#threshold")) == int(before) + 1
    tab_to("look-again")
    page.keyboard.press("Tab")
    first = page.evaluate("document.activeElement.value")
    page.keyboard.press("ArrowDown")
    visit.until(f"document.activeElement.name === 'guess' && document.activeElement.value !== '{first}'")
    page.goto(f"{visit.address}#teach")
    page.reload()
    page.wait_for_selector(".card")
    tab_to("add-class")
    page.keyboard.press("Enter")
    page.keyboard.type("heron")
    assert page.locator(".card").count() == 2
    assert page.locator(".card input[type=text]").nth(1).input_value() == "heron"
    named = "e => e.labels?.length || e.ariaLabel || e.textContent.trim()"
    assert page.evaluate(f"[...document.querySelectorAll('button, input')].every({named})")
    assert page.evaluate("document.getElementById('said').getAttribute('role')") == "status"
    visit.end()


def test_failures_are_said(browser: Any, server: tuple[str, Path], photos: Dataset, tmp_path: Path) -> None:
    visit = Visit(browser, server[0])
    page, said = visit.page, visit.page.locator("#problem")
    playwright.expect(page).to_have_title("shapes · fdcnet")
    (tmp_path / "broken.jpg").write_bytes(b"no photo")
    page.set_input_files("#look-file", tmp_path / "broken.jpg")
    playwright.expect(said.locator("p")).to_have_text(re.compile("^broken.jpg cannot be read: not an image"))
    playwright.expect(page.locator("#look-drop")).to_be_visible()
    Image.open(photos.test[0].path).save(tmp_path / "photo.tif")
    visit.look_at(tmp_path / "photo.tif")  # the browser cannot show it, the server helps
    assert page.evaluate("document.getElementById('photo').naturalWidth") == 56
    with (tmp_path / "huge.jpg").open("wb") as file:
        file.truncate(33_000_000)
    page.set_input_files("#look-file", tmp_path / "huge.jpg")
    playwright.expect(said).to_contain_text("33 MB; up to 32 MB are taken")
    page.click("#problem button")
    playwright.expect(said).to_be_hidden()
    (tmp_path / "empty.jpg").touch()
    page.set_input_files("#look-file", tmp_path / "empty.jpg")
    playwright.expect(said.locator("p")).to_have_text("empty.jpg is empty.")
    (tmp_path / "notes.txt").write_text("ten bytes.")
    page.click("nav >> text=Teach")
    page.set_input_files(".card input[type=file]", [tmp_path / name for name in ("notes.txt", "huge.jpg", "empty.jpg")])
    wrong = "Left out: notes.txt (no photo), huge.jpg (larger than 32 MB), empty.jpg (empty)."
    playwright.expect(said.locator("p")).to_have_text(wrong)
    page.click("nav >> text=Look")
    visit.context.set_offline(True)
    page.set_input_files("#look-file", photos.test[1].path)
    playwright.expect(said).to_contain_text("The server does not answer")
    visit.context.set_offline(False)
    page.set_input_files("#look-file", photos.test[1].path)
    playwright.expect(said).to_be_hidden()
    visit.context.close()
