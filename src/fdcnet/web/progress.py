"""One progress bar for a whole lesson: it only moves forward."""

import time

SHARES = {"looking at the photos": 0.4, "learning": 0.8}
"""Of the rest of the bar, by stage. Nobody knows beforehand which stages follow."""
OTHER_SHARE = 0.1
TITLES = {"looking at the photos": "Computing features"}
LONG = 0.3  # a stage with this share is long enough to predict the time left from its speed
MEASURED = 0.03  # part of a stage after which its speed is known


class Progress:
    """Fraction done and seconds left, from what the training code reports."""

    def __init__(self) -> None:
        self.fraction = 0.0
        self._stage, self._done, self._total = "", 0, 0
        self.enter("opening photos")

    @property
    def title(self) -> str:
        return TITLES.get(self._stage, self._stage[:1].upper() + self._stage[1:])

    def enter(self, stage: str, total: int = 0) -> None:
        self._stage, self._done, self._total = stage, 0, total
        self._start, self._started = self.fraction, time.monotonic()

    def update(self, stage: str, done: int, total: int) -> None:
        """`done` of `total`. It enters the stage if that is another one, or the same one again."""
        if stage != self._stage or done < self._done:
            self.enter(stage)
        self._done, self._total = done, total
        self._advance()

    def step(self, amount: int) -> None:
        self._done += amount
        self._advance()

    def seconds_left(self) -> int | None:
        moved = self.fraction - self._start
        if self._share < LONG or moved < MEASURED * self._share:
            return None
        return round((1 - self.fraction) * (time.monotonic() - self._started) / moved)

    @property
    def _share(self) -> float:
        return SHARES.get(self._stage.partition(":")[0], OTHER_SHARE)

    def _advance(self) -> None:
        part = min(1.0, self._done / self._total) if self._total else 0.0
        self.fraction = self._start + part * self._share * (1 - self._start)
