"""The report: one self-contained HTML page about one run, or about several side by side."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from fdcnet.errors import UserError, count
from fdcnet.files import write_bytes
from fdcnet.report import sections
from fdcnet.report.photos import photos
from fdcnet.report.rendering import render as render_template
from fdcnet.report.rendering import source
from fdcnet.report.runs import Run, key_metrics, load
from fdcnet.report.tables import old_and_new
from fdcnet.report.text import classes, listing, percent

# Nothing may be loaded and no script may run, whatever a class name contains.
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
    num_classes, num_tasks = max((run.num_classes, run.num_tasks) for run in runs)
    learned = f"{classes(num_classes)} learned in {count(num_tasks, 'task')}"
    return document(
        title or learned,
        learned if title else "Run report",
        _lead(runs),
        [
            ("result", "Result", sections.result(runs)),
            ("tasks", "Task by task", sections.tasks(runs)),
            ("photos", "Photos", photos(runs)),
            ("losses", "Training", sections.losses(runs)),
            ("numbers", "All numbers", sections.numbers(runs)),
            ("making", "How it was made", sections.making(runs)),
        ],
    )


def document(title: str, eyebrow: str, lead: str, parts: Sequence[tuple[str, str, Markup]]) -> str:
    """A whole page of sections (anchor, name, content). Empty sections are left out."""
    shown = [part for part in parts if part[2]]
    style = Markup(source("page.css"))
    page = render_template(
        "page.html", title=title, eyebrow=eyebrow, lead=lead, sections=shown, style=style, policy=POLICY
    )
    return f"{page}\n"


def _lead(runs: Sequence[Run]) -> str:
    """What was done and what came out, in two sentences."""
    names = list(dict.fromkeys(str(run.data_name) for run in runs if run.data_name))
    photos = f"photos of the {'datasets' if len(names) > 1 else 'dataset'} {listing(names)}" if names else "photos"
    pace = ", task after task" if runs[0].num_tasks > 1 else ""
    return f"The model learned from {photos} with class names only{pace}; it never saw a box. {_outcome(runs)}".strip()


def _outcome(runs: Sequence[Run]) -> str:
    metric = "top1_loc" if "top1_loc" in key_metrics(runs) else "top1_cls"
    verb, things = ("names and finds", "objects") if metric == "top1_loc" else ("recognizes", "photos")
    known = [(run.label, *old_and_new(run.main, metric)) for run in runs]
    old = [(label, percent(value)) for label, value, _ in known if value is not None]
    complete = all(len(run.measured_tasks) == run.num_tasks for run in runs)
    when = "After the last task" if complete else "So far"
    if old and len(runs) > 1:
        (first, share), *others = old
        parts = [f"{first} still {verb} {share} of the {things} of old classes"]
        return f"{when}, {listing(parts + [f'{label} {share}' for label, share in others])}."
    if old:
        new = percent(known[0][2])
        return f"{when}, it {verb} {old[0][1]} of the {things} of old classes and {new} of the new ones."
    parts = [f"{label} {verb} {percent(value)} of the {things}" for label, _, value in known if value is not None]
    return f"{listing(parts)}." if parts else ""
