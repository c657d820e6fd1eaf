"""`fdcnet learn`, `fdcnet history`, `fdcnet rollback`"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fdcnet.cli import options
from fdcnet.cli.console import console, errors, percent, watcher
from fdcnet.teaching import BACKBONE, HOLDOUT, KEEP, MEMORY_PER_CLASS

if TYPE_CHECKING:
    from fdcnet.teaching.learn import LearnReport

COLUMNS = {"top1_cls": "class right", "gt_known": "box right", "top1_loc": "both right"}


def learn(
    model: Annotated[Path, typer.Argument(help="The model: made if it is not there yet, else it learns more.")],
    photos: Annotated[str, typer.Argument(help="Photos of new classes: a folder per class, CSV, COCO JSON ...")],
    more: Annotated[bool, typer.Option("--more", help="Photos may also be of classes that the model knows.")] = False,
    full: Annotated[
        bool | None,
        typer.Option(
            "--full/--light", help="Train everything, or leave the backbone as it is. [default: by device and photos]"
        ),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option("--backbone", "-b", help=f"Of a model that is to be made. [default: {BACKBONE}]")
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", "-w", help="Its pretrained weights: a file, auto, or none.")
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(help=f"Share of the photos that measures and does not teach; 0: none. [default: {HOLDOUT}]"),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(help=f"Photos kept of each class. [default: {MEMORY_PER_CLASS}, then as many as before]"),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the photos. [default: by their number]")] = None,
    keep: Annotated[int, typer.Option(help="Earlier versions that are kept.")] = KEEP,
    seed: Annotated[int | None, typer.Option(help="Order of photos, views, initial values.")] = None,
    device: options.Device = None,
    cache: options.Cache = None,
    set_: options.Set = [],  # noqa: B006 typer copies it
) -> None:
    """Teach a model new classes from photos alone, without boxes and without the photos of its old classes.

    The first call makes the model, every later one adds classes to it. Until it is done the old version stays in use:
    Ctrl-C, a full disk or a power cut leave it as it was.

    Photos lie in one folder per class, and these in the folder that is named: new-photos/kingfisher/*.jpg

    Example: `fdcnet learn birds first-photos/`, and later `fdcnet learn birds new-photos/`
    """
    from fdcnet.data.cache import default_cache_dir
    from fdcnet.teaching.learn import learn as run_learning

    try:
        report = run_learning(
            model,
            photos,
            more=more,
            full=full,
            backbone=backbone,
            weights=weights,
            holdout=holdout,
            memory=memory,
            epochs=epochs,
            keep=keep,
            seed=seed,
            overrides=set_,
            device=device or "auto",
            cache_dir=cache or default_cache_dir(),
            listener=watcher(),
        )
    except KeyboardInterrupt:
        errors.print(f"Nothing was changed: {model} is as it was.", markup=False)
        raise
    _print(report)


def history(model: options.Model) -> None:
    """List the versions of a model: when each was learned, what it added, how well it did.

    Example: `fdcnet history birds`
    """
    from fdcnet.store.versions import rollback as run_rollback
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
            Text(_names(version.added, version.learned.get("more", ()))),  # a name in brackets is no style
            *_both(version.learned),
            f"{version.num_bytes / 1e6:.1f} MB",
        )
    if not table.row_count:
        run_rollback(model)  # says that there is no model
    console.print(table)
    console.print("* in use. Percent of held-out photos of old and new classes.", markup=False)


def rollback(
    model: options.Model,
    to: Annotated[int | None, typer.Option(help="Number of the version. [default: the one before]")] = None,
) -> None:
    """Make an earlier version the current one. The later ones are kept, too: `--to` goes forward as well.

    Example: `fdcnet rollback birds`, or `fdcnet rollback birds --to 3`
    """
    from fdcnet.store.versions import rollback as run_rollback

    version = run_rollback(model, to)
    console.print(f"{model} is version {version.number} now: {len(version.classes)} classes.", markup=False)


def _print(report: "LearnReport") -> None:
    from fdcnet.store.versions import can_go_back
    from fdcnet.teaching.defaults import in_words

    table = Table("held-out photos of", "number", *COLUMNS.values(), box=box.SIMPLE)
    rows = (
        ("old classes, before", report.old_before),
        ("old classes, now", report.old_after),
        ("new classes", report.new_after),
    )
    for what, accuracy in rows:
        if accuracy:
            values = [percent(getattr(accuracy, key)) for key in COLUMNS]
            table.add_row(what, str(accuracy.num_photos), *values)
    if table.row_count:
        console.print(table)
    back = f" 'fdcnet rollback {report.model}' takes it back." if can_go_back(report.model) else ""
    console.print(
        f"{report.model} is version {report.version} now and knows {report.num_classes} classes "
        f"({in_words(report.seconds)}).{back}",
        markup=False,
    )


def _both(learned: Mapping[str, Any]) -> list[str]:
    """Old classes above new ones: which, then each column."""
    found = [(what, learned[key]) for what, key in (("old", "old_after"), ("new", "new_after")) if learned.get(key)]
    names = "\n".join(what for what, _ in found)
    return [names, *("\n".join(percent(accuracy[key]) for _, accuracy in found) for key in COLUMNS)]


def _names(added: tuple[str, ...], more: list[str] | tuple[str, ...]) -> str:
    names = [*added, *(f"more of {name}" for name in more)]
    shown = ", ".join(name if len(name) <= 30 else f"{name[:29]}…" for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
