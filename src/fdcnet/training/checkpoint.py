"""The checkpoint inside a task: one file with its own checksum, replaced atomically."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fdcnet.errors import UserError
from fdcnet.files import open_regular, write_bytes

FILE = "checkpoint.safetensors"
FORMAT = "2"  # 1, without this key: no checksum


@dataclass(frozen=True)
class Position:
    """How far a run has come: `epochs_done` epochs of this phase (0-based) of this task (1-based)."""

    task: int
    phase: int
    epochs_done: int


@dataclass(frozen=True)
class Checkpoint:
    position: Position
    network: dict[str, Tensor]
    task_modules: dict[str, Tensor]
    momenta: dict[str, Tensor]


def save_checkpoint(
    run_dir: Path,
    position: Position,
    network: nn.Module,
    momenta: dict[str, Tensor],
    task_modules: nn.Module | None = None,
) -> None:
    parts = {
        "network": network.state_dict(),
        "scaffold": task_modules.state_dict() if task_modules else {},
        "momentum": momenta,
    }
    tensors = {
        f"{part}.{name}": value.detach().cpu().contiguous()
        for part, values in parts.items()
        for name, value in values.items()
    }
    place = json.dumps(vars(position))
    metadata = {"format": FORMAT, "position": place, "sha256": _digest(place, tensors)}
    write_bytes(run_dir / FILE, save(tensors, metadata))


def read_checkpoint(run_dir: Path) -> Checkpoint | None:
    path = run_dir / FILE
    if not path.exists():
        return None
    try:
        return _read(path)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"The checkpoint {path} is damaged: {reason}.",
            "Delete it and resume again: the task starts over from the last saved model.",
        ) from error


def remove_checkpoint(run_dir: Path) -> None:
    (run_dir / FILE).unlink(missing_ok=True)


def _read(path: Path) -> Checkpoint:
    open_regular(path).close()
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 not a dict
    if metadata.keys() != {"position"}:  # as written before there were checksums
        if metadata["format"] != FORMAT:
            raise ValueError(f"format {metadata['format']} is not known")
        if metadata["sha256"] != _digest(metadata["position"], tensors):
            raise ValueError("its checksum does not match")
    parts: dict[str, dict[str, Tensor]] = {"network": {}, "scaffold": {}, "momentum": {}}
    for name, value in tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = value
    position = Position(**json.loads(metadata["position"]))
    return Checkpoint(position, parts["network"], parts["scaffold"], parts["momentum"])


def _digest(position: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(position.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"\0{name} {value.dtype} {tuple(value.shape)}\0".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
