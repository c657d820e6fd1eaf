"""Saved models under attack: flipped bits must be noticed, and links must not be followed."""

import random
import shutil
import time
from pathlib import Path

import torch
from rows import Row, attempt, scratch

from fdcnet.config import load
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Record
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State
from fdcnet.models.network import new_network
from fdcnet.store.bundle import load_bundle, save_bundle
from fdcnet.store.versions import add_version, rollback, versions, writing
from fdcnet.training.checkpoint import Position, read_checkpoint, save_checkpoint

SMALL = (
    *("model.backbone=tiny", "model.weights=none", "model.head_width=16", "data.size=40", "data.crop=32", "device=cpu"),
    *("data.base_classes=2", "data.step_classes=2", "train.base_epochs=2", "train.step_epochs=2", "drift.epochs=2"),
    *("train.batch_size=4", "memory.budget=9", "train.checkpoint_minutes=0"),
)


def new_state() -> State:
    config = load(None, SMALL, method="baseline")
    network = new_network(config.model, 7)
    network.grow(2)
    photos = torch.randint(0, 256, (3, 40, 40, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    memory = ExemplarMemory(9)
    memory.add(0, photos[:2], ["a.jpg", "b.jpg"])
    held_out = PixelCache((Record(Path("c.jpg"), "a"),), torch.tensor([[40, 40]]), photos[2:])
    return State(
        config, network.eval(), memory, ["a", "b"], [2], held_out=held_out, photo_history={"00": True, "11": False}
    )


def flips(tries: int, seconds: float) -> Row:
    """Single flipped bits in every kind of file: each must be refused."""
    row, chance, started = Row("bit-flips"), random.Random("flips"), time.monotonic()
    with scratch() as folder:
        bundle = Path(folder) / "model"
        save_bundle(new_state(), bundle, {"version": 1, "parent": None, "created": "2026-01-01T00:00:00+00:00"})
        saved = Path(folder) / "run"
        save_checkpoint(saved, Position(1, 0, 2), torch.nn.Linear(4, 3), {"weight": torch.ones(3, 4)})
        files = sorted(file for file in bundle.rglob("*") if file.is_file())
        files.append(saved / "checkpoint.safetensors")

        def call() -> None:
            load_bundle(bundle)
            versions(bundle)
            read_checkpoint(saved)

        while row.tries < tries and time.monotonic() - started < seconds:
            file = files[row.tries % len(files)]
            content = file.read_bytes()
            place, bit = chance.randrange(len(content)), chance.randrange(8)
            file.write_bytes(content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :])
            if attempt(row, call, lambda file=file: file.name):
                row.fail(f"accepted: {file.name} byte {place} bit {bit}")
            file.write_bytes(content)
    return row


def links(tries: int, seconds: float) -> Row:
    """Each path of a model as a link: nothing that it points to may change or be copied."""
    row = Row("hostile-links")
    with scratch() as folder:
        for versioned in (False, True):
            for name in _paths_of_a_model(Path(folder) / "sample", versioned):
                root = Path(folder) / "try"
                _try_link(row, root, name, versioned)
                shutil.rmtree(root)
    return row


def _new_model(path: Path, versioned: bool) -> None:
    if versioned:
        with writing(path):
            add_version(new_state(), path, {}, 3)
    else:
        save_bundle(new_state(), path)


def _paths_of_a_model(path: Path, versioned: bool) -> list[str]:
    _new_model(path, versioned)
    names = [file.relative_to(path).as_posix() for file in sorted(path.rglob("*"))]
    shutil.rmtree(path)
    return [*names, "lock", "unfinished", "stopped", "versions/9", "versions/9.new", "memory/extra", "versions"]


def _try_link(row: Row, root: Path, name: str, versioned: bool) -> None:
    model, outside = root / "model", root / "outside"
    _new_model(model, versioned)
    target = outside / "target"
    target.parent.mkdir()
    link = model / name
    if link.exists():
        shutil.move(link, target)
    else:
        (target / "2019").mkdir(parents=True)
        (target / "2019" / "photo.jpg").write_text("precious")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    before = _contents(outside)

    def learn() -> None:
        with writing(model):
            add_version(new_state(), model, {}, 0)

    for call in (lambda: load_bundle(model), lambda: rollback(model, 1), learn):
        attempt(row, call, lambda: name)
        if _contents(outside) != before:
            row.fail(f"changed what {name} points to")
        if any(b"precious" in file.read_bytes() for file in model.rglob("photo.jpg") if not file.is_symlink()):
            row.fail(f"copied what {name} points to")


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}
