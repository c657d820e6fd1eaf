"""Train the localizer on boxes that were checked in the Label tab. Only the user starts this."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from fdcnet.errors import UserError, count
from fdcnet.runtime.listener import Listener
from fdcnet.teaching.cancel import CancellableListener, Cancelled
from fdcnet.teaching.label_learning import Example, learn_from_boxes
from fdcnet.web.model import ServedModel

log = logging.getLogger(__name__)
TRAINING_SHARE = 0.5  # of the progress bar; then the other boxes are drawn again


class BoxLesson(Listener):
    """Its progress while it runs, and its outcome."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = examples
        self.cancel = threading.Event()
        self._stage, self._progress = f"Learning from {count(len(examples), 'checked box')}", 0.0
        self._outcome: dict[str, Any] = {}

    def info(self) -> dict[str, Any]:
        return {"stage": self._stage, "progress": self._progress, **self._outcome}

    def run(self, model: ServedModel, keep: int, draw_again: Callable[["BoxLesson"], int]) -> None:
        """Make a new version of `model`, then call `draw_again`, which returns the number of boxes that it changed."""
        listener = CancellableListener(self, self.cancel)
        try:
            learn_from_boxes(model.path, model.path, self.examples, model.device, None, listener, keep)
            learned = {"version": model.version, "num_boxes": len(self.examples), "num_redrawn": 0}
            self._outcome = {"learned": learned}
            learned["num_redrawn"] = draw_again(self)
        except Cancelled:
            pass
        except UserError as error:
            self._outcome |= {"problem": error.problem, "remedy": error.remedy}
        except Exception as error:  # nobody else sees what this thread raises
            log.exception("Learning from boxes failed")
            self._outcome |= {"problem": f"Learning from boxes failed: {str(error)[:300]}", "remedy": "Try again."}

    def progress(self, what: str, done: int, total: int) -> None:
        self._progress = max(self._progress, TRAINING_SHARE * done / total)

    def redrawing(self, done: int, total: int) -> None:
        if self.cancel.is_set():
            raise Cancelled
        self._stage = f"Drawing {count(total, 'other box')} again"
        self._progress = TRAINING_SHARE + (1 - TRAINING_SHARE) * done / total
