"""`fdcnet report`"""

from pathlib import Path
from typing import Annotated

import typer

from fdcnet.cli.console import console
from fdcnet.record import RunRecord
from fdcnet.report.page import write_report
from fdcnet.report.tables import summary_table, to_rich


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are shown side by side.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page. [default: report.html in the first run]")
    ] = None,
) -> None:
    """Write one self-contained HTML page about runs: curves, overlays, tables, and how they were made."""
    page = write_report(runs, out or runs[0] / "report.html")
    results = {run.name: RunRecord.open(run).results().get("results", {}) for run in runs}
    console.print(to_rich(summary_table(results)))
    console.print(f"Report: {page}", markup=False)
