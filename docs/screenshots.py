"""Take the pictures of the page and of the report in docs/images: a desktop and a phone, light and dark, in one file.

    python docs/screenshots.py page MODEL PHOTO NEW_PHOTOS/ SORTED_PHOTOS/
    python docs/screenshots.py report runs/demo/report.html

MODEL was made by light lessons; it is copied first. NEW_PHOTOS/ has a folder for each class to teach, SORTED_PHOTOS/ a
folder for each known class to box. Needs playwright and Chromium.
"""

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
DESKTOP, PHONE = (1280, 830), (390, 844)
VARIANTS = [(size, scheme) for size in (DESKTOP, PHONE) for scheme in ("light", "dark")]
GAP, DESKTOP_WIDTH = 12, 700
MAX_BYTES = 150_000
SORTED, SHOWN_BOX = "#label-tiles .tile", "#stage:not(.waiting) rect.found"
LOADED = """() => [...document.images].every((image) =>
  image.complete || !image.offsetParent || image.getBoundingClientRect().top > innerHeight)"""

SCROLL = """() => {
  const top = document.querySelector("#classes").getBoundingClientRect().top + scrollY;
  scrollTo({ top: top - 20, behavior: "instant" });
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    of_page = parts.add_parser("page")
    for name in ("model", "photo", "new", "sorted"):
        of_page.add_argument(name, type=Path)
    parts.add_parser("report").add_argument("report", type=Path)
    arguments = parser.parse_args()
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        if arguments.part == "report":
            picture_report(browser, arguments.report.resolve().as_uri())
        else:
            with tempfile.TemporaryDirectory() as folder:
                copy = shutil.copytree(arguments.model, Path(folder) / arguments.model.name)
                with serving(copy) as link:
                    picture_page(browser, link, arguments.photo, arguments.new, arguments.sorted)


def picture_page(browser: Browser, link: str, photo: Path, new: Path, sorted_photos: Path) -> None:
    pages = open_pages(browser, link)

    def every(work: Callable[[Page], object]) -> None:
        for page in pages:
            work(page)

    every(lambda page: page.set_input_files("#photo-files", photo))
    every(lambda page: page.wait_for_selector(SHOWN_BOX, state="attached"))
    save("page-try", pages)

    every(lambda page: page.click("nav >> text=Teach"))
    every(lambda page: page.set_input_files("#folder", new))
    every(lambda page: page.wait_for_selector("#start:enabled"))
    save("page-teach", pages)
    pages[0].click("#start")
    pages[0].wait_for_selector("#try-it")
    every(lambda page: page.reload())
    every(lambda page: page.wait_for_selector("#try-it"))
    save("page-learned", pages)

    pages[0].click("#outcome >> text=Refine the boxes")  # takes minutes: enough time for all pictures
    every(lambda page: page.reload())
    every(lambda page: page.wait_for_selector("#lesson-line:text(' left')"))
    save("page-learning", pages)
    pages[0].click("#cancel")
    pages[0].wait_for_selector("#lesson-title:text('Cancelled')")

    every(lambda page: page.click("nav >> text=Label"))
    pages[0].set_input_files("#label-folder", sorted_photos)
    pages[0].click("#label-start")
    pages[0].wait_for_selector(SORTED)
    every(lambda page: page.reload())
    every(lambda page: page.wait_for_selector(SORTED))
    save("page-label", pages)

    every(lambda page: page.click("nav >> text=Model"))
    every(lambda page: page.wait_for_selector("#classes .strip"))
    save("page-model", pages)


def picture_report(browser: Browser, address: str) -> None:
    pages = open_pages(browser, address)
    save("report-top", pages)
    for page in pages:
        page.evaluate(SCROLL)
    save("report-classes", pages)


def open_pages(browser: Browser, address: str) -> list[Page]:
    pages = []
    for (width, height), scheme in VARIANTS:
        is_phone = width < DESKTOP[0]
        page = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
            has_touch=is_phone,
            is_mobile=is_phone,
        )
        page.set_default_timeout(900_000)
        page.goto(address)
        pages.append(page)
    return pages


def save(name: str, pages: list[Page]) -> None:
    """Desktops one above the other, phones beside them."""
    shots = []
    for page in pages:
        while not page.evaluate(LOADED):
            page.wait_for_timeout(100)
        page.wait_for_timeout(300)
        shots.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    height = round(DESKTOP[1] * DESKTOP_WIDTH / DESKTOP[0])
    total = 2 * height + GAP
    phone = round(PHONE[0] * total / PHONE[1])
    whole = Image.new("RGB", (DESKTOP_WIDTH + 2 * (GAP + phone), total), "#8d8f96")
    for row, shot in enumerate(shots[:2]):
        whole.paste(shot.resize((DESKTOP_WIDTH, height), Image.Resampling.LANCZOS), (0, row * (height + GAP)))
    for column, shot in enumerate(shots[2:]):
        left = DESKTOP_WIDTH + GAP + column * (phone + GAP)
        whole.paste(shot.resize((phone, total), Image.Resampling.LANCZOS), (left, 0))
    file = IMAGES / f"{name}.jpg"
    for quality in range(80, 40, -4):
        whole.save(file, quality=quality, optimize=True)
        if file.stat().st_size <= MAX_BYTES:
            return


@contextmanager
def serving(model: Path) -> Iterator[str]:
    """-> the link to the page"""
    command = [sys.executable, "-m", "fdcnet", "serve", str(model), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
