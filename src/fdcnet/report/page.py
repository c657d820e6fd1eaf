"""The report: one HTML page without a single outside address, for one run or several side by side."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from fdcnet.errors import UserError
from fdcnet.files import write_bytes
from fdcnet.report.details import making, numbers
from fdcnet.report.headline import headline, task_line, verdict
from fdcnet.report.markup import Markup, tag
from fdcnet.report.photos import photos
from fdcnet.report.progress import losses, over_tasks
from fdcnet.report.runs import Run, load

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
    write_bytes(target, render(shown, title).encode("utf-8", "replace"))
    return target


def render(runs: Sequence[Run], title: str | None = None) -> str:
    """Sections in the order in which a reader wants them; one that has nothing to show is left out."""
    sections = [
        ("result", "Result", headline(runs)),
        ("tasks", "Task by task", over_tasks(runs)),
        ("photos", "What it sees", photos(runs)),
        ("losses", "Training", losses(runs)),
        ("numbers", "All numbers", numbers(runs)),
        ("making", "How it was made", making(runs)),
    ]
    learned = task_line(runs)
    header = [
        tag("p", learned if title else "Run report", class_="eyebrow"),
        tag("h1", title or learned),
        verdict(runs),
    ]
    return document(title or learned, header, sections)


def document(title: str, header: Sequence[Markup], sections: Sequence[tuple[str, str, Markup]]) -> str:
    """A whole page of sections (anchor, name, content), without those that are empty."""
    sections = [section for section in sections if section[2]]
    links = [tag("a", name, href=f"#{anchor}") for anchor, name, _ in sections[1:]]
    body = tag(
        "body",
        tag("header", *header, tag("nav", links, aria_label="Sections")),
        tag("main", [_section(*section) for section in sections]),
        tag("footer", tag("p", "Written by fdcnet. This page is complete in itself: it loads and runs nothing.")),
    )
    return "<!DOCTYPE html>\n" + tag("html", _head(title), body, lang="en") + "\n"


def _head(title: str) -> Markup:
    style = Markup(files("fdcnet.report").joinpath("page.css").read_text(encoding="utf-8"))
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", style),
    )


def _section(anchor: str, name: str, content: Markup) -> Markup:
    heading = tag("h2", name, class_="unseen" if anchor == "result" else None)
    return tag("section", heading, content, id=anchor)
