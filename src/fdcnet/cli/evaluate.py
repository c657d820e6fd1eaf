"""`fdcnet evaluate`"""

from pathlib import Path
from typing import Annotated

import typer

from fdcnet.cli import options
from fdcnet.cli.console import console, watcher
from fdcnet.config import parse_overrides
from fdcnet.errors import UserError

CURVE_ROWS = 10


def evaluate(
    model: options.Model,
    data: Annotated[
        str | None, typer.Argument(help="Test photos. [default for a model of `fdcnet train`: those of its run]")
    ] = None,
    map_: Annotated[
        str | None, typer.Option("--map", help="Map that gives the box: class (of the true class) or topk-mean.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="Box threshold, between 0 and 1.")] = None,
    crops: Annotated[
        int | None, typer.Option(help="Number of crops whose class scores are averaged: 1, 2 or 10.")
    ] = None,
    thresholds: Annotated[
        int | None, typer.Option(min=1, help="Thresholds for the curve and MaxBoxAcc. [default: 0.05 to 0.95 by 0.05]")
    ] = None,
    set_: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change any other part of the protocol, e.g. `--set frame=image`."
        ),
    ] = [],  # noqa: B006 typer copies it
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for results.json and the table of predictions.")
    ] = None,
    device: options.Device = None,
    cache: options.Cache = None,
) -> None:
    """Evaluate a saved model on test photos with boxes: localization, classification, threshold curve.

    By default the model's own protocol is used; each option changes one part of it. The protocol is printed and
    saved with the results.

    Example: `fdcnet evaluate birds test-photos/`
    """
    from fdcnet.evaluation.evaluate import evaluate as run_evaluation
    from fdcnet.evaluation.evaluator import SWEEP
    from fdcnet.evaluation.metrics import threshold_curve
    from fdcnet.report.tables import single_table, to_rich
    from fdcnet.store.record import write_json

    if out and out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file.", "Name a folder for results.json and the table.")
    if data is None and _has_no_data(model):
        problem = f"{model} was made with 'fdcnet learn', which does not record where photos are."
        raise UserError(problem, f"Name test photos: fdcnet evaluate {model} PHOTOS")
    given = {"map": map_, "threshold": threshold, "crops": crops}
    changes = {key: value for key, value in given.items() if value is not None} | parse_overrides(set_)
    results, table = run_evaluation(
        model,
        data,
        protocol=changes,
        sweep=[(i + 1) / (thresholds + 1) for i in range(thresholds)] if thresholds else SWEEP,
        device=device or "auto",
        cache_dir=cache,
        listener=watcher(),
    )
    console.print(to_rich(single_table(results)))
    protocol = results["protocol"]
    _print_curve(table.thresholds, threshold_curve(table, iou=protocol["iou"], average=protocol["average"]))
    console.print("Protocol: " + ", ".join(f"{key} {value}" for key, value in protocol.items()), markup=False)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        table.save(out / "predictions.csv.gz")
        write_json(out / "results.json", results)
        console.print(f"Wrote {out}", markup=False)


def _has_no_data(model: Path) -> bool:
    from fdcnet.store.bundle import read_description
    from fdcnet.store.versions import versions

    learned = any(version.learned for version in versions(model) if version.current)
    return learned and read_description(model)["config"]["data"]["path"] == options.DEFAULTS.data.path


def _print_curve(thresholds: tuple[float, ...], curve: list[float]) -> None:
    """GT-known over the threshold, as bars of text."""
    if not curve:
        return
    console.print("GT-known by threshold")
    every = max(1, len(curve) // CURVE_ROWS)
    for threshold, value in list(zip(thresholds, curve, strict=True))[::every]:
        console.print(f"  {threshold:5.3f} {'#' * round(value / 2):<50} {value:5.1f}", markup=False, highlight=False)
