"""Several methods on the same stream: one table, the figures of a paper, and all of it on one page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fdcnet.errors import UserError, count
from fdcnet.files import write_bytes
from fdcnet.report.charts import standalone
from fdcnet.report.comparable import differences, refuse_incomparable, with_map
from fdcnet.report.curves import accuracy_curve, forgetting_curve, lost_by_task
from fdcnet.report.gallery import gallery, gallery_picture
from fdcnet.report.markup import Markup, join, tag
from fdcnet.report.page import document
from fdcnet.report.runs import Run, distinct, key_metrics, opened
from fdcnet.report.seeds import merge_seeds
from fdcnet.report.tables import (
    METRICS,
    Results,
    at_once,
    comparison_table,
    results_table,
    to_csv,
    to_html,
    to_markdown,
)
from fdcnet.report.words import classes, glossary, listing, protocol_in_words


def compare(paths: Sequence[Path], map_: str | None = None) -> list[Run]:
    """Run folders or results files, ready for a common table; refused if they do not belong into one.

    Runs that differ in the seed alone become one row; where there is no other, it stands below them.
    """
    paths = list({path.resolve(): path for path in paths}.values())
    if len(paths) < 2:
        raise UserError("There is nothing to compare.", "Name two or more run folders or results files.")
    runs = with_map(opened(paths), map_)
    refuse_incomparable(distinct(runs))
    merged = merge_seeds(runs)
    if len(merged) > 1:
        return distinct(merged)
    return [*distinct(runs), replace(merged[0], label=f"mean of {len(runs)} seeds", style=len(runs), examples={})]


def named_results(runs: Sequence[Run]) -> dict[str, Results]:
    return {run.label: run.main for run in runs}


def write_comparison(runs: Sequence[Run], folder: Path, title: str | None = None) -> Path:
    """Page, tables and figures into `folder`; -> the page."""
    named = named_results(runs)
    files = {
        "compare.md": to_markdown(comparison_table(named)).encode(),
        "compare.csv": to_csv(results_table(named)).encode(),
    }
    for metric in key_metrics(runs):
        files[f"{metric}.svg"] = standalone(accuracy_curve(runs, metric)).encode()
        forgotten = forgetting_curve(runs, metric)
        if forgotten:
            files[f"forgetting-{metric}.svg"] = standalone(forgotten).encode()
    picture = gallery_picture(runs)
    if picture:
        files["photos.png"] = picture
    files["compare.html"] = _page(runs, title).encode("utf-8", "replace")
    for name, content in files.items():
        write_bytes(folder / name, content)
    return folder / "compare.html"


def _page(runs: Sequence[Run], title: str | None) -> str:
    num_classes, num_tasks = max((run.num_classes, run.num_tasks) for run in runs)
    stream = f"{classes(num_classes)} in {count(num_tasks, 'task')}"
    backbones = listing(list(dict.fromkeys(str(run.backbone) for run in runs)))
    methods = list(dict.fromkeys(str(run.main.get("method")) for run in runs))
    what = count(len(methods), "method") if len(methods) > 1 else f"Runs of {methods[0]}"
    title = title or f"{what} compared"
    lead = f"{runs[0].data_name}, {stream}, {backbones}: the same photos in the same order for all."
    header = [tag("p", "Comparison", class_="eyebrow"), tag("h1", title), tag("p", lead, class_="lead")]
    sections = [
        ("result", "Result", _table(runs)),
        ("tasks", "Task by task", _curves(runs)),
        ("photos", "What they see", gallery(runs)),
        ("forgetting", "Forgetting", _forgetting(runs)),
        ("settings", "What differs", _settings(runs)),
    ]
    return document(title, header, sections)


def _table(runs: Sequence[Run]) -> Markup:
    caption = "In percent; forgetting in percentage points. Average: over the tasks. Last: after the last one."
    if any(at_once(run.main) for run in runs):
        caption += " Below joint: by how much it ends below training on all classes at once."
    if any("seeds" in run.main for run in runs):
        caption += " Of several seeds: mean ± standard deviation; curves show the mean, photos what the first one sees."
    how = protocol_in_words(runs[0].main.get("protocol") or {})
    return join(
        to_html(comparison_table(named_results(runs)), caption),
        tag("p", tag("b", "How it was measured. "), how) if how else None,
        glossary(),
    )


def _curves(runs: Sequence[Run]) -> Markup:
    figures = [_figure(f"{METRICS[metric]} after each task", accuracy_curve(runs, metric)) for metric in _key(runs)]
    alone = [run.label for run in runs if at_once(run.main)]
    note = f" {listing(alone)} learned all classes at once: a single point." if alone else ""
    text = f"Accuracy over all classes learned so far, in percent.{note}"
    return join(tag("p", text), tag("div", figures, class_="pair"))


def _forgetting(runs: Sequence[Run]) -> Markup:
    charts = [(METRICS[metric], forgetting_curve(runs, metric)) for metric in _key(runs)]
    figures = [_figure(f"{name}: points lost", chart) for name, chart in charts if chart]
    tables = [lost_by_task(runs, metric) for metric in _key(runs)]
    if not figures:
        return Markup("")
    return join(
        tag("p", "How far the classes of earlier tasks have fallen below their best, on average over those tasks."),
        tag("div", figures, class_="pair"),
        tag("h3", "What each task’s classes lost by the end"),
        tag("div", [table for table in tables if table], class_="pair"),
    )


def _settings(runs: Sequence[Run]) -> Markup:
    found = differences(runs)
    told = [run for run in runs if run.facts.get("config")]
    if len(told) < 2:
        return Markup("")
    if not found:
        return tag("p", "All settings are the same.")
    head = tag("tr", tag("th", "Setting", scope="col"), [tag("th", run.label, scope="col") for run in runs])
    rows = [
        tag("tr", tag("th", tag("code", key), scope="row"), [tag("td", value) for value in values])
        for key, values in found.items()
    ]
    text = "Settings that are not the same for all. Everything that is not listed here is."
    return join(
        tag("p", text),
        tag("div", tag("table", tag("thead", head), tag("tbody", rows)), class_="scroll", tabindex="0"),
    )


def _figure(caption: str, chart: Markup) -> Markup:
    return tag("figure", tag("figcaption", caption), chart)


def _key(runs: Sequence[Run]) -> tuple[str, ...]:
    return tuple(reversed(key_metrics(runs)))
