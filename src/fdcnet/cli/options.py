"""Options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    Path, typer.Argument(help="A saved model: the one that `fdcnet learn` made, or runs/NAME/model of `fdcnet train`.")
]
Set = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change any setting, e.g. `--set train.optim.lr=0.002` (repeatable)."
    ),
]
Recipe = Annotated[
    str | None,
    typer.Option("--recipe", "-r", metavar="NAME", help="A recipe by name (see `fdcnet config list`), or a YAML file."),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache", metavar="DIR", help="Where decoded photos are kept. [default: $FDCNET_CACHE or the user's cache]"
    ),
]
