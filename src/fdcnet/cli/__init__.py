"""The `fdcnet` command: one thin file per verb that parses, calls the library and prints.

Verbs import the library when they run, so that help and shell completion do not wait for torch.
"""

import io
import os
import sys
from typing import Annotated

import typer
from rich.text import Text

import fdcnet
from fdcnet.cli import (
    compare,
    config,
    data,
    demo,
    doctor,
    evaluate,
    export,
    label,
    learn,
    methods,
    predict,
    report,
    serve,
    suite,
    train,
    verify,
    weights,
)
from fdcnet.cli.console import errors
from fdcnet.errors import UserError, out_of_memory
from fdcnet.runtime.machine import reuse_memory

app = typer.Typer(
    name="fdcnet",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Teach a model to find new kinds of objects from image labels alone, without forgetting the old ones.

Start with `fdcnet demo` (a few minutes, no data needed). With your own photos: `fdcnet data check PHOTOS/`, then
`fdcnet learn MODEL PHOTOS/`.""",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fdcnet {fdcnet.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.command("demo")(demo.demo)
app.command("learn")(learn.learn)
app.command("history")(learn.history)
app.command("rollback")(learn.rollback)
app.command("verify")(verify.verify)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("label")(label.label)
app.command("serve")(serve.serve)
app.command("export")(export.export)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("suite")(suite.suite)
app.command("methods")(methods.methods)
app.add_typer(data.app, name="data")
app.add_typer(config.app, name="config")
app.add_typer(weights.app, name="weights")
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Exit codes: 0 done, 1 ran and failed, 2 wrong input, 130 interrupted, 143 terminated."""
    # Waiting threads sleep instead of spinning, which leaves the cores to other programs. Read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")  # the CPU computes what PyTorch lacks on Apple's GPUs
    reuse_memory()
    # File names need not be valid UTF-8, and a pipe on Windows has an encoding that lacks most letters.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        _print_error("Error:", str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("Interrupted.")
        sys.exit(130)
    except Exception as error:
        _print_error("Failed:", _explain(error))
        sys.exit(1)


def _explain(error: Exception) -> str:
    """The message of a failure that is not a bug; bugs are raised again."""
    if shortage := out_of_memory(error, f"running 'fdcnet {sys.argv[1]}'"):
        return str(shortage)  # before the imports, for which memory may be missing, too

    from safetensors import SafetensorError

    from fdcnet.inference.onnx_graph import ExportDiffers
    from fdcnet.runtime.distributed import LostProcess
    from fdcnet.training.loop import Diverged

    if isinstance(error, (Diverged, ExportDiffers, LostProcess)):
        return str(error)
    if isinstance(error, (OSError, SafetensorError)):
        further = " Then run the same command with --resume." if sys.argv[1:2] == ["train"] else ""
        return f"{error}\nFree space or repair that path.{further}"
    raise error


def _print_error(kind: str, text: str) -> None:
    errors.print(Text.assemble((kind, "bold red"), f" {text}"))
