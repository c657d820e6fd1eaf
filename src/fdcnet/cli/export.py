"""`fdcnet export`"""

from pathlib import Path
from typing import Annotated

import typer

from fdcnet.cli import options
from fdcnet.cli.console import console
from fdcnet.errors import UserError


def export(
    model: options.Model,
    onnx: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an ONNX model.")] = None,
    no_memory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a model without the photos of its memory, for sharing.")
    ] = None,
    photos: Annotated[
        Path | None, typer.Option(help="Check the ONNX model on these photos. [default: those of its memory]")
    ] = None,
) -> None:
    """Make a model that runs without PyTorch (ONNX), or one that holds nobody's photos.

    The ONNX model says scores and maps for all classes. It is compared with PyTorch before it is written.

    Example: `fdcnet export birds --onnx birds.onnx`, or `fdcnet export birds --no-memory birds-shared`
    """
    from fdcnet.inference.export import export_onnx, export_without_memory

    if onnx is None and no_memory is None:
        raise UserError("There is nothing to write.", "Say --onnx FILE, or --no-memory DIR.")
    if no_memory is not None:
        export_without_memory(model, no_memory)
        console.print(f"Written: {no_memory}, without photos", markup=False, highlight=False)
    if onnx is not None:
        check = export_onnx(model, onnx, photos)
        size = onnx.stat().st_size / 1e6
        console.print(
            f"Checked on {check.photos}: scores differ from PyTorch's by at most {check.scores:.0e}, "
            f"maps by {check.maps:.0e}.\nWritten: {onnx}, {size:.1f} MB",
            markup=False,
            highlight=False,
        )
