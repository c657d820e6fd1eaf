"""A lesson that is stopped leaves a checkpoint in the model folder. The same lesson continues from it."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

import fdcnet
from fdcnet.config import to_dict
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Task
from fdcnet.errors import UserError
from fdcnet.files import remove_folder, remove_leftovers
from fdcnet.methods.base import State
from fdcnet.runtime.listener import Listener
from fdcnet.store.bundle import has_bundle, read_description
from fdcnet.store.layout import refuse_links
from fdcnet.store.photo_history import identities
from fdcnet.store.versions import STOPPED
from fdcnet.teaching.cancel import Cancelled
from fdcnet.training.checkpoint import Checkpoint, Position, read_position, remove_checkpoint
from fdcnet.training.journal import CheckpointJournal
from fdcnet.training.loop import Sums


class LessonJournal(CheckpointJournal):
    """Checkpoints of one lesson. What other lessons left is removed, so only the last one can be continued."""

    def __init__(self, model: Path, key: str, minutes: float, listener: Listener) -> None:
        super().__init__(model / STOPPED / key, minutes)
        self.listener = listener
        for other in (model / STOPPED).glob("*"):
            if other.name != key:
                remove_folder(other)
        refuse_links(self.path)
        remove_leftovers(self.path, older_than=0)

    def resume(self, task: Task) -> Checkpoint | None:
        try:
            saved = super().resume(task)
        except UserError as error:
            self.listener.note(f"{error.problem} The lesson starts over.")
            remove_checkpoint(self.path)
            return None
        if saved:
            self.listener.note(f"Resuming from {saved.position}.")
        return saved

    def save(self, state: State, position: Position, momenta: Mapping[str, Tensor], sums: Sums) -> None:
        try:
            super().save(state, position, momenta, sums)
        except OSError as error:  # the lesson itself may still succeed
            self.listener.note(f"No checkpoint was written: {error.strerror or error}.")


def lesson_key(model: Path, state: State, task: Task, photos: Sequence[PixelCache]) -> str:
    """The same for the same lesson: version of fdcnet, model, settings, and photos in their order."""
    facts: list[Any] = [fdcnet.__version__, to_dict(state.config), task.classes, [identities(own) for own in photos]]
    facts.append(read_description(model) if has_bundle(model) else None)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def forgotten_if_cancelled(model: Path) -> Iterator[None]:
    try:
        yield
    except Cancelled:
        forget_stopped(model)
        raise


def stopped_at(model: Path) -> Position | None:
    """Where the same lesson would continue."""
    positions = [read_position(folder) for folder in (model / STOPPED).glob("*")]
    return next((position for position in positions if position), None)


def forget_stopped(model: Path) -> None:
    remove_folder(model / STOPPED)
