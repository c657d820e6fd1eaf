"""The `fdcnet` command: one thin file per verb that parses, calls the library and prints."""

import importlib.metadata
import sys
from typing import Annotated

import torch
import typer
from rich.text import Text
from safetensors import SafetensorError

from fdcnet.cli import (
    compare,
    config,
    data,
    demo,
    doctor,
    evaluate,
    export,
    learn,
    methods,
    predict,
    report,
    serve,
    train,
)
from fdcnet.cli.console import errors
from fdcnet.errors import UserError
from fdcnet.inference.export import ExportDiffers
from fdcnet.training.loop import Diverged

app = typer.Typer(
    name="fdcnet",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Teach a model to find new kinds of objects from image labels alone, without forgetting the old ones.

Start with `fdcnet demo` (three minutes, no data), then `fdcnet data check PHOTOS/`, `fdcnet learn MODEL PHOTOS/`.""",
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fdcnet {importlib.metadata.version('fdcnet')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version and leave.")
    ] = False,
) -> None:
    pass


app.command("demo")(demo.demo)
app.command("learn")(learn.learn)
app.command("history")(learn.history)
app.command("rollback")(learn.rollback)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("serve")(serve.serve)
app.command("export")(export.export)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("methods")(methods.methods)
app.add_typer(data.app, name="data")
app.add_typer(config.app, name="config")
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Exit codes: 0 done, 1 ran and failed, 2 wrong input, 130 interrupted."""
    try:
        app()
    except UserError as error:
        _say("Error:", str(error))
        sys.exit(2)
    except (Diverged, ExportDiffers, torch.OutOfMemoryError) as error:
        _say("Failed:", str(error))
        sys.exit(1)
    except (OSError, SafetensorError) as error:
        further = " Then 'train --resume' goes on from the last checkpoint." if sys.argv[1:2] == ["train"] else ""
        _say("Failed:", f"{error}\nFree space or repair that path.{further}")
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("Interrupted.")
        sys.exit(130)


def _say(kind: str, text: str) -> None:
    errors.print(Text.assemble((kind, "bold red"), f" {text}"))
