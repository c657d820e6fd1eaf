"""Several methods on the same stream of tasks: one table, the figures of a paper, and one page with all of it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fdcnet.errors import UserError, count
from fdcnet.files import write_bytes
from fdcnet.report import sections
from fdcnet.report.charts import standalone
from fdcnet.report.comparable import merge_seeds, refuse_incomparable, with_map
from fdcnet.report.curves import accuracy_curve, forgetting_curve
from fdcnet.report.diagnosis import problems
from fdcnet.report.page import document
from fdcnet.report.photos import gallery, gallery_picture
from fdcnet.report.runs import Run, distinct, key_metrics, opened
from fdcnet.report.tables import Results, comparison_table, results_table, to_csv, to_markdown
from fdcnet.report.text import classes, listing


def compare(paths: Sequence[Path], map_: str | None = None) -> list[Run]:
    """Open run folders or results files for a common table. Runs that cannot be compared are refused.

    Runs that differ only in the seed become one row. If there is no other run, that row follows the runs.
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
    """Write page, tables and figures into `folder` and return the path of the page."""
    named = named_results(runs)
    files = {
        "compare.md": to_markdown(comparison_table(named)).encode(),
        "compare.csv": to_csv(results_table(named)).encode(),
    }
    for metric in key_metrics(runs):
        files[f"{metric}.svg"] = standalone(accuracy_curve(runs, metric)).encode()
        if forgotten := forgetting_curve(runs, metric):
            files[f"forgetting-{metric}.svg"] = standalone(forgotten).encode()
    if picture := gallery_picture(runs):
        files["photos.png"] = picture
    files["compare.html"] = _page(runs, title).encode("utf-8", "replace")
    for name, content in files.items():
        write_bytes(folder / name, content)
    return folder / "compare.html"


def _page(runs: Sequence[Run], title: str | None) -> str:
    num_classes, num_tasks = max((run.num_classes, run.num_tasks) for run in runs)
    backbones = listing(list(dict.fromkeys(str(run.backbone) for run in runs)))
    methods = list(dict.fromkeys(str(run.main.get("method")) for run in runs))
    what = count(len(methods), "method") if len(methods) > 1 else f"Runs of {methods[0]}"
    return document(
        title or f"{what} compared",
        "Comparison",
        f"{classes(num_classes)} of the dataset {runs[0].data_name}, learned in {count(num_tasks, 'task')} with the "
        f"backbone {backbones}. All runs used the same photos and classes in the same order.",
        problems(runs),
        [
            ("result", "Result", sections.comparison(runs)),
            ("tasks", "Task by task", sections.accuracy(runs)),
            ("photos", "Photos", gallery(runs)),
            ("forgetting", "Forgetting", sections.forgetting(runs)),
            ("settings", "What differs", sections.differences(runs)),
        ],
    )
