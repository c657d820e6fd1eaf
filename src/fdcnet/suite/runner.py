"""Run a suite: several processes at a time, each an ordinary `fdcnet train`, in order of priority.

Nothing is kept in memory alone. What is done, what was cut and what is left is read from the folders, so a suite that
was killed continues when it is started again.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fdcnet.errors import UserError
from fdcnet.files import is_locked
from fdcnet.store.record import RunRecord
from fdcnet.suite.export import differences, export_run, exported_config, is_exported
from fdcnet.suite.mps import shared_gpu
from fdcnet.suite.plan import PlannedRun, Suite
from fdcnet.training.stop import handling, raise_stop

JobState = Literal["waiting", "running", "done", "failed", "stopped"]
POLL_SECONDS = 0.5
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has no SIGHUP


@dataclass
class Job:
    """A run of the suite or a first task that several of them share."""

    run: PlannedRun
    folder: Path
    target: Path | None  # where its results go; None for a first task
    needs: "Job | None" = None
    state: JobState = "waiting"
    process: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    ended: float = 0.0
    attempts: int = 0

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")


class Watcher:
    """Events of a suite. This base class ignores them."""

    def changed(self, job: Job) -> None:
        """A job has started, is done or has failed."""

    def tick(self, jobs: Sequence[Job]) -> None:
        """Called again and again while jobs run."""


@dataclass
class Runner:
    suite: Suite
    out: Path  # run folders
    results: Path
    jobs: int = 1
    device: str | None = None
    minutes: float | None = None
    watcher: Watcher = field(default_factory=Watcher)

    def run(self) -> list[Job]:
        """Run what is left and return all jobs, with their state."""
        self._refuse_other_settings()
        jobs = self.plan()
        deadline = time.monotonic() + 60 * self.minutes if self.minutes else float("inf")
        self.out.mkdir(parents=True, exist_ok=True)
        with shared_gpu(self.jobs > 1 and self.device != "cpu") as variables, _stopping(jobs):
            while any(job.state in ("waiting", "running") for job in jobs):
                for job in jobs:
                    if job.process and job.process.poll() is not None:
                        self._end(job, job.process)
                if time.monotonic() > deadline:
                    break
                while startable := self._next(jobs):
                    self._start(startable, variables)
                self.watcher.tick(jobs)
                time.sleep(POLL_SECONDS)
        return jobs

    def plan(self) -> list[Job]:
        """All runs in order of priority. A first task comes right before the first run that needs it."""
        jobs: dict[str, Job] = {}
        for run in self.suite.runs.values():
            target = self.results / self.suite.name / run.name
            done, needed = is_exported(target), None
            if run.first_task and not done:
                planned = self.suite.first_tasks[run.first_task]
                needed = jobs.setdefault(run.first_task, Job(planned, self.out / run.first_task, None))
            jobs[run.name] = Job(run, self.out / run.name, target, needed, "done" if done else "waiting")
        return list(jobs.values())

    def command(self, job: Job) -> list[str]:
        words = ["train", *job.run.arguments, "--out", str(job.folder)]
        words += ["--device", self.device] if self.device else []
        words += ["--base-model", str(job.needs.folder / "model")] if job.needs else []
        return words + (["--resume"] if RunRecord(job.folder).exists() else [])

    def _next(self, jobs: Sequence[Job]) -> Job | None:
        if sum(job.state == "running" for job in jobs) >= self.jobs:
            return None
        for job in jobs:
            if job.state != "waiting":
                continue
            if job.needs and job.needs.state in ("failed", "stopped"):
                self._set(job, "failed")
            elif (not job.needs or job.needs.state == "done") and not is_locked(job.folder):
                if not _is_finished(job.folder):
                    return job
                self._finish(job)  # by another process
        return None

    def _start(self, job: Job, variables: Mapping[str, str]) -> None:
        with job.log.open("ab") as log:
            command = [sys.executable, "-m", "fdcnet", *self.command(job)]
            # A session of its own: Ctrl-C reaches the suite alone, which then stops its runs. A run that gets both
            # signals stops at once, without a checkpoint.
            job.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | variables, start_new_session=True
            )
        job.started, job.attempts = time.monotonic(), job.attempts + 1
        self._set(job, "running")

    def _end(self, job: Job, process: "subprocess.Popen[bytes]") -> None:
        job.process, job.ended = None, time.monotonic()
        if process.returncode == 0 and _is_finished(job.folder):
            self._finish(job)
        elif self.jobs > 1 and job.attempts == 1 and RunRecord(job.folder).exists():
            self._set(job, "waiting")  # with MPS, a process that crashes ends those beside it as well
        else:
            self._set(job, "failed")

    def _finish(self, job: Job) -> None:
        if job.target:
            export_run(job.folder, job.target)
        self._set(job, "done")

    def _set(self, job: Job, state: JobState) -> None:
        job.state = state
        self.watcher.changed(job)

    def _refuse_other_settings(self) -> None:
        for run in self.suite.runs.values():
            target = self.results / self.suite.name / run.name
            if is_exported(target) and (other := differences(exported_config(target), run.config)):
                raise UserError(
                    f"{target} was measured with different settings: {', '.join(other)}.",
                    "Delete that folder to measure it again, or change the settings of the suite back.",
                )


def _is_finished(folder: Path) -> bool:
    record = RunRecord(folder)
    return record.exists() and bool(record.run().get("finished"))


@contextlib.contextmanager
def _stopping(jobs: Sequence[Job]) -> Iterator[None]:
    """Stop all processes at the end, also when this one is asked to end. Runs continue from their last checkpoint."""
    with handling(raise_stop, *ENDING):
        try:
            yield
        finally:
            running = [job for job in jobs if job.process]
            for job in running:
                assert job.process
                job.process.terminate()
            for job in running:
                assert job.process
                job.process.wait()
                job.process, job.state = None, "stopped"
