"""What a task writes down while it is learned: nothing, or checkpoints from which it can be continued."""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch import Tensor

from fdcnet.data.records import Task
from fdcnet.methods.base import Phase, State
from fdcnet.runtime.listener import Epoch
from fdcnet.training import checkpoint
from fdcnet.training.checkpoint import Checkpoint, Position
from fdcnet.training.loop import Sums
from fdcnet.training.stop import StopRequest, deferred_signals


class Journal:
    """Records the progress of a task. This base class records nothing, so a stopped task starts over."""

    def resume(self, task: Task) -> Checkpoint | None:
        """The checkpoint of this task, if there is one. Records written after it are removed."""
        return None

    def stopping(self) -> AbstractContextManager[StopRequest]:
        """Around a phase. A signal in a `StopRequest` is obeyed after a checkpoint has been saved."""
        return nullcontext(StopRequest())

    def is_due(self) -> bool:
        """Whether the last checkpoint is too old."""
        return False

    def save(self, state: State, position: Position, momenta: Mapping[str, Tensor], sums: Sums) -> None:
        """Save a checkpoint."""

    def record_epoch(self, task: int, phase: Phase, epoch: Epoch) -> None:
        """Record the losses of an epoch."""


class CheckpointJournal(Journal):
    """Saves a checkpoint in `path` every few minutes, after each phase, and when a signal ends the process."""

    def __init__(self, path: Path, minutes: float) -> None:
        self.path, self.minutes = path, minutes
        self.last_save = time.monotonic()

    def resume(self, task: Task) -> Checkpoint | None:
        saved = checkpoint.read_checkpoint(self.path)
        self.last_save = time.monotonic()
        return saved if saved and saved.position.task == task.number else None

    def stopping(self) -> AbstractContextManager[StopRequest]:
        return deferred_signals()

    def is_due(self) -> bool:
        return time.monotonic() - self.last_save > 60 * self.minutes

    def save(self, state: State, position: Position, momenta: Mapping[str, Tensor], sums: Sums) -> None:
        checkpoint.save_checkpoint(self.path, position, state.network, momenta, state.task_modules, sums.tensors)
        self.last_save = time.monotonic()
