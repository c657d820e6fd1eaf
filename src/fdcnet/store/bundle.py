"""The saved model: a folder of safetensors and JSON, with the exemplars. Written beside, then moved into place.

Where `fdcnet learn` has been, the folder holds several such bundles under versions/, and `current` names one of them.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fdcnet.config import Config, from_dict, to_dict
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import BoxXYXY, Record
from fdcnet.errors import UserError
from fdcnet.files import creating, did_you_mean, old_name, remove_folder
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State
from fdcnet.models.discriminant import Discriminant
from fdcnet.models.network import empty_network

S = TypeVar("S")
T = TypeVar("T")

FORMAT = 1
CURRENT = "current"
VERSIONS = "versions"
HISTORY = Path("memory/given.json")
DISCRIMINANT = "discriminant.safetensors"
BROKEN = (
    *(ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError),
    *(RuntimeError, OSError, MemoryError, SafetensorError, Image.DecompressionBombError),
)
"""What reading files that somebody has tampered with may end in."""
DESCRIBED = {"format", "method", "lineage", "classes", "task_sizes", "num_compensated", "config"}


def save_bundle(state: State, path: Path) -> None:
    """Replace the bundle at `path` in one move: a reader sees the old one or the new one."""
    with creating(path, replace=True) as new:
        write_bundle(state, new)


def write_bundle(state: State, new: Path) -> None:
    """All files of a bundle, into a folder that is not there yet."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.network.state_dict().items()}
    (new / "weights.safetensors").write_bytes(save(tensors))
    if state.discriminant is not None:
        (new / DISCRIMINANT).write_bytes(save(state.discriminant.state_dict()))
    _write_memory(state.memory, new / "memory")
    if state.held_out is not None:
        _write_held_out(state.held_out, new / "held_out")
    if state.photo_history:
        _write_text(new / HISTORY, json.dumps(state.photo_history))
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


def load_bundle(path: Path, memory: bool = True) -> State:
    """All that the next task needs, from the bundle alone. Without `memory` no photo is read: enough to predict."""
    return read_current(path, lambda bundle: _load(bundle, memory))


def read_current(path: Path, read: Callable[[Path], T]) -> T:
    """What `read` makes of the current version."""
    return retry_if_changed(lambda: current_dir(path), read)


def retry_if_changed(look: Callable[[], S], read: Callable[[S], T]) -> T:
    """What `read` makes of what `look` sees; once more if a writer has put something else in its place meanwhile."""
    while True:
        seen = look()
        try:
            made = read(seen)
        except (UserError, OSError):
            if seen == look():
                raise
        else:
            if seen == look():
                return made


def _load(path: Path, memory: bool) -> State:
    description = read_description(path)
    with reading(path / "fdcnet.json"):
        config = from_dict(Config, _as_written(description["config"]))
        if not config.protocols:
            raise ValueError("it has no protocol")
        network = empty_network(
            config.model,
            description["lineage"],
            len(description["classes"]),
            description["num_compensated"],
            config.drift,
            description.get("mixed", False),
        )
    with reading(path / "weights.safetensors"):
        weights = load_file(path / "weights.safetensors")
        network.load_state_dict(weights)
        if not all(bool(value.isfinite().all()) for value in weights.values()):
            raise ValueError("it holds values that are no finite numbers")
    exemplars, held_out = ExemplarMemory(config.memory.budget), None
    history: dict[str, bool] = {}
    if memory:
        with reading(path / "memory"):
            _read_memory(path / "memory", exemplars, config.data.size, len(description["classes"]))
            history = dict(json.loads((path / HISTORY).read_bytes())) if (path / HISTORY).is_file() else {}
        with reading(path / "held_out"):
            held_out = _read_held_out(path / "held_out", config.data.size)
    return State(
        config=config,
        network=network.eval(),
        memory=exemplars,
        classes=[entry["name"] for entry in description["classes"]],
        task_sizes=description["task_sizes"],
        held_out=held_out,
        photo_history=history,
        discriminant=_read_discriminant(path / DISCRIMINANT, len(description["classes"])),
    )


def _read_discriminant(file: Path, num_classes: int) -> Discriminant | None:
    if not file.is_file():
        return None
    with reading(file):
        found = Discriminant.from_state_dict(load_file(file))
        if found.num_classes != num_classes:
            raise ValueError(f"it has {found.num_classes} classes instead of {num_classes}")
        if not all(bool(part.isfinite().all()) for part in (found.sums, found.counts, found.scatter)):
            raise ValueError("it holds NaN or infinite values")
        found.solve()
        return found


def _as_written(config: dict[str, Any]) -> dict[str, Any]:
    """Settings of an older bundle: what was not there yet was off, whatever its default is today."""
    model = {"sharing": 0.0, "localizer_start": "random"} | config["model"]
    if model.get("common_foreground") is False:  # there was such a setting for a while
        del model["common_foreground"]
    return config | {"model": model}


def has_bundle(path: Path) -> bool:
    return read_current(path, lambda bundle: (bundle / "fdcnet.json").is_file())


def read_description(path: Path) -> dict[str, Any]:
    return read_current(path, lambda bundle: _describe(path, bundle / "fdcnet.json"))


def _describe(path: Path, file: Path) -> dict[str, Any]:
    if not file.is_file():
        if kept := kept_numbers(path):
            problem = f"The current version of {path}, {current_number(path)}, is missing."
            raise UserError(problem, f"Go back to one that is there: fdcnet rollback {path} --to {kept[-1]}")
        remedy = "A model is what 'fdcnet learn' made, or runs/NAME/model of 'fdcnet train'."
        if not path.exists():
            beside = [other.name for other in path.parent.glob("*") if other.is_dir() and has_bundle(other)]
            hint = did_you_mean(path.name, beside, otherwise=remedy, prefix=f"{path.parent / 'x'}"[:-1])
            raise UserError(f"There is no model {path}.", hint)
        raise UserError(f"{path} is no model: it holds no fdcnet.json.", remedy)
    with reading(file):
        description: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        newer = description["format"] > FORMAT
        if not newer and (missing := DESCRIBED - description.keys()):
            raise ValueError(f"it does not say {', '.join(sorted(missing))}")
        if not newer:
            _check_classes(description)
    if newer:
        raise UserError(
            f"{path} was written by a newer fdcnet (format {description['format']}, this one reads {FORMAT}).",
            "Update fdcnet.",
        )
    return description


def _check_classes(description: dict[str, Any]) -> None:
    names, sizes = [entry["name"] for entry in description["classes"]], description["task_sizes"]
    if not all(isinstance(name, str) for name in names):
        raise ValueError("a class has no name")
    if not all(type(size) is int and size > 0 for size in sizes) or sum(sizes) != len(names):
        raise ValueError(f"it has {len(names)} classes, which is not the sum of its tasks")
    if type(description["num_compensated"]) is not int or not 0 <= description["num_compensated"] <= len(names):
        raise ValueError(f"it has {len(names)} classes, of which it cannot compensate as many as it says")


def current_number(path: Path) -> int | None:
    """The version that is in use; None for a bundle without versions.

    Versions without `current` are what a kill leaves at the very end of a first lesson: then it is the newest one.
    """
    pointed = pointed_number(path)
    if pointed is None and not (path / "fdcnet.json").is_file():
        return max(kept_numbers(path), default=None)
    return pointed


def kept_numbers(path: Path) -> list[int]:
    """Of the versions that are there, the oldest first."""
    try:
        entries = list((path / VERSIONS).iterdir())
    except OSError:
        return []
    return sorted(int(entry.name) for entry in entries if entry.name.isdigit() and (entry / "fdcnet.json").is_file())


def pointed_number(path: Path) -> int | None:
    """What the file `current` says."""
    pointer = path / CURRENT
    with reading(pointer):
        try:
            text = pointer.read_text(encoding="ascii").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not text.isdigit() or int(text) < 1:
            raise ValueError("it names no version")
        return int(text)


@contextlib.contextmanager
def reading(file: Path) -> Iterator[None]:
    """Whatever is wrong with the file, in words."""
    try:
        yield
    except BROKEN as error:
        problem = f"{file} is damaged: {' '.join(str(error).split())[:200]}"
        raise UserError(problem, "Restore the bundle from a copy.") from error


def current_dir(path: Path) -> Path:
    """Where the files lie: the current version, if there are several. A kill between the two moves of `_swap` leaves
    the previous bundle under its other name."""
    if number := current_number(path):
        return path / VERSIONS / str(number)
    old = old_name(path)
    return old if not path.exists() and old.exists() else path


def remove_old(path: Path) -> None:
    """What the bundle has taken the place of."""
    remove_folder(old_name(path))


def _write_memory(memory: ExemplarMemory, folder: Path) -> None:
    entries: list[dict[str, Any]] = []
    photos: list[Tensor] = []
    for label, pixels in memory.pixels.items():
        for rank, name in enumerate(memory.names[label]):
            entries.append({"label": label, "rank": rank, "name": name})
            photos.append(pixels[rank])
    _write_photos(folder, entries, photos)


def _read_memory(folder: Path, memory: ExemplarMemory, size: int, num_classes: int) -> None:
    entries, images = _read_photos(folder, size)
    if not all(type(entry["label"]) is int and 0 <= entry["label"] < num_classes for entry in entries):
        raise ValueError("a photo is of no class")
    for label in dict.fromkeys(entry["label"] for entry in entries):
        ranks = [i for i, entry in enumerate(entries) if entry["label"] == label]
        memory.add(label, torch.from_numpy(np.stack([images[i] for i in ranks])), [entries[i]["name"] for i in ranks])


def _write_held_out(photos: PixelCache, folder: Path) -> None:
    entries = [
        {"class": record.label, "name": record.path.name, "size": size, "boxes_xyxy": record.boxes_xyxy}
        for record, size in zip(photos.records, photos.sizes.tolist(), strict=True)
    ]
    _write_photos(folder, entries, photos.pixels.cpu())


def _read_held_out(folder: Path, size: int) -> PixelCache | None:
    if not folder.is_dir():
        return None
    entries, images = _read_photos(folder, size)
    if not entries:
        return None
    records = tuple(
        Record(Path(entry["name"]), entry["class"], tuple(_box(*box) for box in entry["boxes_xyxy"]))
        for entry in entries
    )
    return PixelCache(records, torch.tensor([entry["size"] for entry in entries]), torch.from_numpy(np.stack(images)))


def _write_photos(folder: Path, entries: Sequence[dict[str, Any]], photos: Sequence[Tensor] | Tensor) -> None:
    (folder / "images").mkdir(parents=True)
    files = [f"{number:06d}.png" for number in range(len(entries))]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda file, photo: _write_png(folder / "images" / file, photo), files, photos))
    lines = [json.dumps(e | {"file": f}, ensure_ascii=False) + "\n" for e, f in zip(entries, files, strict=True)]
    _write_text(folder / "manifest.jsonl", "".join(lines))


def _write_png(file: Path, photo: Tensor) -> None:
    Image.fromarray(photo.numpy()).save(file, compress_level=1)


def _read_photos(folder: Path, size: int) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    text = (folder / "manifest.jsonl").read_text(encoding="utf-8")
    entries = [json.loads(line) for line in text.split("\n") if line]  # a photo's name may hold other line ends
    with ThreadPoolExecutor() as pool:
        return entries, list(pool.map(lambda entry: _read_png(folder / "images", entry["file"], size), entries))


def _read_png(folder: Path, name: str, size: int) -> np.ndarray:
    """Nothing but what `_write_png` writes: a bundle may come from anywhere."""
    if Path(name).name != name:
        raise ValueError(f"{name} lies elsewhere")
    with Image.open(folder / name, formats=("PNG",)) as image:
        if (image.mode, image.size) != ("RGB", (size, size)):
            raise ValueError(f"{name} is no photo of {size} x {size} pixels")
        return np.array(image)


def _box(x0: float, y0: float, x1: float, y1: float) -> BoxXYXY:
    return float(x0), float(y0), float(x1), float(y1)


def _write_text(path: Path, text: str) -> None:
    """A file name that is no UTF-8 becomes an escape, which JSON reads back."""
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
