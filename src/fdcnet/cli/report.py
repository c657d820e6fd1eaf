"""`fdcnet report`"""

from pathlib import Path
from typing import Annotated

import typer

from fdcnet.cli.console import console
from fdcnet.errors import UserError


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders. Several are shown side by side.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Path of the page. [default: report.html in the first run]")
    ] = None,
) -> None:
    """Write one self-contained HTML page about runs: curves, photos, tables, and how they were made.

    Example: `fdcnet report runs/NAME`
    """
    from fdcnet.report.page import write_report
    from fdcnet.report.runs import all_results, load
    from fdcnet.report.tables import brief_table, to_rich

    for run in runs:
        if run.is_file():
            raise UserError(f"{run} is a file, not a run folder.", "'fdcnet compare' also takes results files.")
        _refuse_model(run)
    page = write_report(runs, out or runs[0] / "report.html")
    console.print(to_rich(brief_table(all_results(load(runs)))))
    console.print(f"Report: {page}", markup=False)


def _refuse_model(path: Path) -> None:
    from fdcnet.store.bundle import has_bundle

    if (path / "run.json").is_file() or not has_bundle(path):
        return
    own_run = (path.parent / "run.json").is_file()
    remedy = f"Name its run: {path.parent}" if own_run else f"'fdcnet history {path}' shows what it has learned."
    raise UserError(f"{path} is a model; a report is about a run of 'fdcnet train'.", remedy)
