"""`fdcnet learn`, `fdcnet history`, `fdcnet rollback`"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fdcnet.cli import options
from fdcnet.cli.console import console, percent, stop_message, watcher
from fdcnet.teaching import BACKBONE, HOLDOUT, KEEP, MEMORY_PER_CLASS

if TYPE_CHECKING:
    from fdcnet.store.versions import Version
    from fdcnet.teaching.learn import LearnReport

COLUMNS = {"top1_cls": "class right", "gt_known": "box right", "top1_loc": "both right"}


def learn(
    model: Annotated[Path, typer.Argument(help="Model folder. Created by the first call.")],
    photos: Annotated[str, typer.Argument(help="Photos of new classes: one folder per class, CSV, COCO JSON ...")],
    more: Annotated[bool, typer.Option("--more", help="Allow photos of classes that the model already knows.")] = False,
    full: Annotated[
        bool | None,
        typer.Option(
            "--full/--light", help="Train everything, or freeze the backbone. [default: by device and number of photos]"
        ),
    ] = None,
    refine: Annotated[
        bool,
        typer.Option("--refine", help="Also train the boxes of new classes; takes about three times as long."),
    ] = False,
    backbone: Annotated[
        str | None,
        typer.Option(
            "--backbone",
            "-b",
            autocompletion=options.complete_backbone,
            help=f"Backbone for a new model. [default: {BACKBONE}]",
        ),
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", "-w", help="Pretrained weights for a new model: a file, auto, or none.")
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(help=f"Fraction of photos held out for evaluation; 0: none. [default: {HOLDOUT}]"),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(help=f"Photos to keep per class. [default: {MEMORY_PER_CLASS}, later as before]"),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Training epochs; implies --refine. [default: by photos]")] = None,
    keep: Annotated[int, typer.Option(help="Number of earlier versions to keep.")] = KEEP,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    device: options.Device = None,
    cache: options.Cache = None,
    set_: options.Set = [],  # noqa: B006 typer copies it
) -> None:
    """Teach a model new classes from photos. No boxes and no photos of the old classes are needed.

    The first call creates the model and trains it. Later calls add classes in one pass over the new photos. The old
    version stays in use until the new one is written, so Ctrl-C, a full disk or a power cut do no harm.

    Put the photos of each class into a folder with its name: new-photos/kingfisher/*.jpg

    Example: `fdcnet learn birds first-photos/`, and later `fdcnet learn birds new-photos/`
    """
    from fdcnet.teaching.learn import learn as run_learning

    with stop_message(lambda: _how_to_continue(model)):
        report = run_learning(
            model,
            photos,
            more=more,
            full=full,
            refine=refine,
            backbone=backbone,
            weights=weights,
            holdout=holdout,
            memory=memory,
            epochs=epochs,
            keep=keep,
            seed=seed,
            overrides=set_,
            device=device or "auto",
            cache_dir=cache,
            listener=watcher(),
        )
    _print(report)


def _how_to_continue(model: Path) -> str:
    from fdcnet.teaching.stopped import stopped_at

    position = stopped_at(model)
    further = f" To continue the lesson from {position}, run its command again." if position else ""
    return f"Stopped. {model} is unchanged.{further}"


def history(model: options.Model) -> None:
    """List the versions of a model with their date, new classes and accuracy.

    Example: `fdcnet history birds`
    """
    from fdcnet.store.bundle import read_description
    from fdcnet.store.versions import versions

    table = Table(box=box.SIMPLE, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("version", "date", "classes", "added", "of", *(what.replace(" ", "\n") for what in COLUMNS.values())):
        table.add_column(name, overflow="fold", no_wrap=name != "added")
    table.add_column("size", justify="right", no_wrap=True)
    for version in versions(model):
        table.add_row(
            f"{version.number}{' *' if version.current else ''}",
            version.created.astimezone().strftime("%Y-%m-%d\n%H:%M"),
            str(len(version.classes)),
            Text(_names(version)),  # [brackets] are not markup
            *_both(version.learned),
            f"{version.num_bytes / 1e6:.1f} MB",
        )
    if not table.row_count:
        read_description(model)  # raises the error for a missing model
    console.print(table)
    console.print("* current version. Percent correct on held-out photos of old and new classes.", markup=False)


def rollback(
    model: options.Model,
    to: Annotated[int | None, typer.Option(help="Version number. [default: the previous version]")] = None,
) -> None:
    """Go back to an earlier version. Later versions are kept, so `--to` can also go forward again.

    Example: `fdcnet rollback birds`, or `fdcnet rollback birds --to 3`
    """
    from fdcnet.store.versions import rollback as run_rollback

    version = run_rollback(model, to)
    console.print(f"{model} is now version {version.number} with {len(version.classes)} classes.", markup=False)


def _print(report: "LearnReport") -> None:
    from fdcnet.store.versions import can_go_back
    from fdcnet.teaching.defaults import in_words

    table = Table("held-out photos of", "number", *COLUMNS.values(), box=box.SIMPLE)
    rows = (
        ("old classes, before", report.old_before),
        ("old classes, after", report.old_after),
        ("new classes", report.new_after),
    )
    for what, accuracy in rows:
        if accuracy:
            values = [percent(getattr(accuracy, key)) for key in COLUMNS]
            table.add_row(what, str(accuracy.num_photos), *values)
    if table.row_count:
        console.print(table)
    evaluated = report.new_after.by_class if report.new_after else {}
    if unknown := [name for name in report.added if name not in evaluated]:
        console.print(f"Without held-out photos, so not evaluated: {_some(unknown)}.", markup=False)
    undo = f" Undo: fdcnet rollback {report.model}" if can_go_back(report.model) else ""
    console.print(
        f"{report.model} is now version {report.version} and knows {report.num_classes} classes. "
        f"Took {in_words(report.seconds)}.{undo}",
        markup=False,
    )


def _both(learned: Mapping[str, Any]) -> list[str]:
    """Old classes above new ones: their name, then each column."""
    found = [(what, learned[key]) for what, key in (("old", "old_after"), ("new", "new_after")) if learned.get(key)]
    names = "\n".join(what for what, _ in found)
    return [names, *("\n".join(percent(accuracy[key]) for _, accuracy in found) for key in COLUMNS)]


def _names(version: "Version") -> str:
    if version.box_training:
        return version.box_training
    return _some([*version.added, *(f"more of {name}" for name in version.learned.get("more", ()))])


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(name if len(name) <= 30 else f"{name[:29]}…" for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
