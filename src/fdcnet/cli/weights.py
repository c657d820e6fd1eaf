"""`fdcnet weights list`, `fetch`, `verify` and `convert`"""

from pathlib import Path
from typing import Annotated

import typer

from fdcnet.cli import options
from fdcnet.cli.console import console
from fdcnet.models.backbones import BACKBONES

app = typer.Typer(no_args_is_help=True, help="Find, download, check and convert pretrained weights.")
Backbone = Annotated[
    str, typer.Argument(metavar="BACKBONE", autocompletion=options.complete_backbone, help=f"{', '.join(BACKBONES)}.")
]


@app.command("list")
def list_() -> None:
    """List the backbones and the weights that `--weights auto` uses for each."""
    from fdcnet.models.tensorflow import ARCHIVES
    from fdcnet.models.weights import FROM_SCRATCH, OFFICIAL, local_file

    for name in BACKBONES:
        if name in FROM_SCRATCH:
            found = "needs none"
        else:
            found = str(local_file(name) or f"not downloaded, fetched on first use: {OFFICIAL[name][0]}")
        _print(f"{name:<19} {found}")
    _print("\nWeights of the published results (TensorFlow lineage), to be converted with 'fdcnet weights convert':")
    for name, (address, file) in ARCHIVES.items():
        _print(f"{name:<19} {file} in {address}")


@app.command()
def fetch(backbone: Backbone) -> None:
    """Download the weights that `--weights auto` uses, and check them.

    Example: `fdcnet weights fetch resnet50`
    """
    from fdcnet.models.weights import weights_file

    path = weights_file(backbone, "auto")
    if path is None:
        _print(f"{backbone} needs no weights.")
    else:
        _verify(path)


@app.command()
def verify(file: Annotated[Path, typer.Argument(help="A .safetensors or .pth file.")]) -> None:
    """Show which backbone a weights file belongs to, and its checksum. The exit code is 2 if it fits none.

    Example: `fdcnet weights verify mobilenet_v1.safetensors`
    """
    _verify(file)


@app.command()
def convert(
    file: Annotated[
        Path,
        typer.Argument(help="A frozen TensorFlow graph (.pb) or a checkpoint (.ckpt); see `fdcnet weights list`."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write. [default: BACKBONE.safetensors]")
    ] = None,
) -> None:
    """Convert TensorFlow's weights of MobileNetV1 or InceptionV3. TensorFlow is not needed.

    Example: `fdcnet weights convert classify_image_graph_def.pb`
    """
    from safetensors.torch import save

    from fdcnet.files import write_bytes
    from fdcnet.models.tensorflow import convert as run_conversion

    backbone, weights = run_conversion(file)
    path = out or Path(f"{backbone}.safetensors")
    write_bytes(path, save(weights))
    _verify(path)
    _print(f"Use it with --weights {path}, or set FDCNET_WEIGHTS to the folder {path.absolute().parent}.")


def _verify(path: Path) -> None:
    from fdcnet.files import sha256
    from fdcnet.models.weights import identify

    backbone, lineage, num_tensors = identify(path)
    _print(f"{path}: {backbone}, lineage {lineage.name}, {num_tensors} tensors\nSHA-256 {sha256(path)}")


def _print(text: str) -> None:
    console.print(text, markup=False, highlight=False)
