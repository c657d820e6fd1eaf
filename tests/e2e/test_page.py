"""The page in a real browser: look, teach a new class, see it localized, go back. Skipped where there is none."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops

from fdcnet import geometry
from fdcnet.data.records import Dataset, Record
from fdcnet.data.synthetic import make_synthetic
from fdcnet.inference.localizer import Localizer
from fdcnet.store.versions import rollback, versions
from fdcnet.teaching.learn import learn

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
playwright.expect.set_options(timeout=30_000)  # a loaded machine is slow
LESSON = 180_000
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
    """(link, model)"""
    model = Path(shutil.copytree(made, tmp_path / "shapes"))
    with serving(model) as link:
        yield link, model


@contextmanager
def serving(model: Path, **environment: str) -> Iterator[str]:
    """The command itself; -> the link that it prints"""
    command = [sys.executable, "-m", "fdcnet", "serve", str(model), "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
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

    def __init__(self, browser: Any, link: str, **options: Any) -> None:
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
        self.address = link.partition("?")[0]
        self.page.goto(link)
        assert self.page.url == self.address  # the token has become a cookie

    def try_photo(self, photo: Path) -> None:
        self.page.set_input_files("#photo-files", photo)
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

    def check_accessibility(self) -> None:
        """axe-core finds nothing serious, neither in light nor in dark colours."""
        self.page.evaluate(AXE)
        for scheme in ("light", "dark"):
            self.page.emulate_media(color_scheme=scheme)
            found = self.page.evaluate("axe.run().then(result => result.violations)")
            serious = [
                (rule["id"], node["html"])
                for rule in found
                if rule["impact"] in ("serious", "critical")
                for node in rule["nodes"]
            ]
            assert serious == []
        self.page.emulate_media(color_scheme="light")

    def end(self) -> None:
        assert self.complaints == []
        outside = [url for url in self.asked if not url.startswith((self.address, "blob:", "data:"))]
        assert outside == []
        self.context.close()


BOX = (
    "r => { const [x, y, w, h] = ['x', 'y', 'width', 'height'].map(n => +r.getAttribute(n)); return [x, y, x+w, y+h] }"
)
AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text("utf-8")
SLIDE = "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')) }"


def test_look_teach_see_and_go_back(browser: Any, server: tuple[str, Path], photos: Dataset) -> None:
    link, model = server
    visit = Visit(browser, link)
    page, new = visit.page, photos.classes[2]
    of_new = of(photos.test, new)
    expect = playwright.expect

    # Look: the page shows what the library says, and the box follows the slider.
    [old, *_] = of(photos.test, photos.classes[0])
    visit.try_photo(old.path)
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
    expect(page.locator("#photo")).to_have_attribute("alt", f"Your photo with a box around {other.class_name}")
    assert visit.box() == pytest.approx(other.box_xyxy, abs=1.5)
    expect(page.locator("#past")).to_be_hidden()

    # Teach: cancel once, then to the end; meanwhile the old version answers.
    page.click("nav >> text=Teach")
    card = page.locator(".card")
    card.locator("input[type=file]").set_input_files([record.path for record in of(photos.train, new)[:3]])
    expect(page.locator("#start")).to_be_disabled()
    card.locator("input[type=text]").fill(new)
    expect(card.locator(".state")).to_have_text("3 photos. Add at least 1 more.")
    card.locator("input[type=file]").set_input_files([record.path for record in of(photos.train, new)[3:]])
    page.click("#start")
    page.wait_for_selector("#lesson-curves polyline", state="attached")
    page.click("nav >> text=Try")
    visit.try_photo(of_new[0].path)
    expect(page.locator(".guess")).to_have_count(2)
    page.click("nav >> text=Teach")
    page.click("#cancel")
    expect(page.locator("#lesson-title")).to_have_text("Cancelled")
    page.click("text=Back to the photos")
    expect(card.locator(".thumbs img")).to_have_count(30)
    page.click("#start")
    expect(page.locator("#lesson-title")).to_have_text(f"Learned {new}", timeout=LESSON)
    expect(page.locator("#outcome table tbody tr")).to_have_count(3)
    expect(page.locator("#outcome .pairs figure")).to_have_count(8)
    expect(page.locator("#outcome rect.was")).to_have_count(8)
    visit.until("[...document.images].filter(i => i.offsetParent).every(i => i.complete && i.naturalWidth)")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "none"  # of the title
    expect(page.locator("#lesson-curves figure").first).to_be_hidden()
    expect(page.locator("#lesson-curves figcaption").first).to_have_text("Classificationcls")
    expect(page.locator("#outcome .key")).to_have_text("nowbefore")
    visit.check_accessibility()

    # See it localized.
    taught = Localizer.load(model, "cpu")
    right = [record for record in of_new if taught.predict(record.path).class_name == new]
    assert len(right) >= 3
    page.click("text=Try a photo")
    expect(page.locator("#choose-others")).to_be_focused()
    expect(page.locator(".guess")).to_have_count(3)  # the photo that was open is asked about again
    expect(page.locator("#answer-note")).to_contain_text("one of the 3 classes it knows")
    page.eval_on_selector("#threshold", SLIDE, 30)
    overlaps = []
    for record in right:
        visit.try_photo(record.path)
        expect(page.locator("#answer-class")).to_have_text(new)
        overlaps += [geometry.iou([visit.box()], record.boxes_xyxy)[0, 0]]
    assert max(overlaps) > 0.5 and sum(overlaps) / len(overlaps) > 0.3

    # What it knew before.
    page.eval_on_selector("#after", SLIDE, 1)
    expect(page.locator("#after-note")).to_contain_text("saved after that task: 2 classes")
    expect(page.locator("#answer-class")).not_to_have_text(new)
    expect(page.locator("#answer-note")).to_contain_text("one of the 2 classes it knew")
    second = page.locator(".guess input").nth(1).input_value()
    page.locator(".guess input").nth(1).check()
    expect(page.locator("#photo")).to_have_attribute("alt", f"Your photo with a box around {second}")

    # Model: nothing has changed, so Try stays as it is.
    page.click("nav >> text=Model")
    expect(page.locator("#versions tbody tr")).to_have_count(2)
    expect(page.locator("#classes li")).to_have_count(3)
    expect(page.locator("#classes li").nth(2)).to_contain_text(f"{new}24 photos learned, 6 held out")
    expect(page.locator("#classes li").nth(2).locator("img")).to_have_count(4)
    strip = page.locator("#classes li").nth(0).locator(".strip")
    expect(strip).to_have_attribute("aria-label", re.compile(r"^Version 1: \d+.% after; Version 2: \d+.% before, "))
    expect(strip.locator("i")).to_have_count(3)
    visit.check_accessibility()
    for row, version in enumerate(versions(model)):  # as 'fdcnet history' writes it
        size = f"{round(version.num_bytes / 1e6, 1):g} MB"
        expect(page.locator("#versions tbody tr").nth(row).locator("[data-head=size]")).to_have_text(size)
    page.click("nav >> text=Try")
    expect(page.locator("#after")).to_have_value("1")
    expect(page.locator(".guess input").nth(1)).to_be_checked()

    # Back: Teach and Try follow the version that is in use.
    line, back = page.locator("#lesson-line"), page.locator("#roll-back")
    page.click("nav >> text=Teach")
    expect(line).to_contain_text("The new version is in use.")
    back.click()
    expect(page.locator("#model-summary")).to_have_text("Knows 2 classes, learned in 1 task")
    expect(line).to_have_text("Rolled back: version 1 is in use.")
    expect(page.locator("#lesson-title")).to_have_text(f"Version 2 learned {new}")
    expect(page.locator("#lesson-title")).to_be_focused()
    expect(back).to_be_hidden()
    assert new not in Localizer.load(model).classes
    page.click("nav >> text=Try")
    expect(page.locator("#answer-when")).to_have_text("Best class")
    expect(page.locator(".guess input").nth(0)).to_be_checked()
    page.click("nav >> text=Model")
    page.click("text=Use this one")
    expect(page.locator("#model-summary")).to_have_text("Knows 3 classes, learned in 2 tasks")
    page.click("nav >> text=Try")
    expect(page.locator("#after")).to_have_value("2")
    expect(page.locator(".guess")).to_have_count(3)
    page.click("nav >> text=Teach")
    expect(line).to_contain_text("The new version is in use.")
    assert visit.complaints == []
    rollback(model)  # in a terminal: the page does not know
    back.click()
    expect(page.locator("#problem")).to_contain_text("Version 1 is in use, not version 2.")
    expect(line).to_have_text("Rolled back: version 1 is in use.")
    expect(back).to_be_hidden()
    assert "409" in visit.complaints.pop()
    visit.end()


def test_skipped_photos_are_listed(browser: Any, server: tuple[str, Path], photos: Dataset, tmp_path: Path) -> None:
    visit = Visit(browser, server[0])
    page, expect = visit.page, playwright.expect
    messages, broken = page.locator("#lesson-messages"), page.locator(".thumbs .broken")
    (tmp_path / "broken.jpg").write_bytes(b"no photo")
    page.click("nav >> text=Teach")
    good = [record.path for record in of(photos.train, photos.classes[2])]
    page.fill(".card input[type=text]", "heron")
    page.set_input_files(".card input[type=file]", [*good[:3], tmp_path / "broken.jpg"])
    expect(broken.locator("span")).to_have_text("broken.jpg")
    expect(page.locator(".card .state")).to_have_text("3 photos (1 unreadable). Add at least 1 more.")
    expect(page.locator("#start")).to_be_disabled()
    assert "400" in visit.complaints.pop()  # the server could not read it, either

    # The browser cannot show a TIFF, but the server can read it.
    Image.open(good[3]).save(tmp_path / "photo.tif")
    page.set_input_files(".card input[type=file]", tmp_path / "photo.tif")
    expect(page.locator(".card .state")).to_have_text("4 photos (1 unreadable)")
    expect(page.locator(".thumbs img")).to_have_count(4)
    visit.until("[...document.querySelectorAll('.thumbs img')].every(i => i.complete && i.naturalWidth)")

    # A photo that the browser can show and the server cannot read is skipped, and the page says so.
    Image.open(good[4]).save(tmp_path / "photo.ico")
    page.set_input_files(".card input[type=file]", [*good[5:], tmp_path / "photo.ico"])
    page.click("#start")
    expect(page.locator("#outcome")).to_contain_text("1 photo skipped; see the messages below.")
    expect(messages.locator("li").first).to_be_visible()
    messages.locator("summary").click()
    page.wait_for_selector("#lesson-curves polyline", state="attached")
    expect(messages.locator("li").first).to_be_hidden()  # who closed it has seen it
    page.click("#cancel")
    expect(page.locator("#lesson-title")).to_have_text("Cancelled")
    visit.end()


def test_on_a_phone_and_in_the_dark_nothing_hangs_over(browser: Any, server: tuple[str, Path], photos: Dataset) -> None:
    visit = Visit(browser, server[0], color_scheme="dark", reduced_motion="reduce", **PHONE)
    page = visit.page
    wide = "document.documentElement.scrollWidth"
    playwright.expect(page.locator("#take-photo")).to_be_visible()
    assert page.get_attribute("#camera", "capture") == "environment"
    visit.try_photo(photos.test[0].path)
    assert page.evaluate(wide) == 320
    page.locator("nav >> text=Teach").tap()
    long = "a very long name without end " * 6
    page.fill(".card input[type=text]", long.strip())
    page.set_input_files(".card input[type=file]", [record.path for record in photos.train[:12]])
    playwright.expect(page.locator(".thumbs img")).to_have_count(12)
    assert page.evaluate(wide) == 320
    first, below = (page.locator(".thumbs li").nth(at).bounding_box() for at in (0, 3))  # three in a row
    assert below["y"] - first["y"] - first["height"] == pytest.approx(0.4 * 16, abs=1)
    playwright.expect(page.locator("text=Drop photos, or one folder per class")).to_be_hidden()  # a finger cannot
    page.locator("nav >> text=Model").tap()
    page.wait_for_selector("#versions table")
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
    visit.page.set_input_files("#photo-files", photos.test[0].path)
    release(visit, held)
    visit.page.wait_for_selector("#stage:not(.waiting) rect.found", state="attached")

    # So may folders.
    visit.page.reload()
    visit.page.click("nav >> text=Teach")
    drop(visit.page, photos.test[0].path.parents[1])
    playwright.expect(visit.page.locator("#lesson-form")).to_be_visible()
    playwright.expect(visit.page.locator("#problem")).to_be_hidden()
    release(visit, held)
    check_folders(visit.page, photos)
    visit.end()


def test_a_page_that_could_not_load_the_model_recovers(browser: Any, server: tuple[str, Path]) -> None:
    visit = Visit(browser, server[0])
    page, expect = visit.page, playwright.expect
    page.route("**/api/model", lambda route: route.abort())
    page.reload()
    expect(page.locator("#problem")).to_contain_text("The server does not answer.")
    page.unroute("**/api/model")
    page.evaluate("() => { document.dispatchEvent(new Event('visibilitychange')) }")  # the reader comes back
    expect(page.locator("#model-name")).to_have_text("shapes")
    page.click("nav >> text=Teach")
    expect(page.locator(".card")).to_have_count(1)
    expect(page.locator("#problem")).to_be_hidden()


@contextmanager
def holding(page: Any, address: str) -> Iterator[None]:
    """The page does not hear that something is done, however fast it was."""
    held: list[Any] = []
    page.route(address, lambda route: held.append(route))
    yield
    wait_for(page, held)
    for route in held:
        route.continue_()
    page.unroute(address)


def release(visit: Visit, held: list[Any]) -> None:
    wait_for(visit.page, held)
    held.pop().continue_()


def wait_for(page: Any, events: list[Any]) -> None:
    for _ in range(300):
        if events:
            return
        page.wait_for_timeout(100)
    raise AssertionError("nothing happened")


def test_the_photo_chosen_last_is_shown(
    browser: Any, server: tuple[str, Path], photos: Dataset, tmp_path: Path
) -> None:
    visit = Visit(browser, server[0])
    page = visit.page
    Image.open(photos.test[1].path).resize((40, 56)).save(tmp_path / "second.png")
    page.evaluate("() => { HTMLImageElement.prototype.decode = () => new Promise((done) => { window.decode = done }) }")
    page.set_input_files("#photo-files", photos.test[0].path)
    visit.until("!!window.decode")
    page.evaluate(
        "() => { const create = createImageBitmap; window.createImageBitmap = "
        "(...values) => new Promise((done) => { window.create = () => done(create(...values)) }) }"
    )
    page.set_input_files("#photo-files", tmp_path / "second.png")
    visit.until("!!window.create")
    page.evaluate("() => { decode(); HTMLImageElement.prototype.decode = async () => {} }")  # the first one is late
    page.evaluate("create()")
    visit.until("document.getElementById('photo').naturalWidth === 40")
    page.wait_for_selector("#stage:not(.waiting) rect.found", state="attached")
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

    tab_to("choose-photos")
    session, choosers = visit.context.new_cdp_session(page), list[Any]()
    session.on("Page.fileChooserOpened", lambda chooser: choosers.append(chooser))  # it wants a function
    session.send("Page.enable")
    session.send("Page.setInterceptFileChooserDialog", {"enabled": True})  # page.on() does not wait until it is
    page.keyboard.press("Enter")
    wait_for(page, choosers)
    page.set_input_files("#photo-files", photos.test[0].path)
    page.wait_for_selector("#stage:not(.waiting) rect.found", state="attached")
    tab_to("threshold")
    before = page.input_value("#threshold")
    page.keyboard.press("ArrowRight")
    assert int(page.input_value("#threshold")) == int(before) + 1
    tab_to("download")
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
    assert page.evaluate("document.getElementById('announcement').getAttribute('role')") == "status"
    page.click("footer >> text=the API")
    playwright.expect(page.locator("h1")).to_have_text("API")
    visit.end()


def test_failures_are_said(browser: Any, server: tuple[str, Path], photos: Dataset, tmp_path: Path) -> None:
    visit = Visit(browser, server[0])
    page, said = visit.page, visit.page.locator("#problem")
    playwright.expect(page).to_have_title("shapes · fdcnet")
    (tmp_path / "broken.jpg").write_bytes(b"no photo")
    page.set_input_files("#photo-files", tmp_path / "broken.jpg")
    playwright.expect(said.locator("p")).to_have_text(re.compile("^broken.jpg cannot be read: not an image"))
    playwright.expect(page.locator("#try-drop")).to_be_visible()
    Image.open(photos.test[0].path).save(tmp_path / "photo.tif")
    visit.try_photo(tmp_path / "photo.tif")  # the browser cannot show it, the server helps
    assert page.evaluate("document.getElementById('photo').naturalWidth") == 56
    with (tmp_path / "huge.jpg").open("wb") as file:
        file.truncate(33_000_000)
    page.set_input_files("#photo-files", tmp_path / "huge.jpg")
    playwright.expect(said).to_contain_text("Skipped: huge.jpg (larger than 32 MB).")
    page.click("#problem button")
    playwright.expect(said).to_be_hidden()
    (tmp_path / "empty.jpg").touch()
    page.set_input_files("#photo-files", tmp_path / "empty.jpg")
    playwright.expect(said.locator("p")).to_have_text("Skipped: empty.jpg (empty).")
    (tmp_path / "notes.txt").write_text("ten bytes.")
    page.click("nav >> text=Teach")
    page.set_input_files(".card input[type=file]", [tmp_path / name for name in ("notes.txt", "huge.jpg", "empty.jpg")])
    wrong = "Skipped: notes.txt (not a photo), huge.jpg (larger than 32 MB), empty.jpg (empty)."
    playwright.expect(said.locator("p")).to_have_text(wrong)
    page.click("nav >> text=Try")
    visit.context.set_offline(True)
    page.set_input_files("#photo-files", photos.test[1].path)
    playwright.expect(said).to_contain_text("The server does not answer")
    visit.context.set_offline(False)
    page.set_input_files("#photo-files", photos.test[1].path)
    playwright.expect(said).to_be_hidden()
    visit.context.close()


def test_many_photos_and_a_wrong_one(browser: Any, server: tuple[str, Path], photos: Dataset, tmp_path: Path) -> None:
    visit = Visit(browser, server[0])
    page, expect = visit.page, playwright.expect
    chosen = [record.path for record in photos.test[::3]]
    (tmp_path / "broken.jpg").write_bytes(b"no photo")
    page.set_input_files("#photo-files", [*chosen, tmp_path / "broken.jpg"])
    figures = page.locator("#grid figure")
    expect(figures).to_have_count(7)
    expect(page.locator("#grid rect.found")).to_have_count(6)
    expect(figures.nth(6)).to_contain_text("broken.jpg cannot be read: not an image")
    localizer = Localizer.load(server[1], "cpu")
    answers = [str(localizer.predict(path).class_name) for path in chosen]
    for figure, answer in zip(figures.all(), answers, strict=False):
        expect(figure.locator("b")).to_have_text(answer)
    for name in set(answers):
        expect(page.locator("#grid-summary")).to_contain_text(f"{answers.count(name)} {name}")
    expect(page.locator("#grid-summary")).to_contain_text("1 failed")
    assert "400" in visit.complaints.pop()
    visit.check_accessibility()

    # One of them, and back.
    figures.nth(2).locator("button").click()
    page.wait_for_selector("#stage:not(.waiting) rect.found", state="attached")
    expect(page.locator("#answer-class")).to_have_text(answers[2])
    page.click("#back-to-grid")
    expect(figures.first).to_be_visible()
    expect(page.locator("#result")).to_be_hidden()
    figures.nth(1).locator("button").click()
    page.wait_for_selector("#stage:not(.waiting) rect.found", state="attached")
    visit.check_accessibility()

    # The annotated photo: the box is green, and the label has its dark ground.
    with page.expect_download() as started:
        page.click("#download")
    assert started.value.suggested_filename == f"{chosen[1].stem}-annotated.jpg"
    with Image.open(started.value.path()) as picture:
        assert (picture.format, picture.size) == ("JPEG", (56, 56))
        changed = ImageChops.difference(picture.convert("RGB"), Image.open(chosen[1]).convert("RGB"))
        assert changed.getbbox() is not None and changed.getextrema()[1][1] > 60

    # The right class, carried over to Teach.
    page.click("text=Wrong? Teach it")
    expect(page.locator(".card input[type=text]")).to_be_focused()
    expect(page.locator(".card .thumbs img")).to_have_count(1)
    page.keyboard.type(photos.classes[1])
    expect(page.locator(".card .state")).to_have_text("1 photo. The model knows this class; they will be added to it.")
    expect(page.locator("#start")).to_be_enabled()

    # An unreadable photo after a grid: others can be chosen.
    page.click("nav >> text=Try")
    page.set_input_files("#photo-files", chosen)
    expect(page.locator("#grid rect.found")).to_have_count(6)
    page.set_input_files("#photo-files", tmp_path / "broken.jpg")
    expect(page.locator("#problem")).to_contain_text("broken.jpg cannot be read")
    expect(page.locator("#choose-photos")).to_be_visible()
    assert "400" in visit.complaints.pop()
    visit.end()


def test_folders_become_classes(browser: Any, server: tuple[str, Path], photos: Dataset, tmp_path: Path) -> None:
    visit = Visit(browser, server[0])
    page, expect = visit.page, playwright.expect
    page.click("nav >> text=Teach")
    expect(page.locator(".card .add")).to_have_text("+Add photos")
    page.set_input_files("#folder", photos.test[0].path.parents[1])
    check_folders(page, photos)
    expect(page.locator("#start")).to_be_enabled()
    visit.check_accessibility()

    # The same folder, dropped.
    page.reload()
    page.wait_for_selector(".card")
    drop(page, photos.test[0].path.parents[1])
    check_folders(page, photos)
    page.click("nav >> text=Try")
    drop(page, photos.test[0].path, photos.test[1].path)
    expect(page.locator("#grid rect.found")).to_have_count(2)
    drop(page, photos.test[0].path.parents[1], end=(300, 60))  # onto an element that the drag has just entered
    expect(page.locator("#grid rect.found")).to_have_count(18)
    expect(page.locator("body")).not_to_have_class("dragging")

    # Nothing in it is a photo.
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("ten bytes.")
    page.reload()
    page.click("nav >> text=Teach")
    drop(page, tmp_path / "notes")
    expect(page.locator("#problem p")).to_have_text("Skipped: todo.txt (not a photo).")
    expect(page.locator(".card")).to_have_count(1)
    visit.end()


def check_folders(page: Any, photos: Dataset) -> None:
    """A card for each folder, by name."""
    playwright.expect(page.locator(".card")).to_have_count(3)
    names = [field.input_value() for field in page.locator(".card input[type=text]").all()]
    assert names == sorted(photos.classes)
    for card in page.locator(".card").all():
        playwright.expect(card.locator("img")).to_have_count(6)


def drop(page: Any, *paths: Path, end: tuple[int, int] = (300, 400)) -> None:
    session = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind, (x, y) in (("dragEnter", (300, 400)), ("dragOver", (300, 400)), ("drop", end)):
        session.send("Input.dispatchDragEvent", {"type": kind, "x": x, "y": y, "data": data})


def choose_folders(page: Any, photos: Dataset, tmp_path: Path, *names: str) -> None:
    """Three photos of each class."""
    for record in of(photos.test, *names):
        if len(list((tmp_path / "set" / record.label).glob("*"))) < 3:
            (tmp_path / "set" / record.label).mkdir(parents=True, exist_ok=True)
            shutil.copy(record.path, tmp_path / "set" / record.label)
    page.click("nav >> text=Label")
    page.set_input_files("#label-folder", tmp_path / "set")


def screen_box(page: Any) -> dict[str, float]:
    return dict(page.locator("#label-boxes rect.found").bounding_box())


def test_check_boxes_with_mouse_and_keyboard(
    browser: Any, server: tuple[str, Path], photos: Dataset, tmp_path: Path
) -> None:
    visit = Visit(browser, server[0], viewport={"width": 1280, "height": 1000})
    page, expect = visit.page, playwright.expect
    choose_folders(page, photos, tmp_path, *photos.classes[:2])
    expect(page.locator("#label-chosen")).to_have_text("2 classes, 6 photos")
    visit.check_accessibility()
    page.click("#label-start")
    tiles = page.locator("#label-tiles .tile")
    expect(tiles).to_have_count(6)
    sure = [int(re.findall(r"(\d+).%", tile.text_content())[0]) for tile in tiles.all()]
    assert sure == sorted(sure)
    visit.check_accessibility()

    def photo(number: int) -> dict[str, Any]:
        answer: dict[str, Any] = page.evaluate("fetch('api/labels').then(answer => answer.json())")["photos"][number]
        return answer

    def check_saved(number: int, box: list[float], tolerance: float) -> None:
        """The server has the box, or gets it soon."""
        expected = pytest.approx(box, abs=tolerance)
        for _ in range(100):
            if photo(number)["box"] == expected:
                return
            page.wait_for_timeout(100)
        assert photo(number)["box"] == expected

    # Drag the lower right corner, then the box, then draw another one.
    place, state = page.locator("#label-place"), page.locator("#label-state")
    expect(place).to_have_text("Photo 1 of 6")
    stage, before, found = page.locator("#label-boxes").bounding_box(), screen_box(page), photo(0)["found"]
    pixel = photo(0)["width"] / stage["width"]
    right, bottom = before["x"] + before["width"], before["y"] + before["height"]
    inside = (before["x"] + before["width"] / 2, before["y"] + before["height"] / 2)
    drag(page, (right, bottom), inside)
    expect(state).to_contain_text("Corrected")
    half = [found[0], found[1], (found[0] + found[2]) / 2, (found[1] + found[3]) / 2]
    assert photo(0)["box"] == pytest.approx(half, abs=1) and photo(0)["reviewed"]
    smaller = screen_box(page)
    middle = (smaller["x"] + smaller["width"] / 2, smaller["y"] + smaller["height"] / 2)
    drag(page, middle, (middle[0] - 3000, middle[1]))  # it stops at the edge
    visit.until("document.querySelector('#label-boxes rect.found').getAttribute('x') === '0'")
    check_saved(0, [0, half[1], half[2] - half[0], half[3]], 1)
    page.click("#label-reject")
    expect(place).to_have_text("Photo 2 of 6")
    assert photo(0)["box"] is None
    page.keyboard.press("p")
    expect(state).to_contain_text("Rejected")
    expect(page.locator("#label-boxes rect")).to_have_count(0)
    corner = (stage["x"] + 0.25 * stage["width"], stage["y"] + 0.25 * stage["height"])
    drag(page, corner, (stage["x"] + 0.75 * stage["width"], stage["y"] + 0.5 * stage["height"]))
    expect(state).to_contain_text("Corrected")
    assert photo(0)["box"] == pytest.approx([14, 14, 42, 28], abs=2 * pixel)

    # The keyboard alone.
    page.keyboard.press("n")
    expect(place).to_have_text("Photo 2 of 6")
    found = photo(1)["found"]
    page.locator("#label-boxes [aria-label^='Upper left']").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowDown")
    expect(state).to_contain_text("Corrected")
    moved = [found[0] + 0.56, found[1] + 5 * 0.56, found[2], found[3]]  # one and five percent of 56 pixels
    check_saved(1, moved, 0.01)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Upper left corner")
    page.keyboard.press("a")
    expect(place).to_have_text("Photo 3 of 6")
    page.keyboard.press("a")
    expect(place).to_have_text("Photo 4 of 6")
    page.keyboard.press("r")
    expect(place).to_have_text("Photo 5 of 6")
    expect(page.locator("#label-summary")).to_have_text("6 photos: 4 checked, 1 of them rejected.")
    expect(tiles.nth(2)).to_contain_text("Accepted")
    visit.check_accessibility()

    # It is all there after a reload, and in the archive.
    page.reload()
    expect(place).to_have_text("Photo 5 of 6")
    expect(tiles.nth(3)).to_contain_text("Rejected")
    page.select_option("#label-format", "csv")
    with page.expect_download() as started:
        page.click("#label-export")
    with zipfile.ZipFile(started.value.path()) as archive:
        rows = archive.read("boxes.csv").decode().splitlines()[1:]
    assert started.value.suggested_filename == "labels-csv.zip"
    assert len(rows) == 5 and [row[-1] for row in rows] == ["1", "1", "1", "0", "0"]
    assert [float(value) for value in rows[1].split(",")[2:6]] == pytest.approx(moved, abs=0.01)
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#label-discard")
    expect(page.locator("#label-form")).to_be_visible()
    visit.end()


def test_checked_boxes_train_the_model_only_when_asked(
    browser: Any, server: tuple[str, Path], photos: Dataset, tmp_path: Path
) -> None:
    visit, model = Visit(browser, server[0], viewport={"width": 390, "height": 844}), server[1]
    page, expect = visit.page, playwright.expect
    choose_folders(page, photos, tmp_path, *photos.classes[:2])
    page.click("#label-start")
    learn_button, said = page.locator("#label-learn"), page.locator("#label-learning span")
    expect(learn_button).to_be_disabled()
    expect(said).to_contain_text("Checked boxes do not train the model unless you ask for it.")
    for number in (2, 3):
        page.keyboard.press("a")
        expect(page.locator("#label-place")).to_have_text(f"Photo {number} of 6")
    expect(said).to_contain_text("Learn from 2 checked boxes to make a new version, which draws the other 4 again.")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    visit.check_accessibility()
    assert len(versions(model)) == 1
    with holding(page, "**/api/labels"):
        learn_button.click()
        expect(page.locator("#label-busy")).to_have_text("Learning from boxes")
        expect(page.locator("#label-busy")).to_be_focused()
    done = "Version 2 learned from 2 checked boxes and drew 4 other boxes again."
    expect(said).to_contain_text(done, timeout=LESSON)
    expect(page.locator("#label-summary")).to_have_text("6 photos: 2 checked.")
    assert [version.box_training for version in versions(model)] == ["", "boxes learned from 2 checked boxes"]
    page.click("nav >> text=Model")
    expect(page.locator("#versions tbody tr").nth(1)).to_contain_text("boxes learned from 2 checked boxes")
    page.click("text=Use this one")
    expect(page.locator("#versions tbody tr").nth(0)).to_contain_text("in use")
    visit.end()


def drag(page: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    page.mouse.up()


def test_check_boxes_with_a_finger_and_teach_unknown_classes(
    browser: Any, server: tuple[str, Path], photos: Dataset, tmp_path: Path
) -> None:
    visit = Visit(browser, server[0], **PHONE)
    page, expect, new = visit.page, playwright.expect, photos.classes[2]
    wide = "document.documentElement.scrollWidth"
    choose_folders(page, photos, tmp_path, photos.classes[0], new)
    expect(page.locator("#label-start")).to_be_disabled()
    expect(page.locator("#label-unknown")).to_contain_text(f"The model does not know {new}.")
    assert page.evaluate(wide) == 320
    page.click("#label-teach")
    expect(page.locator(".card input[type=text]")).to_have_value(new)
    expect(page.locator(".card .thumbs img")).to_have_count(3)
    page.click("nav >> text=Label")
    page.locator("#label-groups li", has_text="does not know").locator("button").click()
    page.click("#label-start")
    expect(page.locator("#label-tiles .tile")).to_have_count(3)
    assert page.evaluate(wide) == 320

    page.locator("#label-stage").scroll_into_view_if_needed()
    box = screen_box(page)
    finger = visit.context.new_cdp_session(page)
    for kind, x in (("touchStart", box["x"]), ("touchMove", box["x"] + 5), ("touchMove", box["x"] + 20)):
        point = {"x": x, "y": box["y"]}
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [point]})
    finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    expect(page.locator("#label-state")).to_contain_text("Corrected")
    assert screen_box(page)["x"] == pytest.approx(box["x"] + 20, abs=3)
    page.locator("#label-accept").tap()
    expect(page.locator("#label-place")).to_have_text("Photo 2 of 3")
    visit.check_accessibility()
    visit.end()


def test_refine_the_boxes_while_the_instant_version_answers(browser: Any, photos: Dataset, tmp_path: Path) -> None:
    model, small = tmp_path / "shapes", ("data.size=56", "data.crop=48", "model.head_width=16", "train.batch_size=8")
    first = Dataset("first", photos.classes[:2], tuple(of(photos.train, *photos.classes[:2])))
    learn(model, first, full=False, backbone="tiny", epochs=1, device="cpu", overrides=small)
    with serving(model) as link:
        visit = Visit(browser, link)
        page, expect, new = visit.page, playwright.expect, photos.classes[2]
        page.click("nav >> text=Teach")
        page.fill(".card input[type=text]", new)
        page.set_input_files(".card input[type=file]", [record.path for record in of(photos.train, new)])
        page.click("#start")
        title = page.locator("#lesson-title")
        expect(title).to_have_text(f"Learned {new}", timeout=LESSON)  # in one pass: usable at once
        visit.check_accessibility()

        # Cancel once, then to the end. Version 2 answers meanwhile.
        page.click("#outcome >> text=Refine the boxes")
        expect(title).to_have_text("Refining the boxes")
        page.click("#cancel")
        expect(title).to_have_text("Cancelled")
        assert len(versions(model)) == 2
        page.click("nav >> text=Model")
        page.click("#refine button")
        page.click("nav >> text=Try")
        visit.try_photo(of(photos.test, new)[0].path)
        expect(page.locator(".guess")).to_have_count(3)
        answer = page.locator("#answer-class").text_content()
        page.click("nav >> text=Teach")
        expect(title).to_have_text("Refined the boxes", timeout=LESSON)
        expect(page.locator("#outcome")).to_contain_text("Photos are classified as before")
        expect(page.locator("#outcome h3")).to_have_text("Held-out photos")
        expect(page.locator("#outcome rect.was")).to_have_count(8)
        visit.check_accessibility()
        page.click("nav >> text=Try")
        expect(page.locator("#answer-class")).to_have_text(answer)
        page.click("nav >> text=Teach")
        page.click("#roll-back")
        expect(page.locator("#lesson-line")).to_have_text("Rolled back: version 2 is in use.")

        # Too few photos to hold any out.
        page.click("text=Teach more")
        page.fill(".card input[type=text]", "heron")
        page.set_input_files(".card input[type=file]", [record.path for record in of(photos.test, new)])
        page.click("#start")
        expect(title).to_have_text("Learned heron", timeout=LESSON)
        expect(page.locator("#outcome")).to_contain_text("The accuracy of new classes was not measured")
        page.click("text=Teach more")
        for name, records in (("ibis", photos.test), ("crane", photos.train)):
            page.locator(".card input[type=text]").last.fill(name)
            page.locator(".card input[type=file]").last.set_input_files(
                [r.path for r in of(records, photos.classes[0])]
            )
            page.click("#add-class")
        page.locator(".card >> text=Remove").last.click()
        page.click("#start")
        expect(title).to_have_text("Learned ibis, crane", timeout=LESSON)
        expect(page.locator("#outcome")).to_contain_text("The accuracy of ibis was not measured")
        visit.end()


def test_a_second_tab_sees_the_lesson_and_can_cancel_it(
    browser: Any, server: tuple[str, Path], photos: Dataset
) -> None:
    visit = Visit(browser, server[0])
    page, expect = visit.page, playwright.expect
    other = visit.context.new_page()
    other.goto(f"{visit.address}#teach")
    files = [record.path for record in of(photos.train, photos.classes[2])]
    for tab in (page, other):
        tab.click("nav >> text=Teach")
        tab.fill(".card input[type=text]", "heron")
        tab.set_input_files(".card input[type=file]", files)
    page.click("#start")
    expect(page.locator("#lesson-title")).to_have_text("Learning heron")
    other.click("#start")
    expect(other.locator("#problem")).to_contain_text("A lesson is already running.")
    expect(other.locator("#lesson-title")).to_have_text("Learning heron")
    other.click("#cancel")
    for tab in (page, other):
        expect(tab.locator("#lesson-title")).to_have_text("Cancelled")
        tab.click("text=Back to the photos")
        expect(tab.locator(".card .thumbs img")).to_have_count(30)  # nobody lost anything
    visit.end()


def test_an_example_after_a_lost_lesson(browser: Any, tmp_path: Path) -> None:
    killed = tmp_path / "temporary" / "fdcnet-serve-killed"
    killed.mkdir(parents=True)
    (killed / "lock").touch()
    facts = {"model": str(tmp_path.resolve() / "birds"), "classes": ["heron"]}
    (killed / "lesson.json").write_text(json.dumps(facts))
    with serving(tmp_path / "birds", TMPDIR=str(tmp_path / "temporary")) as link:
        locked = browser.new_context().new_page()
        locked.goto(link.partition("?")[0])
        playwright.expect(locked.locator("h1")).to_have_text("Token required")
        assert locked.evaluate("getComputedStyle(document.querySelector('form')).borderRadius") == "12px"
        locked.fill("input", link.partition("token=")[2])
        locked.click("text=Open the page")
        playwright.expect(locked).to_have_title("birds · fdcnet")
        locked.context.close()

        visit = Visit(browser, link)
        page, expect = visit.page, playwright.expect
        expect(page.locator("#problem")).to_contain_text("The server stopped during a lesson on heron.")
        page.click("text=Back to the photos")
        expect(page.locator(".card")).to_have_count(2)  # a new model needs two classes
        page.click("nav >> text=Label")
        expect(page.locator("#label-form")).to_be_hidden()  # it could not box anything
        page.click("text=Teach it first")
        with holding(page, "**/api/lesson"):
            page.click("text=Start with an example")
            expect(page.locator("#outcome")).to_contain_text("You can close this page")
            page.click("nav >> text=Try")
            expect(page.locator("#untaught")).to_contain_text("The model is learning its first classes.")
            expect(page.locator("#model-summary")).to_have_text("Learning its first classes")
            page.click("text=Show the lesson")
        expect(page.locator("#lesson-title")).to_have_text(re.compile("^Learned "), timeout=LESSON)
        expect(page.locator("#outcome h3")).to_have_text("New photos")
        expect(page.locator("#outcome .key")).to_have_text("box")  # nothing came before
        expect(page.locator("#model-summary")).to_contain_text("Your own first lesson replaces it.")
        visit.check_accessibility()
        page.click("nav >> text=Model")
        expect(page.locator("#classes li")).to_have_count(3)
        expect(page.locator("#refine")).to_be_hidden()  # its boxes were trained just now
        page.click("nav >> text=Teach")
        page.click("text=Try new photos")
        expect(page.locator("#grid rect.found")).to_have_count(12)
        expect(page.locator("#untaught")).to_be_hidden()
        page.click("nav >> text=Teach")
        page.click("text=Teach more")
        expect(page.locator(".card")).to_have_count(2)
        assert not (tmp_path / "birds").exists()
        visit.end()
