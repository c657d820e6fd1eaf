"""One lesson at a time, in a thread of its own; the page and the old model go on meanwhile."""

import contextlib
import logging
import os
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

from safetensors import SafetensorError

from fdcnet.data.records import Task
from fdcnet.errors import UserError
from fdcnet.runtime.listener import Epoch, Listener
from fdcnet.store.versions import can_go_back
from fdcnet.teaching.learn import KEEP, Cancelled, learn
from fdcnet.web.compare import Compared, compare
from fdcnet.web.guard import Refused
from fdcnet.web.model import Model
from fdcnet.web.uploads import Upload

log = logging.getLogger(__name__)
FAILURES = (OSError, SafetensorError, MemoryError, RuntimeError)
NICENESS = 10  # whoever looks at a photo goes first


class Lesson(Listener):
    """What is going on, for whoever asks."""

    def __init__(self, upload: Upload) -> None:
        self.state = "learning"  # then done, failed or cancelled
        self.cancel = threading.Event()
        self.compared: list[Compared] = []
        self._classes = [{"name": name, "photos": upload.count(name)} for name in upload.classes]
        self._left_out = upload.left_out
        self._notes: list[str] = []
        self._epochs: list[dict[str, Any]] = []
        self._begun = self._phase_begun = time.monotonic()
        self._doing, self._done, self._total = "getting ready", 0, 0
        self._phase, self._planned = "", 0
        self._seconds: float | None = None
        self._end: dict[str, Any] = {}
        self._lock = threading.Lock()

    def facts(self) -> dict[str, Any]:
        with self._lock:
            spent, share = time.monotonic() - self._phase_begun, self._done / self._total if self._total else 0.0
            return {
                "state": self.state,
                "cancelling": self.state == "learning" and self.cancel.is_set(),
                "classes": self._classes,
                "left_out": self._left_out,
                "doing": self._doing,
                "share": round(share, 4),
                "seconds_left": round(spent / share - spent) if share > 0.02 and self._epochs else None,
                "seconds": round(self._seconds or time.monotonic() - self._begun, 1),
                "notes": list(self._notes),
                "epochs": list(self._epochs),
                "photos": [photo.facts for photo in self.compared],
                **self._end,
            }

    def end(self, state: str, **facts: Any) -> None:
        with self._lock:
            self._seconds = time.monotonic() - self._begun
            self.state, self._end = state, facts

    def note(self, text: str) -> None:
        with self._lock:
            self._notes.append(text)

    def progress(self, what: str, done: int, total: int) -> None:
        self._at(what, done, total)

    def task_started(self, task: Task, num_tasks: int) -> None:
        self._at("learning", 0, 0)

    def phase_started(self, name: str, first_epoch: int, epochs: int, num_images: int) -> None:
        self._phase_begun, self._phase, self._planned = time.monotonic(), name, epochs
        self._at("learning" if name == "main" else f"learning ({name})", 0, epochs * num_images)

    def step(self, num_images: int) -> None:
        with self._lock:
            self._done += num_images

    def epoch_ended(self, epoch: Epoch) -> None:
        with self._lock:
            facts = {"phase": self._phase, "epoch": epoch.number, "epochs": self._planned, "losses": epoch.losses}
            self._epochs.append(facts)

    def phase_ended(self) -> None:
        self._at("measuring", 0, 0)

    def _at(self, doing: str, done: int, total: int) -> None:
        with self._lock:
            self._doing, self._done, self._total = doing, done, total


class School:
    """Holds the lesson that is going on, or the last one."""

    def __init__(self, model: Model, keep: int = KEEP) -> None:
        self.model, self.keep = model, keep
        self.lesson: Lesson | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def refuse_if_busy(self) -> None:
        if self.busy:
            raise Refused(409, "The model is learning already.", "Wait until it is done, or cancel it.")

    def start(self, upload: Upload, more: bool, epochs: int | None) -> Lesson:
        with self._lock:
            self.refuse_if_busy()
            self.lesson = lesson = Lesson(upload)
            self._thread = threading.Thread(target=self._teach, args=(lesson, upload, more, epochs), daemon=True)
            self._thread.start()
        return lesson

    def _teach(self, lesson: Lesson, upload: Upload, more: bool, epochs: int | None) -> None:
        _step_back()
        state = "failed"
        facts: dict[str, Any] = {"problem": "Learning failed.", "remedy": "The server's terminal says why."}
        try:
            state, facts = "done", {"report": self._report(lesson, upload, more, epochs)}
        except Cancelled:
            state, facts = "cancelled", {}
        except UserError as error:
            facts = {"problem": error.problem, "remedy": error.remedy}
        except FAILURES as error:
            log.exception("The lesson failed")
            facts = {"problem": f"Learning failed: {str(error)[:300]}", "remedy": "The model is as it was."}
        finally:
            upload.delete()
            lesson.end(state, **facts)  # last: whoever reads it finds nothing of the upload

    def _report(self, lesson: Lesson, upload: Upload, more: bool, epochs: int | None) -> dict[str, Any]:
        before = self.model.localizer() if self.model.exists else None
        report = learn(
            self.model.path,
            upload.dataset,
            more=more,
            epochs=epochs,
            keep=self.keep,
            device=self.model.device,
            listener=lesson,
            cancel=lesson.cancel,
        )
        lesson.progress("comparing", 0, 0)
        try:
            lesson.compared = compare(before, self.model, upload)
        except (UserError, *FAILURES):  # it has learned, with or without pictures
            log.exception("There are no pictures of before and after")
        return asdict(report) | {"model": report.model.name, "can_go_back": can_go_back(report.model)}

    def close(self) -> None:
        """End the lesson, if there is one, and wait: the model must not be left half-written."""
        if self.lesson:
            self.lesson.cancel.set()
        if self._thread:
            self._thread.join()


def _step_back() -> None:
    """On Linux a thread has a niceness of its own, which the threads that it starts inherit."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
