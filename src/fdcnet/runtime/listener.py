"""What a training run tells whoever watches: the command line draws bars from it, a test records it."""

from dataclasses import dataclass
from typing import Any

from fdcnet.data.records import Task


@dataclass(frozen=True)
class Epoch:
    """What one epoch was like."""

    number: int  # 1-based
    losses: dict[str, float]  # weighted, as they are added up
    unweighted: dict[str, float]
    lr: float
    images_per_second: float
    seconds: float


class Listener:
    """Hears everything and says nothing; override what you want to show."""

    def note(self, text: str) -> None:
        """Something a person should know, once."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Decoding or evaluating: `done` of `total` photos."""

    def task_started(self, task: Task, num_tasks: int) -> None: ...

    def phase_started(self, name: str, first_epoch: int, epochs: int, num_images: int) -> None:
        """`num_images` will be seen in each epoch."""

    def step(self, num_images: int) -> None: ...

    def epoch_ended(self, epoch: Epoch) -> None: ...

    def phase_ended(self) -> None: ...

    def close(self) -> None:
        """The run is over, well or badly: leave nothing on the screen."""

    def task_ended(self, task: Task, summary: dict[str, Any]) -> None:
        """`summary`: the task's metrics under the first protocol."""
