"""The saved model: weights in safetensors, a description in JSON, and photos, each file with a checksum."""

import json
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save
from torch import Tensor

from fdcnet.config import Config, from_dict, to_dict
from fdcnet.files import creating, old_name, remove_folder
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State
from fdcnet.models.discriminant import Discriminant
from fdcnet.models.drift import DriftSettings, add_drift, drift_of
from fdcnet.models.network import LocalizationNetwork, empty_network
from fdcnet.models.pairs import is_mixed, mix
from fdcnet.store.description import FORMAT, check_file, has_file, problems, read_description, read_file, seal
from fdcnet.store.layout import (
    CURRENT,
    VERSIONS,
    DamagedModel,
    current_number,
    has_bundle,
    kept_numbers,
    read_current,
    reading,
)
from fdcnet.store.photos import HELD_OUT, MEMORY, read_held_out, read_memory, write_held_out, write_memory

__all__ = [
    "CURRENT",
    "FORMAT",
    "current_number",
    "has_bundle",
    "load_bundle",
    "read_current",
    "read_description",
    "remove_old",
    "save_bundle",
    "write_bundle",
]

WEIGHTS = "weights.safetensors"
DISCRIMINANT = "discriminant.safetensors"
HISTORY = "memory/given.json"
LEARNED = "learned.json"
DROPPED = {"common_foreground": False, "weakest_erasing": 1.0, "area_loss": "mean"}  # settings that no longer exist

_log = logging.getLogger(__name__)


def save_bundle(state: State, path: Path, learned: Mapping[str, Any] | None = None) -> None:
    """Replace the bundle at `path`: a reader sees the old one or the new one."""
    with creating(path, replace=True) as new:
        write_bundle(state, new, learned)


def write_bundle(state: State, new: Path, learned: Mapping[str, Any] | None = None) -> None:
    """Write all files of a bundle into an empty folder. `learned`: what `fdcnet learn` says about the lesson."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.network.state_dict().items()}
    (new / WEIGHTS).write_bytes(save(tensors))
    if state.discriminant is not None:
        (new / DISCRIMINANT).write_bytes(save(state.discriminant.state_dict()))
    write_memory(state.memory, new)
    if state.held_out is not None:
        write_held_out(state.held_out, new)
    if state.photo_history:
        (new / HISTORY).write_text(json.dumps(state.photo_history), encoding="utf-8")
    if learned:
        write_learned(new, learned)
    description = {
        "format": FORMAT,
        "method": state.config.method,
        "lineage": state.network.lineage.name,
        "classes": [{"name": name, "task": task} for name, task in zip(state.classes, state.task_numbers, strict=True)],
        "task_sizes": state.task_sizes,
        "num_compensated": drift.num_old if (drift := drift_of(state.network)) else 0,
        "mixed": is_mixed(state.network),
        "config": to_dict(state.config),
    }
    seal(new, description)


def write_learned(bundle: Path, learned: Mapping[str, Any]) -> None:
    text = json.dumps(dict(learned), indent=1, ensure_ascii=False)
    (bundle / LEARNED).write_text(text, encoding="utf-8", errors="backslashreplace")


def load_bundle(path: Path, memory: bool = True) -> State:
    """Everything that the next task needs. Without `memory` no photo is read, which is enough to predict."""
    try:
        if "files" not in read_description(path):
            _notice_missing_checksums(path)
        return read_current(path, lambda bundle: _load(bundle, memory))
    except DamagedModel as error:
        raise _with_offer(error, path) from error


@cache
def _notice_missing_checksums(path: Path) -> None:
    _log.warning("%s has no checksums: an older fdcnet wrote it. The next lesson adds them.", path)


def _with_offer(error: DamagedModel, path: Path) -> DamagedModel:
    """Name the newest intact version, if the model has one."""
    current = current_number(path)
    others = [number for number in reversed(kept_numbers(path)) if number != current]
    for number in others:
        if not problems(path / VERSIONS / str(number)):
            return DamagedModel(error.problem, f"Version {number} is intact: fdcnet rollback {path} --to {number}")
    return error


def _load(path: Path, memory: bool) -> State:
    description = read_description(path)
    num_classes = len(description["classes"])
    with reading(path / "fdcnet.json"):
        config = from_dict(Config, settings_as_written(description["config"]))
        if not config.protocols:
            raise ValueError("it has no protocol")
    network = _read_network(path, description, config)
    exemplars, held_out = ExemplarMemory(config.memory.budget), None
    history: dict[str, bool] = {}
    if memory:
        with reading(path / MEMORY):
            read_memory(path, description, exemplars, config.data.size, num_classes)
            if has_file(path, HISTORY, description):
                history = dict(json.loads(read_file(path, HISTORY, description)))
        with reading(path / HELD_OUT):
            held_out = read_held_out(path, description, config.data.size)
    return State(
        config=config,
        network=network.eval(),
        memory=exemplars,
        classes=[entry["name"] for entry in description["classes"]],
        task_sizes=description["task_sizes"],
        held_out=held_out,
        photo_history=history,
        discriminant=_read_discriminant(path, description, num_classes),
    )


def _read_network(path: Path, description: dict[str, Any], config: Config) -> LocalizationNetwork:
    with reading(path / WEIGHTS):
        file = check_file(path, WEIGHTS, description)
        shapes = _shapes(file)
    with reading(path / "fdcnet.json"), torch.device("meta"):
        network = empty_network(config.model, description["lineage"], len(description["classes"]))
        if description.get("mixed", False):
            mix(network)
        if description["num_compensated"]:
            add_drift(network, description["num_compensated"], config.section(DriftSettings))
    with reading(path / WEIGHTS):
        places = network.state_dict()
        _compare_shapes(shapes, places)  # before memory is allocated for what fdcnet.json says
        weights = load_file(file)
        _refuse_nan(weights)
        # What to_empty does, but that imports sympy.
        values = {
            name: torch.empty_strided(place.shape, place.stride(), dtype=place.dtype).copy_(weights[name])
            for name, place in places.items()
        }
        network.load_state_dict(values, assign=True)
    return network


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    with safe_open(file, framework="pt") as opened:
        return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118 not a dict


def _compare_shapes(found: dict[str, tuple[int, ...]], places: Mapping[str, Tensor]) -> None:
    expected = {name: tuple(place.shape) for name, place in places.items()}
    for name in expected.keys() | found.keys():
        if expected.get(name) != found.get(name):
            raise ValueError(f"{name} has shape {found.get(name)} instead of {expected.get(name)}")


def _refuse_nan(tensors: Mapping[str, Tensor]) -> None:
    if not all(bool(value.isfinite().all()) for value in tensors.values()):
        raise ValueError("it holds NaN or infinite values")


def _read_discriminant(path: Path, description: dict[str, Any], num_classes: int) -> Discriminant | None:
    if not has_file(path, DISCRIMINANT, description):
        return None
    with reading(path / DISCRIMINANT):
        tensors = load(check_file(path, DISCRIMINANT, description).read_bytes())  # not mapped: it is kept as it is
        _refuse_nan(tensors)
        found = Discriminant.from_state_dict(tensors)
        if found.num_classes != num_classes:
            raise ValueError(f"it has {found.num_classes} classes instead of {num_classes}")
        found.solve()
        return found


def settings_as_written(config: dict[str, Any]) -> dict[str, Any]:
    """Settings of an older bundle or run. A setting that did not exist then was off, whatever its default is today."""
    model = {"sharing": 0.0, "localizer_start": "random"} | _without_dropped(config["model"])
    masks = {
        "foreground": "all",
        "allowed_background": 1.0,
        "mask_shifts": False,
        "erased_statistics": "batch",
        "full_rate_classes": 0,
    }
    train = masks | _without_dropped(config["train"])
    protocols = [{"map_views": 1} | protocol for protocol in config.get("protocols", [])]
    lda = {"old_classes": "exemplars"} | config.get("lda", {})
    return config | {"model": model, "train": train, "lda": lda, "protocols": protocols}


def _without_dropped(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if (key, value) not in DROPPED.items()}


def remove_old(path: Path) -> None:
    """Remove the bundle that this one has replaced, if a kill has left it."""
    remove_folder(old_name(path))
