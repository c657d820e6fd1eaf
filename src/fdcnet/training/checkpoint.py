"""The checkpoint inside a task: one file, replaced in one move, so that a kill leaves the last good one."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

FILE = "checkpoint.safetensors"


@dataclass(frozen=True)
class Position:
    """How far a run has come: this many epochs of this phase (0-based) of this task (1-based) are done."""

    task: int
    phase: int
    epochs_done: int


@dataclass(frozen=True)
class Checkpoint:
    position: Position
    network: dict[str, Tensor]
    scaffold: dict[str, Tensor]
    momenta: dict[str, Tensor]


def save_checkpoint(
    run_dir: Path, position: Position, network: nn.Module, momenta: dict[str, Tensor], scaffold: nn.Module | None = None
) -> None:
    parts = {
        "network": network.state_dict(),
        "scaffold": scaffold.state_dict() if scaffold else {},
        "momentum": momenta,
    }
    tensors = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
    beside = run_dir / (FILE + ".new")
    save_file(
        {name: value.detach().cpu().contiguous() for name, value in tensors.items()},
        beside,
        metadata={"position": json.dumps(vars(position))},
    )
    with beside.open("rb") as written:
        os.fsync(written.fileno())
    beside.replace(run_dir / FILE)


def read_checkpoint(run_dir: Path) -> Checkpoint | None:
    path = run_dir / FILE
    if not path.exists():
        return None
    with safe_open(path, framework="pt") as file:
        position = Position(**json.loads(file.metadata()["position"]))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 not a dict
    parts: dict[str, dict[str, Tensor]] = {"network": {}, "scaffold": {}, "momentum": {}}
    for name, value in tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = value
    return Checkpoint(position, parts["network"], parts["scaffold"], parts["momentum"])


def remove_checkpoint(run_dir: Path) -> None:
    (run_dir / FILE).unlink(missing_ok=True)
