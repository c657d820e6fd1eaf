"""`fdcnet data check`"""

from typing import Annotated

import typer

from fdcnet.cli.console import console, watcher
from fdcnet.data.check import Report, SplitCounts, Spread
from fdcnet.data.check import check as run_check
from fdcnet.data.sources import read

app = typer.Typer(no_args_is_help=True, help="Photos: are they what you think they are?")
COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}
SHOWN = 3


@app.command()
def check(
    path: Annotated[str, typer.Argument(help="A folder or file of photos.")],
    format: Annotated[str, typer.Option(help="auto, folders, csv, coco, cub, imagenet, wsol.")] = "auto",
    classes: Annotated[int, typer.Option(help="Look at the first N classes only; 0: all.")] = 0,
) -> None:
    """Open every photo and say what would spoil training: unreadable files, duplicates, empty classes, wrong boxes.

    Exit code 1 if anything serious was found.
    """
    dataset = read(path, format, classes)
    listener = watcher()
    report = run_check(dataset, progress=lambda done, total: listener.progress("opening photos", done, total))
    _print(report)
    for note in dataset.notes:
        console.print(note, markup=False)
    if not report.ok:
        raise typer.Exit(1)


def _print(report: Report) -> None:
    console.print(f"{report.name}: {report.num_classes} classes", markup=False)
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
        console.print("Nothing to object to.")


def _counts(split: SplitCounts) -> str:
    return (
        f"{split.images} photos, {split.boxes} boxes, {_spread(split.per_class)} photos per class (min / median / max)"
    )


def _spread(spread: Spread) -> str:
    return f"{spread.minimum:g} / {spread.median:g} / {spread.maximum:g}"
