"""The report: one HTML page without a single outside address, for one run or several side by side."""

from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from fdcnet.errors import UserError
from fdcnet.record import RunRecord, write_bytes
from fdcnet.report import sections
from fdcnet.report.markup import Markup, tag
from fdcnet.report.sections import Run

# Nothing may be loaded and no script may run, whatever a class name tries.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(runs: Sequence[Path], target: Path, title: str | None = None) -> Path:
    """Write the page about these run folders to `target` (a folder: report.html in it) and return its path."""
    if not runs:
        raise UserError("There is no run to report on.", "Name at least one run folder.")
    shown = load(runs)
    target = Path(target)
    if target.is_dir():
        target = target / "report.html"
    write_bytes(target, render(shown, title or sections.task_line(shown)).encode())
    return target


def load(folders: Sequence[Path]) -> list[Run]:
    """Open the runs and name each by its method, or by its folder where two share a method."""
    records = [RunRecord.open(folder) for folder in folders]
    methods = [(record.run().get("config") or {}).get("method") or record.folder.resolve().name for record in records]
    shared = {method for method, count in Counter(methods).items() if count > 1}
    loaded: list[Run] = []
    for record, method in zip(records, methods, strict=True):
        label = f"{method} ({record.folder.resolve().name})" if method in shared else str(method)
        taken = {run.label for run in loaded}
        number = 2
        unique = label
        while unique in taken:
            unique, number = f"{label} #{number}", number + 1
        loaded.append(Run(unique, len(loaded), record.run(), record.metrics(), record.results(), record.examples(), record.folder))
    return loaded


def render(runs: Sequence[Run], title: str) -> str:
    parts = [
        ("result", "Result", sections.headline(runs)),
        ("tasks", "Task by task", sections.over_tasks(runs)),
        ("photos", "What it sees", sections.photos(runs)),
        ("losses", "Training", sections.losses(runs)),
        ("numbers", "All numbers", sections.numbers(runs)),
        ("making", "How it was made", sections.making(runs)),
    ]
    parts = [part for part in parts if part[2]]
    links = [tag("a", name, href=f"#{anchor}") for anchor, name, _ in parts[1:]]
    body = tag(
        "body",
        tag("header", tag("p", sections.task_line(runs) if title != sections.task_line(runs) else "Run report", class_="eyebrow"), tag("h1", title), sections.verdict(runs), tag("nav", links, aria_label="Sections")),
        tag("main", [_section(anchor, name, content) for anchor, name, content in parts]),
        tag("footer", tag("p", "Written by fdcnet. This page is complete in itself: it loads nothing and runs no script.")),
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(files("fdcnet.report").joinpath("page.css").read_text(encoding="utf-8"))),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def _section(anchor: str, name: str, content: Markup) -> Markup:
    heading = tag("h2", name, class_="unseen" if anchor == "result" else None)
    return tag("section", heading, content, id=anchor)
