"""`fdcnet evaluate`"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fdcnet import config as settings
from fdcnet.bundle import load_bundle
from fdcnet.cli import options
from fdcnet.cli.console import console, watcher
from fdcnet.data.cache import default_cache_dir
from fdcnet.data.records import Record
from fdcnet.data.sources import open_dataset
from fdcnet.data.stream import make_stream
from fdcnet.errors import UserError
from fdcnet.evaluation.evaluator import SWEEP
from fdcnet.evaluation.incremental import build_results, score_task
from fdcnet.evaluation.metrics import threshold_curve
from fdcnet.methods import find_method
from fdcnet.record import write_json
from fdcnet.report.tables import BRIEF, results_table, to_rich
from fdcnet.training.measure import measure
from fdcnet.training.runtime import Runtime


def evaluate(
    model: Annotated[Path, typer.Argument(help="A saved model, such as runs/NAME/model.")],
    data: Annotated[str | None, typer.Argument(help="Test photos. [default: those it was trained beside]")] = None,
    map_: Annotated[str | None, typer.Option("--map", help="class (map of the true class) or topk-mean.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Of the map, between 0 and 1.")] = None,
    crops: Annotated[int | None, typer.Option(help="Views averaged for the class: 1, 2 or 10.")] = None,
    thresholds: Annotated[int, typer.Option(help="Number of thresholds in the sweep (curves, MaxBoxAcc).")] = len(
        SWEEP
    ),
    set_: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Any other part of the protocol, e.g. `--set frame=image`."),
    ] = [],  # noqa: B006 typer copies it
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for results.json and the per-image table.")
    ] = None,
    device: options.Device = None,
    cache: options.Cache = None,
) -> None:
    """Measure a saved model on test photos with boxes: localization, classification, threshold curve.

    Without options the model's own protocol is used; each option changes one part of it. The protocol is printed and
    written with the result.
    """
    state = load_bundle(model)
    protocol_values = settings.to_dict(state.config.protocols[0])
    changes = {"map": map_, "threshold": threshold, "crops": crops}
    changes = {key: value for key, value in changes.items() if value is not None} | settings.parse_overrides(set_)
    if "threshold" in changes:
        changes.setdefault("threshold_source", "given on the command line")
    protocol = settings.from_dict(settings.Protocol, protocol_values | changes, "protocol.")
    run_config = replace(state.config, device=device or "auto")
    runtime = Runtime.of(run_config, cache or default_cache_dir(), watcher())
    runtime.place(state.network)

    source = replace(state.config.data, path=data, format="auto", classes=0) if data else state.config.data
    dataset = open_dataset(source)
    test: Sequence[Record] = dataset.test
    if not data and source.holdout:  # the photos that training has set aside
        test = make_stream(dataset, order=source.order, seed=state.config.seed, holdout=source.holdout)[-1].test
    elif not test:
        console.print("There is no test part: measuring on all photos.")
        test = dataset.train
    known = set(state.classes)
    records = [record for record in test if record.label in known]
    if not records:
        raise UserError(
            f"None of the {len(test)} photos is of a class that the model knows.",
            f"It knows {len(known)} classes, such as {', '.join(state.classes[:3])}: name the folders like them.",
        )
    if len(records) < len(test):
        console.print(f"Left out: {len(test) - len(records)} photos of classes the model does not know.")
    photos = runtime.decode("decoding photos", records, state.config.data.size)
    sweep = [(i + 1) / (thresholds + 1) for i in range(thresholds)]
    [table] = measure(state, find_method(state.config.method)(), runtime, photos, [protocol], sweep)

    scores = score_task(table, protocol, [len(state.classes)])
    results = build_results(
        dataset=dataset.name,
        method=state.config.method,
        backbone=state.config.model.backbone,
        seed=state.config.seed,
        protocol=protocol,
        tasks=[scores],
    )
    console.print(to_rich(results_table({dataset.name: results}, BRIEF, split=())))
    _print_curve(table.thresholds, threshold_curve(table, iou=protocol.iou, average=protocol.average))
    console.print(
        "Protocol: " + ", ".join(f"{key} {value}" for key, value in results["protocol"].items()), markup=False
    )
    if out:
        out.mkdir(parents=True, exist_ok=True)
        table.save(out / "predictions.csv.gz")
        write_json(out / "results.json", results)
        console.print(f"Written: {out}", markup=False)


def _print_curve(thresholds: tuple[float, ...], curve: list[float] | None, num_rows: int = 10) -> None:
    """GT-known over the threshold, as bars of text."""
    if not curve:
        return
    console.print("GT-known by threshold")
    every = max(1, len(curve) // num_rows)
    for threshold, value in list(zip(thresholds, curve, strict=True))[::every]:
        console.print(f"  {threshold:5.3f} {'█' * round(value / 2):<50} {value:5.1f}", markup=False, highlight=False)
