"""`fdcnet data check`"""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from fdcnet.cli import options
from fdcnet.cli.console import console, watcher
from fdcnet.errors import count

if TYPE_CHECKING:
    from fdcnet.data.check import Report, SplitCounts, Spread

app = typer.Typer(no_args_is_help=True, help="Check photos before training.")
COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}
SHOWN = 3


@app.command()
def check(
    path: Annotated[str, typer.Argument(help=f"Photos: {options.LAYOUTS}.")],
    format: options.Format = "auto",
    classes: Annotated[int, typer.Option(help="Check the first N classes only; 0: all.")] = 0,
) -> None:
    """Open every photo and report problems: unreadable files, duplicates, empty classes, wrong boxes.

    The exit code is 1 if there are errors.

    Example: `fdcnet data check photos/`
    """
    from fdcnet.data.check import check as run_check
    from fdcnet.data.sources import read

    dataset = read(path, format, classes)
    with closing(watcher()) as listener:
        report = run_check(dataset, progress=lambda done, total: listener.progress("opening photos", done, total))
    _print(report)
    for note in dataset.notes:
        console.print(note, markup=False)
    if not report.ok:
        raise typer.Exit(1)


def _print(report: "Report") -> None:
    console.print(f"{report.name}: {count(report.num_classes, 'class')}", markup=False)
    for name, split in (("train", report.train), ("test", report.test)):
        console.print(f"  {name:<6} {_counts(split)}", markup=False)
    console.print(
        f"  size   {_spread(report.widths)} wide, {_spread(report.heights)} high (min / median / max)", markup=False
    )
    for finding in report.findings:
        console.print(f"[{COLOURS[finding.severity]}]{finding.severity}[/]", end=" ")
        console.print(f"{finding.what}\n  {finding.what_to_do}", markup=False)
        for example in finding.examples[:SHOWN]:
            console.print(f"    {example}", markup=False, highlight=False)
        if len(finding.examples) > SHOWN:
            console.print(f"    and {len(finding.examples) - SHOWN} more", markup=False)
    if not report.findings:
        console.print("No problems found.")


def _counts(split: "SplitCounts") -> str:
    return (
        f"{split.images} photos, {split.boxes} boxes, {_spread(split.per_class)} photos per class (min / median / max)"
    )


def _spread(spread: "Spread") -> str:
    return f"{spread.minimum:g} / {spread.median:g} / {spread.maximum:g}"
