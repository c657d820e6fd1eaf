"""The report: one self-contained HTML page about one run, or about several side by side."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from fdcnet.errors import UserError, count
from fdcnet.files import write_bytes
from fdcnet.report import diagnosis, sections
from fdcnet.report.learned import as_run_folders
from fdcnet.report.photos import photos
from fdcnet.report.rendering import render as render_template
from fdcnet.report.rendering import source
from fdcnet.report.runs import Run, load, refusing_altered_files
from fdcnet.report.tables import old_and_new
from fdcnet.report.text import classes, listing, percent

SCRIPT = source("page.js")
SCRIPT_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
# Nothing may be loaded and no other script may run, whatever a class name contains.
POLICY = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{SCRIPT_HASH}'"


def write_report(runs: Sequence[Path], target: Path, title: str | None = None) -> Path:
    """Write the page about run folders or models to `target` (a folder: report.html in it) and return its path."""
    if not runs:
        raise UserError("There is no run to report on.", "Name at least one run folder.")
    target = Path(target)
    if target.is_dir():
        target = target / "report.html"
    with as_run_folders(runs) as folders, refusing_altered_files(runs):
        write_bytes(target, render(load(folders), title).encode("utf-8", "replace"))
    return target


def render(runs: Sequence[Run], title: str | None = None) -> str:
    num_classes, num_tasks = max((run.num_classes, run.num_tasks) for run in runs)
    learned = f"{classes(num_classes)} learned in {count(num_tasks, 'task')}"
    return document(
        title or learned,
        learned if title else "Model report" if runs[0].facts.get("model") else "Run report",
        _lead(runs),
        diagnosis.problems(runs),
        [
            ("result", "Result", sections.result(runs)),
            ("lessons", "Lessons", sections.lessons(runs)),
            ("tasks", "Task by task", sections.tasks(runs)),
            ("photos", "Photos", photos(runs)),
            ("classes", "Classes", diagnosis.classes(runs)),
            ("boxes", "Boxes", diagnosis.boxes(runs)),
            ("losses", "Training", sections.losses(runs)),
            ("numbers", "All numbers", sections.numbers(runs)),
            ("making", "How it was made", sections.making(runs)),
        ],
    )


def document(title: str, eyebrow: str, lead: str, banner: Markup, parts: Sequence[tuple[str, str, Markup]]) -> str:
    """A whole page of sections (anchor, name, content). Empty sections are left out."""
    page = render_template(
        "page.html",
        title=title,
        eyebrow=eyebrow,
        lead=lead,
        banner=banner,
        sections=[part for part in parts if part[2]],
        style=Markup(source("page.css")),
        script=Markup(SCRIPT),
        policy=POLICY,
    )
    return f"{page}\n"


def _lead(runs: Sequence[Run]) -> str:
    """What was done and what came out, in two sentences."""
    names = list(dict.fromkeys(str(run.data_name) for run in runs if run.data_name and not run.facts.get("model")))
    photos = f"photos of the {'datasets' if len(names) > 1 else 'dataset'} {listing(names)}" if names else "photos"
    pace = ", task after task" if runs[0].num_tasks > 1 else ""
    return f"The model learned from {photos} with class names only{pace}; it never saw a box. {_outcome(runs)}".strip()


def _outcome(runs: Sequence[Run]) -> str:
    when = "After the last task" if all(run.is_complete for run in runs) else "So far"
    said = [(run.label, *map(_abilities, zip(*_old_and_new(run), strict=True))) for run in runs]
    old = [(label, ability) for label, ability, _ in said if ability]
    if old and len(runs) > 1:
        return f"{when}, for old classes: {'; '.join(f'{label} {ability}' for label, ability in old)}."
    if old:
        also = f", and {said[0][2]} of new classes" if said[0][2] else ""
        return f"{when}, it {old[0][1]} of old classes{also}."
    new = [f"{label if len(runs) > 1 else 'It'} {ability}" for label, _, ability in said if ability]
    return f"{'; '.join(new)}." if new else ""


def _old_and_new(run: Run) -> list[tuple[float | None, float | None]]:
    return [old_and_new(run.main, metric) for metric in ("top1_cls", "gt_known")]


def _abilities(accuracies: Sequence[float | None]) -> str:
    """recognizes 75.0 % of the photos and finds 88.0 % of the objects"""
    verbs = (("recognizes", "photos"), ("finds", "objects"))
    pairs = zip(verbs, accuracies, strict=True)
    known = [f"{verb} {percent(value)} of the {things}" for (verb, things), value in pairs if value is not None]
    return listing(known or [""])
