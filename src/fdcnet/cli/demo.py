"""`fdcnet demo`"""

import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fdcnet import config as settings
from fdcnet.cli.console import console, percent, watcher

RECIPE = Path(__file__).with_name("demo.yaml")
METHODS = ("fdcnet", "finetune")
FOUND, NAMED = 80.0, 70.0  # percent GT-known and Top-1 Loc that old and new classes must have after the last task


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for photos, runs and the report.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the photos and the network.")] = 0,
) -> None:
    """Learn class after class from generated photos on the CPU, and show what is forgotten. Takes one to three minutes.

    Eight kinds of patterned shapes arrive in three tasks, with image labels only. Two methods start from the same
    first task: FDCNet, which keeps a small memory of old photos, and plain fine-tuning, which forgets.
    """
    from fdcnet.data.synthetic import make_synthetic
    from fdcnet.report.page import write_report
    from fdcnet.report.tables import brief_table, old_and_new, to_rich

    started = time.monotonic()
    config = settings.load(RECIPE, seed=seed)
    dataset = make_synthetic(out / f"photos-{seed}", size=config.data.size, seed=seed)
    one_task = {"base_classes": 0, "step_classes": 0}
    base_config = settings.load(RECIPE, method=METHODS[-1], seed=seed, data=one_task)
    _learn("the first task", out / "base", base_config, dataset.first(config.data.base_classes))
    results = {}
    for method in METHODS:
        run_config = settings.load(RECIPE, method=method, seed=seed)
        results[method] = _learn(method, out / method, run_config, dataset, base_model=out / "base" / "model")

    console.print(to_rich(brief_table(results)))
    page = write_report([out / method for method in METHODS], out / "report.html", "fdcnet demo")
    found, named = (old_and_new(results[METHODS[0]], metric) for metric in ("gt_known", "top1_loc"))
    forgotten, _ = old_and_new(results[METHODS[-1]], "top1_loc")
    console.print(
        f"After the last task {METHODS[0]} finds {percent(found[0])} % of the objects of old classes and "
        f"{percent(found[1])} % of the new ones. It finds and names {percent(named[0])} % of the old ones, plain "
        f"fine-tuning {percent(forgotten)} %.",
        markup=False,
    )
    console.print(f"Took {time.monotonic() - started:.0f} seconds. Now open {page}", markup=False)
    if min(value or 0.0 for value in found) < FOUND or min(value or 0.0 for value in named) < NAMED:
        console.print(f"[red]Expected at least {FOUND:.0f} % found, and {NAMED:.0f} % found and named.[/]")
        raise typer.Exit(1)


def _learn(title: str, run_dir: Path, *arguments: Any, **options: Any) -> dict[str, Any]:
    from fdcnet.store.record import RunRecord
    from fdcnet.training.run import train

    if RunRecord(run_dir).exists():  # of an earlier demo
        shutil.rmtree(run_dir)
    console.rule(f"[bold]{title}", align="left")
    config, dataset = arguments
    return train(config, dataset, run_dir, listener=watcher(), **options)
