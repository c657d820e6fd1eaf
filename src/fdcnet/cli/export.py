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
        Path | None, typer.Option(metavar="DIR", help="Write a copy without stored photos, for sharing.")
    ] = None,
    hub: Annotated[
        str | None, typer.Option(metavar="hf://OWNER/NAME", help="Upload it to the Hugging Face hub, without photos.")
    ] = None,
    photos: Annotated[
        Path | None, typer.Option(help="Check the ONNX model on these photos. [default: photos in the model's memory]")
    ] = None,
) -> None:
    """Export a model as ONNX, as a copy without stored photos, or to the Hugging Face hub.

    The ONNX model returns scores and maps of all classes. It is compared with PyTorch before it is written.

    Example: `fdcnet export birds --onnx birds.onnx`, or `fdcnet export birds --no-memory birds-shared`
    """
    from fdcnet.inference.export import export_onnx, export_without_memory

    if onnx is None and no_memory is None and hub is None:
        raise UserError("No output was named.", "Add --onnx FILE, --no-memory DIR or --hub hf://OWNER/NAME.")
    if no_memory is not None:
        export_without_memory(model, no_memory)
        console.print(f"Wrote {no_memory}, without photos", markup=False, highlight=False)
    if hub is not None:
        from fdcnet.inference.hub import upload

        console.print(f"Uploaded to {upload(model, hub)}, without photos", markup=False, highlight=False)
    if onnx is not None:
        check = export_onnx(model, onnx, photos)
        size = onnx.stat().st_size / 1e6
        console.print(
            f"Checked on {check.photos}: scores differ from PyTorch's by at most {check.scores:.0e}, "
            f"maps by {check.maps:.0e}.\nWrote {onnx}, {size:.1f} MB",
            markup=False,
            highlight=False,
        )
