"""Events of a training run. The command line draws progress bars from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdcnet.data.records import Task


@dataclass(frozen=True)
class Epoch:
    """Losses and speed of one epoch."""

    number: int  # 1-based
    losses: dict[str, float]  # weighted
    unweighted: dict[str, float]
    lr: float
    images_per_second: float
    seconds: float


class Listener:
    """Ignores all events. Override the ones you need."""

    def note(self, text: str) -> None:
        """A message for the user."""

    def unreadable(self, photos: Sequence[tuple[Path, str]], total: int) -> None:
        """Photos that are skipped, each with the reason, of `total` photos."""
        self.note(f"Skipped unreadable photos: {len(photos)} of {total}")
        for path, reason in photos:
            self.note(f"  {path}: {reason}")

    def progress(self, what: str, done: int, total: int) -> None:
        """Decoding or evaluating: `done` of `total` photos."""

    def task_started(self, task: Task, num_tasks: int) -> None: ...

    def phase_started(self, name: str, first_epoch: int, epochs: int, num_images: int) -> None:
        """`num_images`: photos per epoch."""

    def step(self, num_images: int) -> None: ...

    def epoch_ended(self, epoch: Epoch) -> None: ...

    def phase_ended(self) -> None: ...

    def close(self) -> None:
        """The run has ended or failed: clear the screen."""

    def task_ended(self, task: Task, summary: dict[str, Any]) -> None:
        """`summary`: the task's metrics under the first protocol."""


class ForwardingListener(Listener):
    """Passes all events on to `inner`. Override the ones that need more."""

    def __init__(self, inner: Listener) -> None:
        self.inner = inner

    def note(self, text: str) -> None:
        self.inner.note(text)

    def unreadable(self, photos: Sequence[tuple[Path, str]], total: int) -> None:
        self.inner.unreadable(photos, total)

    def progress(self, what: str, done: int, total: int) -> None:
        self.inner.progress(what, done, total)

    def task_started(self, task: Task, num_tasks: int) -> None:
        self.inner.task_started(task, num_tasks)

    def phase_started(self, name: str, first_epoch: int, epochs: int, num_images: int) -> None:
        self.inner.phase_started(name, first_epoch, epochs, num_images)

    def step(self, num_images: int) -> None:
        self.inner.step(num_images)

    def epoch_ended(self, epoch: Epoch) -> None:
        self.inner.epoch_ended(epoch)

    def phase_ended(self) -> None:
        self.inner.phase_ended()

    def close(self) -> None:
        self.inner.close()

    def task_ended(self, task: Task, summary: dict[str, Any]) -> None:
        self.inner.task_ended(task, summary)
