"""The checkpoint inside a task: one file with its own checksum, replaced atomically."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fdcnet.errors import UserError
from fdcnet.files import open_regular, write_bytes

FILE = "checkpoint.safetensors"
FORMAT = "3"
START_OVER = "Delete it and resume again: the task starts over from the last saved model."
READABLE = ("2", FORMAT)  # 2: at the end of an epoch only. 1, without this key: no checksum


@dataclass(frozen=True)
class Position:
    """How far a run has come in this phase (0-based) of this task (1-based): whole epochs, steps of the next one."""

    task: int
    phase: int
    epochs_done: int
    steps_done: int = 0
    phase_name: str = ""

    def __str__(self) -> str:
        phase = f"task {self.task}, phase {self.phase_name or self.phase + 1}"
        if self.steps_done:
            return f"{phase}, epoch {self.epochs_done + 1}, after step {self.steps_done}"
        return f"{phase}, after epoch {self.epochs_done}"


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    position: Position
    network: dict[str, Tensor]
    task_modules: dict[str, Tensor]
    momenta: dict[str, Tensor]
    losses: dict[str, Tensor]  # sums over the steps of an unfinished epoch

    @contextlib.contextmanager
    def fitting(self) -> Iterator[None]:
        """Inside, errors mean that another version of the program wrote this checkpoint."""
        try:
            yield
        except (RuntimeError, LookupError) as error:
            raise self.misfit(str(error)) from error

    def misfit(self, reason: str) -> UserError:
        reason = " ".join(reason.split())[:200]
        return UserError(f"The checkpoint {self.path} does not fit this run: {reason}.", START_OVER)


def save_checkpoint(
    run_dir: Path,
    position: Position,
    network: nn.Module,
    momenta: Mapping[str, Tensor],
    task_modules: nn.Module | None = None,
    losses: Mapping[str, Tensor] | None = None,
) -> None:
    parts: dict[str, Mapping[str, Tensor]] = {
        "network": network.state_dict(),
        "scaffold": task_modules.state_dict() if task_modules else {},
        "momentum": momenta,
        "losses": losses or {},
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
        raise UserError(f"The checkpoint {path} is damaged: {reason}.", START_OVER) from error


def read_position(run_dir: Path) -> Position | None:
    """The position alone, without reading the tensors. None if it cannot be read."""
    try:
        with safe_open(run_dir / FILE, framework="pt") as file:
            return _position(file.metadata())
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError):
        return None


def remove_checkpoint(run_dir: Path) -> None:
    (run_dir / FILE).unlink(missing_ok=True)


def _read(path: Path) -> Checkpoint:
    open_regular(path).close()
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 not a dict
    if metadata.keys() != {"position"}:  # as written before there were checksums
        if metadata["format"] not in READABLE:
            raise ValueError(f"format {metadata['format']} is not known")
        if metadata["sha256"] != _digest(metadata["position"], tensors):
            raise ValueError("its checksum does not match")
    parts: dict[str, dict[str, Tensor]] = {"network": {}, "scaffold": {}, "momentum": {}, "losses": {}}
    for name, value in tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = value
    return Checkpoint(path, _position(metadata), *parts.values())


def _position(metadata: dict[str, str]) -> Position:
    return Position(**json.loads(metadata["position"]))


def _digest(position: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(position.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"\0{name} {value.dtype} {tuple(value.shape)}\0".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
