"""One progress bar for a whole lesson: it only moves forward."""

import time

LEARNING = "learning"
LEARNING_SHARE, OTHER_SHARE = 0.8, 0.1  # of the rest of the bar; nobody knows beforehand which stages follow
MEASURED = 0.03  # part of the learning stage after which its speed is known


class Progress:
    """Fraction done and seconds left, from what the training code reports."""

    def __init__(self) -> None:
        self.fraction = 0.0
        self._stage, self._done, self._total = "", 0, 0
        self.enter("opening photos")

    @property
    def title(self) -> str:
        return self._stage[:1].upper() + self._stage[1:]

    def enter(self, stage: str, total: int = 0) -> None:
        self._stage, self._done, self._total = stage, 0, total
        self._start, self._started = self.fraction, time.monotonic()

    def update(self, stage: str, done: int, total: int) -> None:
        """`done` of `total`. It enters the stage if that is another one, or the same one again."""
        if stage != self._stage or done < self._done or self._total not in (0, total):
            self.enter(stage)
        self._done, self._total = done, total
        self._advance()

    def step(self, amount: int) -> None:
        self._done += amount
        self._advance()

    def seconds_left(self) -> int | None:
        """Known while learning: other stages are too short to tell how long the rest takes."""
        moved = self.fraction - self._start
        if not self._is_learning or moved < MEASURED * LEARNING_SHARE * (1 - self._start):
            return None
        return round((1 - self.fraction) * (time.monotonic() - self._started) / moved)

    @property
    def _is_learning(self) -> bool:
        return self._stage.partition(":")[0] == LEARNING

    def _advance(self) -> None:
        part = min(1.0, self._done / self._total) if self._total else 0.0
        share = LEARNING_SHARE if self._is_learning else OTHER_SHARE
        self.fraction = max(self.fraction, self._start + part * share * (1 - self._start))
