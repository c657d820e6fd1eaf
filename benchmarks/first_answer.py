"""Seconds from starting `fdcnet serve` to the first answer on its page, in a real Chromium that is already running.

The peer loads the model and predicts the same photo in a fresh Python process, without a page. Both are measured in
alternation, and the fastest of several runs counts: other programs can only make a run slower. They hardly change the
processor time, which is that of the server and of the peer, without the browser.

    python benchmarks/first_answer.py MODEL PHOTO [--repeats N]

Needs playwright. Run it with OMP_WAIT_POLICY=passive.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

LIBRARY = (
    "import sys; from fdcnet import Localizer; Localizer.load(sys.argv[1]).predict(sys.argv[2]).to_dict(heat=True)"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("photo", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    pages: list[dict[str, float]] = []
    library: list[dict[str, float]] = []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(1 + arguments.repeats):  # the first run reads the files into memory
            pages.append(first_answer(browser, arguments.model, arguments.photo))
            library.append(library_answer(arguments.model, arguments.photo))
    print("seconds until: " + ", ".join(f"{what} {least(pages, what):.2f}" for what in ("link", "page", "answer")))
    for name, what in (("page_first_answer_seconds", "answer"), ("page_first_answer_processor_seconds", "processor")):
        value, peer = least(pages, what), least(library, what)
        row: dict[str, Any] = {"name": name, "value": round(value, 2), "unit": "s", "ratio": round(value / peer, 2)}
        row |= {"peer": "Localizer.load and predict in a fresh Python process", "peer_value": round(peer, 2)}
        print(json.dumps(row))


def least(runs: list[dict[str, float]], what: str) -> float:
    return min(run[what] for run in runs[1:])


def children_seconds() -> float:
    """Processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def first_answer(browser: Browser, model: Path, photo: Path) -> dict[str, float]:
    """Seconds since the start until the link is printed, the page is loaded, and the photo has its box."""
    context = browser.new_context()
    page = context.new_page()
    used = children_seconds()
    started = time.perf_counter()
    command = [sys.executable, "-m", "fdcnet", "serve", str(model), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            link = server.stdout.readline().strip()
            printed = time.perf_counter()
            page.goto(link)
            loaded = time.perf_counter()
            page.set_input_files("#photo-files", photo)
            page.wait_for_selector("#stage:not(.waiting) rect.found", state="attached", timeout=120_000)
            answered = time.perf_counter()
        finally:
            server.terminate()
    context.close()
    times = {"link": printed - started, "page": loaded - started, "answer": answered - started}
    return times | {"processor": children_seconds() - used}


def library_answer(model: Path, photo: Path) -> dict[str, float]:
    used, started = children_seconds(), time.perf_counter()
    subprocess.run([sys.executable, "-c", LIBRARY, str(model), str(photo)], check=True)
    return {"answer": time.perf_counter() - started, "processor": children_seconds() - used}


if __name__ == "__main__":
    main()
