"""Options that several verbs share, and the values that a shell completes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fdcnet import config
from fdcnet.data.sources import FORMATS
from fdcnet.methods import METHODS
from fdcnet.models.backbones import BACKBONES

DEFAULTS = config.Config()
LAYOUTS = ", ".join(reversed(FORMATS.summaries().values()))


def complete_method(incomplete: str) -> Iterator[tuple[str, str]]:
    return _starting_with(incomplete, METHODS.summaries())


def complete_backbone(incomplete: str) -> Iterator[tuple[str, str]]:
    return _starting_with(incomplete, BACKBONES.summaries())


def complete_recipe(incomplete: str) -> Iterator[tuple[str, str]]:
    return _starting_with(incomplete, dict.fromkeys(config.recipe_names(), ""))


def complete_format(incomplete: str) -> Iterator[tuple[str, str]]:
    return _starting_with(incomplete, {"auto": "detect the layout", **FORMATS.summaries()})


def _starting_with(incomplete: str, known: dict[str, str]) -> Iterator[tuple[str, str]]:
    return ((name, summary) for name, summary in known.items() if name.startswith(incomplete))


Model = Annotated[
    Path, typer.Argument(help="A saved model, made by `fdcnet learn` or `fdcnet train` (runs/NAME/model).")
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        "-m",
        autocompletion=complete_method,
        help=f"Method; `fdcnet methods` explains them. [default: {DEFAULTS.method}]",
    ),
]
Backbone = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        "-b",
        autocompletion=complete_backbone,
        help=f"Backbone: {', '.join(BACKBONES)}. [default: {DEFAULTS.model.backbone}]",
    ),
]
Recipe = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        "-r",
        metavar="NAME",
        autocompletion=complete_recipe,
        help="Recipe name (see `fdcnet config list`), or a YAML file.",
    ),
]
Format = Annotated[
    str, typer.Option(autocompletion=complete_format, help=f"Layout of the photos: auto, {', '.join(FORMATS)}.")
]
Set = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change any setting, e.g. `--set train.optim.lr=0.002` (repeatable)."
    ),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N, or mps on a Mac. [default: auto]")]
Engine = Annotated[str, typer.Option(help="torch, or onnx: ONNX Runtime, which is faster on a CPU.")]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="DIR",
        help="Folder for decoded photos. [default: $FDCNET_CACHE, or fdcnet in the user's cache folder]",
    ),
]
