"""Where the time of a run goes, by phase."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator


class Clock:
    """Seconds by phase. A phase inside another one counts for itself only, so that all of them add up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self._count()
        self._open.append(phase)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def _count(self) -> None:
        """Count the time since the last change for the innermost phase."""
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now
