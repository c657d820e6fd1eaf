"""`fdcnet report`"""

from pathlib import Path
from typing import Annotated

import typer

from fdcnet.cli.console import console
from fdcnet.report.page import write_report
from fdcnet.report.runs import all_results, load
from fdcnet.report.tables import brief_table, to_rich


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are shown side by side.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page. [default: report.html in the first run]")
    ] = None,
) -> None:
    """Write one self-contained HTML page about runs: curves, overlays, tables, and how they were made."""
    page = write_report(runs, out or runs[0] / "report.html")
    console.print(to_rich(brief_table(all_results(load(runs)))))
    console.print(f"Report: {page}", markup=False)
