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
        str | None, typer.Option("--map", help="Which protocol, by its map: class or topk-mean. [default: the first]")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Of the page.")] = None,
) -> None:
    """Put methods side by side: one table, accuracy and forgetting over the tasks, the same photos seen by each.

    Writes compare.html, compare.md, compare.csv, the figures as SVG, and photos.png. Runs on other data, other classes
    or under another protocol are refused; those that differ in the seed alone become one row, their mean. Results files
    give tables and curves; the photos need run folders.
    """
    from fdcnet.report.compare import compare as open_comparable
    from fdcnet.report.compare import named_results, write_comparison
    from fdcnet.report.tables import comparison_table, narrow, to_rich

    shown = open_comparable(runs, map_)
    page = write_comparison(shown, out, title)
    console.print(to_rich(narrow(comparison_table(named_results(shown)))))
    console.print(f"Comparison: {page}", markup=False)
