"""Export a saved model as ONNX, which runs without PyTorch, or as a copy without stored photos."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fdcnet.config import Config
from fdcnet.data.batches import rng
from fdcnet.data.decode import BadImage, decode
from fdcnet.data.sources.files import listing
from fdcnet.data.synthetic import class_names, draw
from fdcnet.errors import UserError, count
from fdcnet.evaluation.evaluator import WHOLE, show
from fdcnet.files import replacing
from fdcnet.inference.localizer import predict_protocol
from fdcnet.inference.onnx_graph import ExportDiffers, largest_differences, open_session, require_packages, write_graph
from fdcnet.memory import ExemplarMemory
from fdcnet.methods import find_method
from fdcnet.methods.base import State
from fdcnet.store.bundle import load_bundle, save_bundle
from fdcnet.store.versions import versions

TOLERANCE = 1e-3  # largest difference of probabilities and masks, both in 0..1
NUM_CHECKED = 8  # photos on which the exported model is compared with PyTorch


@dataclass(frozen=True)
class Check:
    """Largest differences between the exported model and PyTorch."""

    photos: str
    num_photos: int
    scores: float
    maps: float


class _ExportedNetwork(nn.Module):
    """Maps resized photos (uint8) to the probabilities and masks of all classes."""

    pixel_mean: Tensor  # the exporter uses the name `mean` itself
    pixel_std: Tensor

    def __init__(self, state: State) -> None:
        super().__init__()
        self.network = state.network
        self.state, self.method = state, find_method(state.config.method)()
        lineage = state.network.lineage
        self.register_buffer("pixel_mean", torch.tensor(lineage.mean).view(1, 3, 1, 1))
        self.register_buffer("pixel_std", torch.tensor(lineage.std).view(1, 3, 1, 1))

    def forward(self, photos: Tensor) -> tuple[Tensor, Tensor]:
        images = (photos.permute(0, 3, 1, 2).float() - self.pixel_mean) / self.pixel_std
        outputs = self.method.outputs(self.state, images)
        return self.state.class_scores(outputs).softmax(dim=1), outputs.masks


def export_onnx(model: Path, file: Path, photos: Path | None = None) -> Check:
    """Write an ONNX file after comparing it with PyTorch on `photos`, or on photos in the model's memory."""
    require_packages()
    state = load_bundle(model)
    network = _ExportedNetwork(state).eval().requires_grad_(False)
    description, pixels = _photos_to_check(state, photos)
    if file.is_dir():
        raise UserError(f"{file} is a folder.", "Name a file, such as model.onnx.")
    with replacing(file) as new:
        write_graph(network, pixels, Path(new.name), "photos", ["scores", "maps"], _metadata(state))
        scores, maps = largest_differences(network, open_session(Path(new.name)), pixels)
        if not (scores <= TOLERANCE and maps <= TOLERANCE):
            raise ExportDiffers(
                f"The ONNX model differs from PyTorch on {description}: scores by {scores:.1e}, maps by {maps:.1e}.\n"
                "Nothing was written. Please report this with the output of 'fdcnet doctor'."
            )
    return Check(description, len(pixels), scores, maps)


def export_without_memory(model: Path, out: Path) -> None:
    """Copy a model without its exemplars and without paths of this machine. The copy starts at version 1."""
    if out.exists():
        raise UserError(f"{out} already exists.", "Name a new folder.")
    state = load_bundle(model, memory=False)
    state.memory = ExemplarMemory(state.memory.budget)
    state.config = _without_paths(state.config)
    [learned] = [version.learned for version in versions(model) if version.current]
    # Later lessons train in the same way, light or full.
    save_bundle(state, out, {**learned, "version": 1, "parent": None} if learned else None)


def _without_paths(config: Config) -> Config:
    data = replace(config.data, path=Path(config.data.path).name, order=Path(config.data.order).name)
    return replace(config, data=data, model=replace(config.model, weights=Path(config.model.weights).name))


def _metadata(state: State) -> dict[str, str]:
    """What a program needs besides the graph. ONNX metadata are strings, so lists and mappings are JSON."""
    protocol, side = predict_protocol(state.config.protocols), state.config.data.crop
    preprocessing = {
        "input": "uint8, (batch, height, width, 3), RGB, upright",
        "resize": f"the whole photo to {side} x {side}, bilinear, ignoring the aspect ratio",
        "size": [side, side],
        "normalisation": "inside the graph",
        "mean": list(state.network.lineage.mean),
        "std": list(state.network.lineage.std),
    }
    postprocessing = {
        "scores": "probabilities, (batch, classes)",
        "maps": "masks in 0..1, (batch, classes, h, w), over the whole photo",
        "normalization": protocol.normalization,
        "threshold": protocol.threshold,
    }
    return {
        "classes": json.dumps(state.classes, ensure_ascii=False),
        "tasks": json.dumps(state.task_numbers),
        "preprocessing": json.dumps(preprocessing),
        "postprocessing": json.dumps(postprocessing),
        "method": state.config.method,
        "backbone": state.config.model.backbone,
    }


def _photos_to_check(state: State, folder: Path | None) -> tuple[str, Tensor]:
    """-> description, pixels (N, side, side, 3)"""
    side, size = state.config.data.crop, state.config.data.size
    if folder is not None:
        squares = _decoded(listing(folder, deep=True).images if folder.is_dir() else [folder], side)
        if not squares:
            raise UserError(f"There are no readable photos in {folder}.", "Name a folder with photos.")
        return f"{count(len(squares), 'photo')} from {folder}", torch.from_numpy(np.stack(squares))
    if len(state.memory):
        pixels = state.memory.all_pixels()
        spread = torch.linspace(0, len(pixels) - 1, min(NUM_CHECKED, len(pixels))).long()
        return f"{count(len(spread), 'photo')} from its memory", show(pixels[spread], WHOLE, side)
    return "generated photos, because the model stores none", show(_generated(size), WHOLE, side)


def _decoded(files: Sequence[Path], side: int) -> list[np.ndarray]:
    squares: list[np.ndarray] = []
    for file in files:
        with contextlib.suppress(BadImage):
            squares.append(decode(file, side))
        if len(squares) == NUM_CHECKED:
            break
    return squares


def _generated(side: int) -> Tensor:
    pictures = [draw(name, side, rng("export", name))[0] for name in class_names(NUM_CHECKED)]
    return torch.from_numpy(np.stack([np.asarray(picture.convert("RGB")) for picture in pictures]))
