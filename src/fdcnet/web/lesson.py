"""One lesson: its progress while it runs, and its outcome."""

import threading
import time
from typing import Any

from fdcnet.report.text import LOSSES
from fdcnet.runtime.listener import Epoch, Listener
from fdcnet.web.compare import ComparedPhoto
from fdcnet.web.progress import LEARNING, Progress
from fdcnet.web.uploads import Upload


class Lesson(Listener):
    """Collects what the training code reports. `info` may be called from any thread."""

    def __init__(self, upload: Upload, is_first: bool) -> None:
        self.state = "learning"  # then done, failed or cancelled
        self.cancel = threading.Event()
        self.compared: list[ComparedPhoto] = []
        self.examples = [record.path.read_bytes() for record in upload.unseen]
        self._is_first = is_first
        self._classes = [{"name": name, "photos": upload.count(name)} for name in upload.classes]
        self._skipped = upload.skipped
        self._messages: list[str] = []
        self._epochs: list[dict[str, Any]] = []
        self._progress = Progress()
        self._started = time.monotonic()
        self._phase, self._num_epochs = "", 0
        self._seconds: float | None = None
        self._outcome: dict[str, Any] = {}
        self._lock = threading.Lock()

    def info(self) -> dict[str, Any]:
        with self._lock:
            return {
                "state": self.state,
                "cancelling": self.state == "learning" and self.cancel.is_set(),
                "is_first": self._is_first,
                "is_refinement": not self._classes,
                "classes": self._classes,
                "skipped": self._skipped,
                "stage": self._progress.title,
                "progress": 1.0 if self.state == "done" else round(self._progress.fraction, 4),
                "seconds_left": self._progress.seconds_left(),
                "seconds": round(self._seconds or time.monotonic() - self._started, 1),
                "messages": list(self._messages),
                "epochs": list(self._epochs),
                "loss_names": {name: LOSSES.get(name, name) for epoch in self._epochs for name in epoch["losses"]},
                "photos": [photo.info for photo in self.compared],
                "num_examples": len(self.examples),
                **self._outcome,
            }

    def end(self, state: str, **outcome: Any) -> None:
        with self._lock:
            self._seconds = time.monotonic() - self._started
            self.state, self._outcome = state, outcome

    def note(self, text: str) -> None:
        with self._lock:
            self._messages.append(text)

    def progress(self, what: str, done: int, total: int) -> None:
        with self._lock:
            self._progress.update(what, done, total)

    def phase_started(self, name: str, first_epoch: int, epochs: int, num_images: int) -> None:
        with self._lock:
            self._phase, self._num_epochs = name, epochs
            self._progress.enter(LEARNING if name == "main" else f"{LEARNING}: {name}", epochs * num_images)

    def step(self, num_images: int) -> None:
        with self._lock:
            self._progress.step(num_images)

    def epoch_ended(self, epoch: Epoch) -> None:
        info = {"phase": self._phase, "epoch": epoch.number, "epochs": self._num_epochs, "losses": epoch.losses}
        with self._lock:
            self._epochs.append(info)

    def phase_ended(self) -> None:
        with self._lock:
            self._progress.enter("measuring")
