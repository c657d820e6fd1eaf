"""`fdcnet train`"""

from pathlib import Path
from typing import Annotated

import typer

from fdcnet import config as settings
from fdcnet.cli import options
from fdcnet.cli.console import console, errors, watcher
from fdcnet.data.cache import default_cache_dir
from fdcnet.data.sources import open_dataset
from fdcnet.report.page import write_report
from fdcnet.report.tables import BRIEF, results_table, to_rich
from fdcnet.training.run import train as run_training


def train(
    data: Annotated[
        str | None, typer.Argument(help="Photos: a folder per class, CSV, COCO JSON, CUB-200, ImageNet.")
    ] = None,
    method: Annotated[str | None, typer.Option("--method", "-m", help="See `fdcnet methods`.")] = None,
    recipe: options.Recipe = None,
    backbone: Annotated[
        str | None,
        typer.Option("--backbone", "-b", help="mobilenet_v1, inception_v3, efficientnet_lite0, resnet50, vgg16, tiny."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option("--weights", "-w", help="Pretrained backbone: a .safetensors or .pth file, auto, or none."),
    ] = None,
    base: Annotated[int | None, typer.Option(help="Classes of the first task; 0: all in one task.")] = None,
    step: Annotated[int | None, typer.Option(help="Classes of each later task.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder. [default: runs/DATA-BACKBONE-METHOD-SEED]")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in that folder from its last checkpoint.")
    ] = False,
    base_model: Annotated[
        Path | None, typer.Option(help="Take the first task from this saved model instead of learning it.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Order of photos and classes, crops, initial values.")] = None,
    device: options.Device = None,
    cache: options.Cache = None,
    set_: options.Set = [],  # noqa: B006 typer copies it
) -> None:
    """Learn a stream of tasks from photos with image labels, and measure after each.

    The first task learns `--base` classes, each later one `--step` more, while the photos of earlier tasks are gone but
    for the method's memory. Boxes, where the data have them, serve measuring only.

    Example: `fdcnet train birds/ --method baseline --backbone efficientnet_lite0 --base 10 --step 5`
    """
    config = settings.load(
        recipe,
        set_,
        method=method,
        seed=seed,
        device=device,
        data__path=data,
        data__base_classes=base,
        data__step_classes=step,
        model__backbone=backbone,
        model__weights=weights,
    )
    dataset = open_dataset(config.data)
    for note in dataset.notes:
        console.print(note, markup=False)
    run_dir = out or Path("runs") / f"{dataset.name}-{config.model.backbone}-{config.method}-s{config.seed}"
    try:
        results = run_training(
            config,
            dataset,
            run_dir,
            resume=resume,
            base_model=base_model,
            listener=watcher(),
            cache_dir=cache or default_cache_dir(),
        )
    except KeyboardInterrupt:
        errors.print("Interrupted. The same command with --resume goes on from the last checkpoint.")
        raise
    console.print(to_rich(results_table({config.method: results}, BRIEF, split=())))
    page = write_report([run_dir], run_dir / "report.html")
    console.print(f"Model: {run_dir / 'model'}\nReport: {page}", markup=False)
