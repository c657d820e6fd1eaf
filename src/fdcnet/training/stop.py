"""Ctrl-C and SIGTERM during training: finish the step, write a checkpoint, then end. A second one ends at once."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

NOTICE = b"\nStopping after this step. Press Ctrl-C again to stop at once.\n"


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a run the way Ctrl-C does."""


class StopRequest:
    """A signal that has arrived and still has to be obeyed."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def obey(self) -> None:
        """Raise `KeyboardInterrupt` if a signal has arrived."""
        if self.signal is not None:
            raise_stop(self.signal)


def raise_stop(number: int, frame: FrameType | None = None) -> None:
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


REPLACEABLE = (signal.SIG_DFL, signal.default_int_handler, raise_stop)


@contextlib.contextmanager
def terminating_like_ctrl_c() -> Iterator[None]:
    """Inside, SIGTERM raises `Terminated`, so that files are closed and locks released."""
    with handling(raise_stop, signal.SIGTERM):
        yield


@contextlib.contextmanager
def deferred_signals() -> Iterator[StopRequest]:
    """Inside, the first Ctrl-C or SIGTERM waits for `StopRequest.obey`."""
    request = StopRequest()

    def handle(number: int, frame: FrameType | None) -> None:
        if request.signal is not None:
            raise_stop(number)
        request.signal = number
        with contextlib.suppress(OSError):
            os.write(2, NOTICE)  # the streams of Python must not be used in a handler

    with handling(handle, signal.SIGINT, signal.SIGTERM):
        yield request
    request.obey()  # it may have arrived after the last step


@contextlib.contextmanager
def handling(handle: "signal._HANDLER", *numbers: signal.Signals) -> Iterator[None]:
    """Replace the default handlers of these signals. Those of other programs stay, and so do ignored signals."""
    before = {number: signal.getsignal(number) for number in numbers}
    in_main = threading.current_thread() is threading.main_thread()  # elsewhere Python does not allow it
    replaced = {number: old for number, old in before.items() if in_main and old in REPLACEABLE}
    try:
        for number in replaced:
            signal.signal(number, handle)
        yield
    finally:
        for number, old in replaced.items():
            signal.signal(number, old)
