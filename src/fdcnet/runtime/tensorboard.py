"""Losses and metrics of a run as TensorBoard events, beside the project's own files."""

from pathlib import Path
from typing import Any

from fdcnet.data.records import Task
from fdcnet.errors import UserError
from fdcnet.runtime.listener import Epoch, ForwardingListener, Listener


class TensorBoard(ForwardingListener):
    """Writes every epoch and the metrics after every task, and passes all events on to `inner`.

    `folder` lies in the run folder. Epochs are numbered like the lines of metrics.jsonl there, so a resumed run
    continues its curves.
    """

    def __init__(self, folder: Path, inner: Listener | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            problem = "Logging for TensorBoard needs the package tensorboard."
            raise UserError(problem, "Install it: pip install 'fdcnet[tensorboard]'") from error
        super().__init__(inner or Listener())
        self._summary_writer, self._folder = SummaryWriter, folder
        self._writer: Any = None  # opened when there is something to write: a run folder must be empty at first
        self._phase, self._epochs = "", 0

    def phase_started(self, name: str, first_epoch: int, epochs: int, num_images: int) -> None:
        self._phase = name
        super().phase_started(name, first_epoch, epochs, num_images)

    def epoch_ended(self, epoch: Epoch) -> None:
        self._epochs = self._epochs + 1 if self._epochs else max(1, self._num_recorded())
        values = {f"loss/{self._phase}/{name}": value for name, value in epoch.losses.items()}
        values |= {f"lr/{self._phase}": epoch.lr, "photos_per_second": epoch.images_per_second}
        self._write(values, self._epochs)
        super().epoch_ended(epoch)

    def task_ended(self, task: Task, summary: dict[str, Any]) -> None:
        numbers = {key: value for key, value in summary.items() if isinstance(value, float)}
        self._write({f"task/{key}": value for key, value in numbers.items()}, task.number)
        super().task_ended(task, summary)

    def close(self) -> None:
        if self._writer:
            self._writer.close()
        super().close()

    def _write(self, values: dict[str, float], step: int) -> None:
        if not self._writer:  # events of epochs that this session repeats are hidden
            next_epoch = self._epochs or 1 + self._num_recorded()
            self._writer = self._summary_writer(str(self._folder), purge_step=next_epoch)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def _num_recorded(self) -> int:
        """Epochs in metrics.jsonl."""
        file = self._folder.parent / "metrics.jsonl"
        return file.read_bytes().count(b"\n") if file.is_file() else 0
