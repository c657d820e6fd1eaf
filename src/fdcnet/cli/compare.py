"""`fdcnet compare`"""

from pathlib import Path
from typing import Annotated

import typer

from fdcnet.cli.console import console


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders or results files, in the order of the rows.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page, the tables and the figures.")] = Path(
        "runs/compare"
    ),
    map_: Annotated[
        str | None, typer.Option("--map", help="Protocol to compare, by its map: class or topk-mean. [default: first]")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """Compare methods in one table, with accuracy and forgetting over the tasks and the same photos for each.

    Writes compare.html, compare.md, compare.csv, the figures as SVG, and photos.png. Runs must share data, classes and
    protocol. Runs that differ only in the seed become one row with their mean. Photos need run folders; results files
    are enough for tables and curves.

    Example: `fdcnet compare runs/fdcnet runs/finetune`
    """
    from fdcnet.report.compare import compare as open_comparable
    from fdcnet.report.compare import named_results, write_comparison
    from fdcnet.report.runs import refusing_altered_files
    from fdcnet.report.tables import comparison_table, narrow, to_rich

    with refusing_altered_files(runs):
        shown = open_comparable(runs, map_)
        page = write_comparison(shown, out, title)
        console.print(to_rich(narrow(comparison_table(named_results(shown)))))
    console.print(f"Comparison: {page}", markup=False)
