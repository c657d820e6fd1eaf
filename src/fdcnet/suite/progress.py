"""Progress of a suite for a person: a table in a terminal, a line per event elsewhere."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fdcnet.config import Config, to_dict
from fdcnet.store.record import RunRecord
from fdcnet.suite.runner import Job, Watcher

LOG_LINES = 4  # of a failed run


@dataclass(frozen=True)
class RunPosition:
    """How far a run has come."""

    task: int
    num_tasks: int
    share: float  # of all photos that it will train on


def position(folder: Path, config: Config) -> RunPosition | None:
    """Read from the record of a run; None before its first epoch has ended."""
    record = RunRecord(folder)
    lines = record.metrics() if record.exists() else []
    if not lines:
        return None
    facts, last = record.run(), lines[-1]
    photos = photos_of(facts, config)
    done = sum(photos[: last["task"] - 1])
    own = [line for line in lines if line["task"] == last["task"]]
    now = photos[last["task"] - 1] * min(1.0, len(own) / _epochs(config, last["task"]))
    return RunPosition(last["task"], len(photos), (done + now) / sum(photos))


def photos_of(facts: dict[str, Any], config: Config) -> list[float]:
    """Photos of each task, times its epochs. Classes are assumed to have equally many."""
    sizes = [len(classes) for classes in facts["tasks"]]
    per_class = facts["data"]["num_train"] / sum(sizes)
    return [
        (size * per_class + (facts["memory_images"] if t > 1 else 0)) * _epochs(config, t)
        for t, size in enumerate(sizes, 1)
    ]


def _epochs(config: Config, task: int) -> int:
    if task == 1:
        return config.train.base_epochs
    drift = to_dict(config)["drift"]["epochs"] if config.method == "fdcnet" else 0
    return int(config.train.step_epochs + drift)


def duration(seconds: float) -> str:
    """45 s, 12 min, 3 h 5 min"""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def remaining(jobs: Sequence[Job], at_once: int) -> float | None:
    """Seconds until the end, from the mean of those that are done in this session; None before the first."""
    took = [job.ended - job.started for job in jobs if job.state == "done" and job.ended]
    left = sum(job.state in ("waiting", "running") for job in jobs)
    return sum(took) / len(took) * left / at_once if took else None


@dataclass
class Lines(Watcher):
    """One line per event."""

    console: Console

    def changed(self, job: Job) -> None:
        took = f" after {duration(job.ended - job.started)}" if job.ended else ""
        self.console.print(f"{job.run.name}: {job.state}{took}", markup=False)
        if job.state == "failed" and job.log.is_file():
            lines = job.log.read_text(encoding="utf-8", errors="replace").splitlines()
            self.console.print("\n".join(f"  {line}" for line in lines[-LOG_LINES:]), markup=False)


@dataclass
class LiveTable(Lines):
    """The running jobs, and what is done and left."""

    at_once: int = 1
    _live: Live | None = None
    _first: dict[str, tuple[float, float]] = field(default_factory=dict)  # run -> time and share when first seen

    def tick(self, jobs: Sequence[Job]) -> None:
        if self._live is None:
            self._live = Live(console=self.console, refresh_per_second=2)
            self._live.start()
        self._live.update(self._table(jobs))

    def close(self) -> None:
        if self._live:
            self._live.stop()

    def _table(self, jobs: Sequence[Job]) -> Table:
        table = Table(caption=self._summary(jobs), caption_justify="left")
        for name in ("Run", "Task", "Done", "Time", "Left"):
            table.add_column(name, justify="left" if name == "Run" else "right")
        for job in jobs:
            if job.state != "running":
                continue
            now, at = position(job.folder, job.run.config), time.monotonic()
            took = duration(at - job.started)
            if now is None:
                table.add_row(Text(job.run.name), "", "", took, "")
                continue
            since, share = self._first.setdefault(job.run.name, (at, now.share))
            left = (at - since) / (now.share - share) * (1 - now.share) if now.share > share else None
            task = f"{now.task} of {now.num_tasks}"
            table.add_row(
                Text(job.run.name), task, f"{100 * now.share:.0f} %", took, duration(left) if left is not None else ""
            )
        return table

    def _summary(self, jobs: Sequence[Job]) -> str:
        states = [job.state for job in jobs]
        text = f"{states.count('done')} of {len(jobs)} done"
        if failed := states.count("failed"):
            text += f", {failed} failed"
        left = remaining(jobs, self.at_once)
        return f"{text}, about {duration(left)} left" if left else text
