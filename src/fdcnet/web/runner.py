"""Runs one lesson at a time in a thread of its own. Meanwhile the server answers, and the old version stays in use."""

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

from safetensors import SafetensorError

from fdcnet.errors import UserError
from fdcnet.runtime.machine import lower_priority
from fdcnet.store.versions import can_go_back
from fdcnet.teaching import KEEP
from fdcnet.teaching.checks import refuse_few_photos
from fdcnet.teaching.learn import Cancelled, LearnReport, learn
from fdcnet.teaching.refine import can_refine, refine
from fdcnet.web.compare import compare
from fdcnet.web.example import SETTINGS, make_example
from fdcnet.web.guard import Refused
from fdcnet.web.lesson import Lesson
from fdcnet.web.model import ServedModel, ServedModels
from fdcnet.web.uploads import Upload
from fdcnet.web.workspace import Workspace

log = logging.getLogger(__name__)
FAILURES = (OSError, SafetensorError, MemoryError, RuntimeError)
Teach = Callable[..., LearnReport]
"""Called with the model's path and, by name: keep, device, listener, cancel"""


class LessonRunner:
    """Holds the lesson that is running, or the last one."""

    def __init__(self, models: ServedModels, keep: int = KEEP) -> None:
        self.models, self.keep = models, keep
        self.workspace = Workspace(models.own.path)
        self.lesson: Lesson | None = None
        # One thread for all lessons: memory that a thread allocated is reused only by that thread.
        self._pool = ThreadPoolExecutor(1, "lesson", initializer=lower_priority)
        self._reserved = threading.Lock()

    @property
    def busy(self) -> bool:
        return self.lesson is not None and self.lesson.state == "learning"

    def refuse_if_busy(self) -> None:
        if self.busy or self._reserved.locked():
            raise _already_running()

    @contextlib.contextmanager
    def reserved(self) -> Iterator[None]:
        """For one upload at a time. Start the lesson inside."""
        if not self._reserved.acquire(blocking=False):
            raise _already_running()
        try:
            if self.busy:
                raise _already_running()
            yield
        finally:
            self._reserved.release()

    def refuse_few_photos(self, upload: Upload) -> None:
        """Refuse a lesson at once if a new class has too few photos. The upload is then deleted."""
        try:
            known = self.models.own.localizer().classes if self.models.own.exists else []
            new = [name for name in upload.classes if name not in known]
            refuse_few_photos(Counter(record.label for record in upload.records), new)
        except UserError:
            upload.delete()
            raise

    def start(self, upload: Upload, more: bool, epochs: int | None) -> None:
        self._start(self.models.own, upload, _lesson(upload, more=more, epochs=epochs))

    def start_refinement(self) -> None:
        """Train the boxes on the photos that the model keeps. Its current version answers meanwhile."""
        with self.reserved():
            model = self.models.current
            if not (model.exists and can_refine(model.localizer().state)):
                raise Refused(409, "This model cannot be refined.", "Only models made by light lessons can.")
            self._start(model, Upload(self.workspace.new_folder("upload")), refine)

    def start_example(self) -> None:
        """Teach the example to a model in the workspace. It disappears with the server."""
        if self.models.own.exists:
            raise Refused(409, "The model already has classes.", "The example is only for a new model.")
        with self.reserved():
            folder = self.workspace.new_folder("example")
            example = ServedModel(folder / "example", self.models.own.device, self.models.own.engine)
            upload = make_example(self.workspace.new_folder("upload"))
            self._start(example, upload, _lesson(upload, **SETTINGS))
            self.models.example = example

    def _start(self, model: ServedModel, upload: Upload, teach: Teach) -> None:
        self.lesson = lesson = Lesson(upload, is_first=not model.exists)
        self.workspace.note_lesson(upload.classes)
        self._pool.submit(self._run, lesson, model, upload, teach)

    def _run(self, lesson: Lesson, model: ServedModel, upload: Upload, teach: Teach) -> None:
        state = "failed"
        outcome: dict[str, Any] = {"problem": "The lesson failed.", "remedy": "See the server's terminal."}
        try:
            state, outcome = "done", {"report": self._learn(lesson, model, upload, teach)}
        except Cancelled:
            state, outcome = "cancelled", {}
        except UserError as error:
            outcome = {"problem": error.problem, "remedy": error.remedy}
        except FAILURES as error:
            log.exception("The lesson failed")
            outcome = {"problem": f"The lesson failed: {str(error)[:300]}", "remedy": "The model is unchanged."}
        except Exception:  # nobody else sees what this thread raises
            log.exception("The lesson failed")
        finally:
            upload.delete()
            self.workspace.forget_lesson()
            lesson.end(state, **outcome)  # last: when it is over, the upload is gone

    def _learn(self, lesson: Lesson, model: ServedModel, upload: Upload, teach: Teach) -> dict[str, Any]:
        before = model.localizer() if model.exists else None
        report = teach(model.path, keep=self.keep, device=model.device, listener=lesson, cancel=lesson.cancel)
        self.workspace.forget_lesson()
        lesson.progress("comparing before and after", 0, 0)
        try:
            lesson.compared = compare(before, model, upload)
        except (UserError, *FAILURES):  # the model has learned, with or without pictures
            log.exception("Could not compare photos before and after the lesson")
        return asdict(report) | {"model": report.model.name, "can_roll_back": can_go_back(report.model)}

    def close(self) -> None:
        """Cancel the lesson and wait for it, so that nothing is half-written."""
        if self.lesson:
            self.lesson.cancel.set()
        self._pool.shutdown()
        self.workspace.close()


def _already_running() -> Refused:
    return Refused(409, "A lesson is already running.", "Wait until it is done, or cancel it.")


def _lesson(upload: Upload, **options: Any) -> Teach:
    return partial(learn, photos=upload.dataset, cache=False, **options)  # uploads are deleted after the lesson
