"""Stopping a lesson: a listener that passes everything on and checks at every step whether to continue."""

import threading
from collections.abc import Callable

from fdcnet.runtime.listener import ForwardingListener, Listener

Cancel = Callable[[], bool] | threading.Event


class Cancelled(Exception):
    """The lesson was cancelled. The model is unchanged."""


class CancellableListener(ForwardingListener):
    def __init__(self, listener: Listener, cancel: Cancel | None) -> None:
        super().__init__(listener)
        self.is_cancelled = cancel.is_set if isinstance(cancel, threading.Event) else cancel or (lambda: False)

    def progress(self, what: str, done: int, total: int) -> None:
        self._check()
        super().progress(what, done, total)

    def step(self, num_images: int) -> None:
        self._check()
        super().step(num_images)

    def _check(self) -> None:
        if self.is_cancelled():
            raise Cancelled("Cancelled. The model is unchanged.")
