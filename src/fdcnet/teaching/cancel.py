"""Stopping a lesson: a listener that passes everything on and checks at every step whether to continue."""

import threading
from collections.abc import Callable

from fdcnet.data.records import Task
from fdcnet.runtime.listener import Epoch, Listener

Cancel = Callable[[], bool] | threading.Event


class Cancelled(Exception):
    """The lesson was cancelled. The model is unchanged."""


class CancellableListener(Listener):
    def __init__(self, listener: Listener, cancel: Cancel | None) -> None:
        self.listener = listener
        self.is_cancelled = cancel.is_set if isinstance(cancel, threading.Event) else cancel or (lambda: False)

    def _check(self) -> None:
        if self.is_cancelled():
            raise Cancelled("Cancelled. The model is unchanged.")

    def note(self, text: str) -> None:
        self.listener.note(text)

    def progress(self, what: str, done: int, total: int) -> None:
        self._check()
        self.listener.progress(what, done, total)

    def task_started(self, task: Task, num_tasks: int) -> None:
        self.listener.task_started(task, num_tasks)

    def phase_started(self, name: str, first_epoch: int, epochs: int, num_images: int) -> None:
        self.listener.phase_started(name, first_epoch, epochs, num_images)

    def step(self, num_images: int) -> None:
        self._check()
        self.listener.step(num_images)

    def epoch_ended(self, epoch: Epoch) -> None:
        self.listener.epoch_ended(epoch)

    def phase_ended(self) -> None:
        self.listener.phase_ended()

    def close(self) -> None:
        self.listener.close()
