"""Progress of a run for a person: bars in a terminal or notebook, plain lines in files and pipes."""

import os
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fdcnet.data.records import Task
from fdcnet.errors import count
from fdcnet.runtime.listener import Epoch, Listener

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

OFF = "FDCNET_PROGRESS"


def default_listener(progress: bool = True) -> Listener:
    """For scripts: bars in a terminal or notebook, else nothing. FDCNET_PROGRESS=0 turns them off, too."""
    console = Console(soft_wrap=True, emoji=False)
    visible = console.is_terminal or console.is_jupyter
    return Bars(console) if progress and visible and os.environ.get(OFF) != "0" else Listener()


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


class Lines(Listener):
    """For files and pipes: one line per event, at most one every few seconds."""

    every_seconds = 10.0

    def __init__(self, console: Console) -> None:
        self.console = console
        self._last = 0.0
        self._epochs = 0

    def note(self, text: str) -> None:
        self.console.print(text, markup=False)

    def progress(self, what: str, done: int, total: int) -> None:
        if self._due(done == total):
            self.console.print(f"{what}: {done} of {total}", markup=False)

    def task_started(self, task: Task, num_tasks: int) -> None:
        self.console.print(_task_line(task, num_tasks), markup=False)

    def phase_started(self, name: str, first_epoch: int, epochs: int, num_images: int) -> None:
        self._epochs, self._last = epochs, 0.0

    def epoch_ended(self, epoch: Epoch) -> None:
        if self._due(epoch.number == self._epochs):
            self.console.print(f"epoch {epoch.number}/{self._epochs}  {_losses(epoch)}", markup=False)

    def task_ended(self, task: Task, summary: dict[str, Any]) -> None:
        self.console.print(_summary_line(task, summary), markup=False)

    def _due(self, certainly: bool) -> bool:
        now = time.monotonic()
        if not certainly and now - self._last < self.every_seconds:
            return False
        self._last = now
        return True


class Bars(Listener):
    """For a terminal: one bar at a time, with the time remaining."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: Progress | None = None
        self._row: TaskID
        self._what = ""

    def note(self, text: str) -> None:
        self.console.print(text, markup=False)

    def progress(self, what: str, done: int, total: int) -> None:
        if self._what != what:
            self._open(what, total)
        if self._bar:
            self._bar.update(self._row, completed=done)
        if done == total:
            self.close()

    def task_started(self, task: Task, num_tasks: int) -> None:
        self.console.rule(_task_line(task, num_tasks), align="left")

    def phase_started(self, name: str, first_epoch: int, epochs: int, num_images: int) -> None:
        self._open(f"learning ({name})", num_images * epochs)
        if self._bar:
            self._bar.update(self._row, completed=num_images * (first_epoch - 1))

    def step(self, num_images: int) -> None:
        if self._bar:
            self._bar.advance(self._row, num_images)

    def epoch_ended(self, epoch: Epoch) -> None:
        if self._bar:
            self._bar.update(self._row, facts=_losses(epoch))

    def phase_ended(self) -> None:
        self.close()

    def task_ended(self, task: Task, summary: dict[str, Any]) -> None:
        self.console.print(_summary_line(task, summary), markup=False)

    def _open(self, what: str, total: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self.close()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("remaining"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[facts]}"),
        )
        self._bar = Progress(*columns, console=self.console)
        self._row = self._bar.add_task(what, total=total, facts="")
        self._what = what
        self._bar.start()

    def close(self) -> None:
        if self._bar:
            self._bar.stop()
        self._bar, self._what = None, ""


def _task_line(task: Task, num_tasks: int) -> str:
    new = count(len(task.classes), "class" if task.number == 1 else "new class")
    return f"Task {task.number} of {num_tasks}: {new}, {count(len(task.train), 'photo')}"


def _losses(epoch: Epoch) -> str:
    terms = "  ".join(f"{name} {value:.3f}" for name, value in epoch.losses.items())
    return f"{terms}  ({epoch.images_per_second:.0f} photos/s)"


def _summary_line(task: Task, summary: dict[str, Any]) -> str:
    names = {"top1_cls": "class right", "gt_known": "box right", "top1_loc": "both right"}
    known = [f"{name} {percent(summary[key])} %" for key, name in names.items() if summary[key] is not None]
    return f"After task {task.number} ({count(task.num_classes, 'class')}): {', '.join(known)}"
