"""`fdcnet report`"""

from pathlib import Path
from typing import Annotated

import typer

from fdcnet.cli import options
from fdcnet.cli.console import console, watcher
from fdcnet.errors import UserError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders, or models made by `fdcnet learn`. Several are shown side by side."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Path of the page. [default: report.html in the first folder]")
    ] = None,
    pdf: Annotated[
        bool, typer.Option("--pdf", help="Also write a PDF next to the page. Needs Chromium, Chrome or Edge.")
    ] = False,
    device: options.Device = None,
) -> None:
    """Write one self-contained HTML page about runs: curves, photos, tables, and how they were made.

    A model made by `fdcnet learn` is evaluated on the photos that it holds out.

    Example: `fdcnet report runs/NAME`, or `fdcnet report birds --pdf`
    """
    from fdcnet.report.learned import as_run_folders, run_folder_of
    from fdcnet.report.page import write_report
    from fdcnet.report.pdf import find_browser, write_pdf
    from fdcnet.report.runs import all_results, load
    from fdcnet.report.tables import BRIEF, brief_table, results_table, to_rich

    for run in runs:
        if run.is_file():
            raise UserError(f"{run} is a file, not a run folder.", "'fdcnet compare' also takes results files.")
    if pdf:
        find_browser()
    with as_run_folders(runs, device or "auto", watcher()) as folders:
        page = write_report(folders, out or (run_folder_of(runs[0]) or runs[0]) / "report.html")
        results = all_results(load(folders))
    table = brief_table(results) if len(results) > 1 else results_table(results, BRIEF, split=())
    console.print(to_rich(table))
    console.print(f"Report: {page}", markup=False)
    if pdf:
        console.print(f"PDF: {write_pdf(page, page.with_suffix('.pdf'))}", markup=False)
