"""The saved model: a folder of safetensors and JSON, with the exemplars. Written beside, then moved into place."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fdcnet.config import Config, from_dict, to_dict
from fdcnet.errors import UserError
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State
from fdcnet.models.network import empty_network

FORMAT = 1
DESCRIBED = {"format", "method", "lineage", "classes", "task_sizes", "num_compensated", "config"}


def save_bundle(state: State, path: Path) -> None:
    """Replace the bundle at `path` in one move: a reader sees the old one or the new one."""
    new = path.with_name(path.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.network.state_dict().items()}
    save_file(tensors, new / "weights.safetensors")
    readable(new / "weights.safetensors")
    _write_memory(state.memory, new / "memory")
    description = {
        "format": FORMAT,
        "method": state.config.method,
        "lineage": state.network.lineage.name,
        "classes": [{"name": name, "task": task} for name, task in zip(state.classes, state.task_numbers, strict=True)],
        "task_sizes": state.task_sizes,
        "num_compensated": state.network.drift.num_old if state.network.drift else 0,
        "mixed": state.network.is_mixed,
        "config": to_dict(state.config),
    }
    _write_text(new / "fdcnet.json", json.dumps(description, indent=1, ensure_ascii=False))
    _sync_tree(new)
    _swap(new, path)


def load_bundle(path: Path, memory: bool = True) -> State:
    """All that the next task needs, from the bundle alone. Without `memory` no exemplar is read: enough to predict."""
    description = read_description(path)
    config = from_dict(Config, description["config"])
    network = empty_network(
        config.model,
        description["lineage"],
        len(description["classes"]),
        description["num_compensated"],
        config.drift,
        description.get("mixed", False),
    )
    try:
        network.load_state_dict(load_file(_found(path) / "weights.safetensors"))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise _damaged(_found(path) / "weights.safetensors", error) from error
    exemplars = ExemplarMemory(config.memory.budget)
    if memory:
        try:
            _read_memory(_found(path) / "memory", exemplars)
        except (ValueError, KeyError, OSError) as error:
            raise _damaged(_found(path) / "memory", error) from error
    return State(
        config=config,
        network=network.eval(),
        memory=exemplars,
        classes=[entry["name"] for entry in description["classes"]],
        task_sizes=description["task_sizes"],
    )


def has_bundle(path: Path) -> bool:
    return (_found(path) / "fdcnet.json").is_file()


def read_description(path: Path) -> dict[str, Any]:
    file = _found(path) / "fdcnet.json"
    if not file.is_file():
        raise UserError(f"{path} is no model: it holds no fdcnet.json.", "Name a bundle, such as runs/NAME/model.")
    try:
        description: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        newer = description["format"] > FORMAT
        if not newer and (missing := DESCRIBED - description.keys()):
            raise ValueError(f"it does not say {', '.join(sorted(missing))}")
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(file, error) from error
    if newer:
        raise UserError(
            f"{path} was written by a newer fdcnet (format {description['format']}, this one reads {FORMAT}).",
            "Update fdcnet.",
        )
    return description


def _damaged(file: Path, error: Exception) -> UserError:
    return UserError(f"{file} is damaged: {' '.join(str(error).split())[:200]}", "Restore the bundle from a copy.")


def _found(path: Path) -> Path:
    """A kill between the two moves of `_swap` leaves the previous bundle under its other name."""
    old = path.with_name(path.name + ".old")
    return old if not path.exists() and old.exists() else path


def _swap(new: Path, path: Path) -> None:
    old = path.with_name(path.name + ".old")
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    new.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def _write_memory(memory: ExemplarMemory, folder: Path) -> None:
    (folder / "images").mkdir(parents=True)
    entries: list[dict[str, Any]] = []
    jobs: list[tuple[Tensor, Path]] = []
    for label, pixels in memory.pixels.items():
        for rank, name in enumerate(memory.names[label]):
            file = f"{len(entries):06d}.png"
            entries.append({"label": label, "rank": rank, "name": name, "file": file})
            jobs.append((pixels[rank], folder / "images" / file))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda job: Image.fromarray(job[0].numpy()).save(job[1], compress_level=1), jobs))
    lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries]
    _write_text(folder / "manifest.jsonl", "".join(lines))


def _read_memory(folder: Path, memory: ExemplarMemory) -> None:
    text = (folder / "manifest.jsonl").read_text(encoding="utf-8")
    entries = [json.loads(line) for line in text.splitlines()]
    with ThreadPoolExecutor() as pool:
        images = list(pool.map(lambda entry: np.array(Image.open(folder / "images" / entry["file"])), entries))
    for label in dict.fromkeys(entry["label"] for entry in entries):
        ranks = [i for i, entry in enumerate(entries) if entry["label"] == label]
        memory.add(label, torch.from_numpy(np.stack([images[i] for i in ranks])), [entries[i]["name"] for i in ranks])


def _write_text(path: Path, text: str) -> None:
    """A file name that is no UTF-8 becomes an escape, which JSON reads back."""
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def readable(path: Path) -> None:
    """safetensors writes files that only their owner may read; ours follow the user's mask as all other files do."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def _sync_tree(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
