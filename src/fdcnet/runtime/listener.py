"""Events of a training run. The command line draws progress bars from them."""

from dataclasses import dataclass
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
