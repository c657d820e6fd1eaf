"""ONNX Runtime in place of PyTorch for the parts of a network that take most of the time.

None of these parts depends on the classes, except for the compensation of `fdcnet`. Lessons that freeze them, as light
lessons do, need no new export.
"""

import hashlib
import json
import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fdcnet
from fdcnet.config import to_dict
from fdcnet.data.cache import keep, kept
from fdcnet.errors import UserError
from fdcnet.inference.onnx_graph import ExportDiffers, largest_differences, open_session, require_packages, write_graph
from fdcnet.methods.base import State
from fdcnet.models.drift import drift_of
from fdcnet.models.network import LocalizationNetwork

ENGINES = ("torch", "onnx")
FORMAT = 1  # raise it whenever the exported graphs change, so that no stale ones are used
TOLERANCE = 1e-4  # largest difference from PyTorch, relative to the largest output
_log = logging.getLogger(__name__)


class OnnxPart(nn.Module):
    """A part of a network that ONNX Runtime computes. PyTorch computes inputs of other sizes."""

    def __init__(self, part: nn.Module, session: Any) -> None:
        super().__init__()
        self.part, self.session = part, session
        self.shape = tuple(session.get_inputs()[0].shape[1:])

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.shape:
            return self.part(x)
        [outputs] = self.session.run(None, {"x": x.contiguous().numpy()})
        return torch.from_numpy(outputs)


def check_engine(engine: str, device: torch.device) -> None:
    if engine not in ENGINES:
        raise UserError(f"There is no engine '{engine}'.", f"Choose {' or '.join(ENGINES)}.")
    if engine == "onnx":
        require_packages()
        if device.type != "cpu":
            raise UserError(f"The engine onnx computes on the CPU, not on {device}.", "Add --device cpu.")


def use_onnx(state: State, export: bool = True) -> bool:
    """Let ONNX Runtime compute the parts of the network. Predictions may run at the same time.

    Parts that are not in the cache are exported, which takes many seconds. Without `export`, PyTorch goes on computing
    them. Returns whether ONNX Runtime computes all parts.
    """
    network, inputs = state.network, _inputs(state.network, state.config.data.crop)
    for name, x in inputs.items():
        part = network.get_submodule(name)
        if isinstance(part, OnnxPart):
            continue
        key = _key(state, name, part)
        graph = kept(key)
        if graph is None and export:
            _log.warning("Exporting the %s for ONNX Runtime. This is done once.", name)
            graph = _export(part, x, key)
        if graph is not None:
            network.set_submodule(name, OnnxPart(part, open_session(graph)))
    return all(isinstance(network.get_submodule(name), OnnxPart) for name in inputs)


@torch.no_grad()
def _inputs(network: LocalizationNetwork, side: int) -> dict[str, Tensor]:
    """The parts that are worth it, each with an input of the size that it gets."""
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    features = network.backbone(images)
    tail_features = network.classifier.tail(features)
    inputs = {"backbone": images, "classifier.tail": features, "classifier.hidden": tail_features}
    if drift := drift_of(network):
        inputs |= {"drift.class_drift": tail_features} if drift.settings.classes else {}
        inputs |= {"drift.loc_drift": features} if drift.settings.maps else {}
    return inputs


def _key(state: State, name: str, part: nn.Module) -> str:
    """Changes with all that the graph depends on: software, settings and weights."""
    software = [FORMAT, fdcnet.__version__, torch.__version__]
    settings = [to_dict(state.config.model), state.network.lineage.name, state.config.data.crop, name]
    digest = hashlib.sha256(json.dumps([software, settings]).encode())
    for tensor_name, value in part.state_dict().items():
        digest.update(tensor_name.encode())
        digest.update(np.ascontiguousarray(value.numpy()).data)
    return digest.hexdigest()[:32]


def _export(part: nn.Module, x: Tensor, key: str) -> bytes:
    """-> the graph, which is now in the cache"""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "part.onnx"
        write_graph(part, x, file, "x", ["y"])
        graph = file.read_bytes()
    [difference] = largest_differences(part, open_session(graph), x)
    with torch.no_grad():
        scale = float(part(x).abs().max())
    if not difference <= TOLERANCE * scale:
        raise ExportDiffers(
            f"ONNX Runtime differs from PyTorch by {difference / scale:.1e} of the largest output.\n"
            "Use the engine torch, and please report this with the output of 'fdcnet doctor'."
        )
    keep(key, graph)
    return graph
