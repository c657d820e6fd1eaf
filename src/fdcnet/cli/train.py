"""`fdcnet train`"""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from fdcnet import config as settings
from fdcnet.cli import options
from fdcnet.cli.console import console, errors, stop_message, watcher
from fdcnet.errors import UserError

DEFAULTS = options.DEFAULTS


def train(
    data: Annotated[str | None, typer.Argument(help=f"Photos: {options.LAYOUTS}.")] = None,
    method: options.Method = None,
    recipe: options.Recipe = None,
    backbone: options.Backbone = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            "-w",
            help=f"Pretrained weights: a .safetensors or .pth file, auto, or none. [default: {DEFAULTS.model.weights}]",
        ),
    ] = None,
    base: Annotated[
        int | None, typer.Option(help=f"Classes in the first task; 0: all. [default: {DEFAULTS.data.base_classes}]")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(help=f"Classes in each later task; 0: all that remain. [default: {DEFAULTS.data.step_classes}]"),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help=f"Epochs of each task. [default: {DEFAULTS.train.step_epochs}, light: up to 60]"),
    ] = None,
    light: Annotated[
        bool | None,
        typer.Option(
            "--light/--full",
            help="Freeze the backbone, as `learn` does, or train everything. [default: by the number of photos]",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder. [default: runs/DATA-BACKBONE-METHOD-SEED]")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in that folder from its last checkpoint.")
    ] = False,
    base_model: Annotated[
        Path | None, typer.Option(help="Start from this saved model instead of training the first task.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help=f"Seed for the order of photos and classes, crops, initialization. [default: {DEFAULTS.seed}]"
        ),
    ] = None,
    log: Annotated[
        str | None, typer.Option(metavar="tensorboard", help="Also log to RUN/tensorboard for TensorBoard.")
    ] = None,
    device: options.Device = None,
    cache: options.Cache = None,
    set_: options.Set = [],  # noqa: B006 typer copies it
) -> None:
    """Learn a sequence of tasks from photos with image labels, and evaluate after each.

    The first task learns `--base` classes, and each later task `--step` more. Photos of earlier tasks are gone, except
    those in the method's memory. Boxes in the data are used for evaluation only.

    Example: `fdcnet train birds/ --base 10 --step 5`
    """
    from fdcnet.data.sources import open_dataset
    from fdcnet.runtime.tensorboard import TensorBoard
    from fdcnet.teaching.defaults import light_epochs, light_is_better, light_run
    from fdcnet.training.run import train as run_training

    config = settings.load(
        recipe,
        set_,
        method=method,
        seed=seed,
        device=device,
        data={"path": data, "base_classes": base, "step_classes": step},
        model={"backbone": backbone, "weights": weights},
        train={"base_epochs": epochs, "step_epochs": epochs},
    )
    if log not in (None, "tensorboard"):
        raise UserError(f"There is no log '{log}'.", "Use --log tensorboard.")
    dataset = open_dataset(config.data)
    leads = int(os.environ.get("RANK", 0)) == 0  # of the processes that torchrun has started
    for note in dataset.notes if leads else ():
        console.print(note, markup=False)
    changes = settings.parse_overrides(set_)
    named = method or "method" in (settings.read_recipe(settings.find_recipe(recipe)) if recipe else {}) | changes
    chosen = config.method if named else None
    if light is None and recipe is None and chosen is None and light_is_better(config.model, len(dataset.train)):
        light = True
        if leads:
            console.print(f"{len(dataset.train)} photos are few: the backbone is frozen. --full trains everything.")
    if light:
        own = light_run(chosen)
        if recipe is None and "protocols" not in changes:
            own |= {"protocols.0.crops": 2}  # evaluation with ten takes longer than training
        if recipe is None and epochs is None:
            num_classes = config.data.base_classes or len(dataset.classes)
            num_photos = round(num_classes / len(dataset.classes) * len(dataset.train))
            enough = max(config.train.base_epochs, light_epochs(num_photos, num_classes))
            own |= {"train.base_epochs": enough, "train.step_epochs": enough}
        config = settings.changed(config, own | changes)
    run_dir = out or Path("runs") / f"{dataset.name}-{config.model.backbone}-{config.method}-s{config.seed}"
    with stop_message(lambda: _how_to_continue(run_dir)):
        results = run_training(
            config,
            dataset,
            run_dir,
            resume=resume,
            base_model=base_model,
            listener=TensorBoard(run_dir / "tensorboard", watcher()) if log and leads else watcher(),
            cache_dir=cache,
        )
        if leads:
            console.print(f"Model: {run_dir / 'model'}", markup=False)
            _report(run_dir, results)


def _report(run_dir: Path, results: dict[str, Any]) -> None:
    """Print the results and write the page. The run is complete without either."""
    try:
        from fdcnet.report.page import write_report
        from fdcnet.report.tables import BRIEF, results_table, to_rich
    except ImportError as error:
        errors.print(f"No report: {error}. Install that package, then run 'fdcnet report {run_dir}'.", markup=False)
        return
    console.print(to_rich(results_table({results["method"]: results}, BRIEF, split=())))
    console.print(f"Report: {write_report([run_dir], run_dir / 'report.html')}", markup=False)


def _how_to_continue(run_dir: Path) -> str:
    from fdcnet.store.record import RunRecord
    from fdcnet.training.run_folder import resume_point

    point = resume_point(run_dir)
    if point is None:
        return "Stopped. Nothing was written."
    if RunRecord(run_dir).run().get("finished"):
        return f"Stopped. The run is complete. Write its report with 'fdcnet report {run_dir}'."
    return f"Stopped. To continue from {point}, run the same command with --resume."
