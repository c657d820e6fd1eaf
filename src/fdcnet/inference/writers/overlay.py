"""Photos with their predictions drawn on them."""

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from fdcnet.errors import UserError
from fdcnet.inference.prediction import Prediction
from fdcnet.inference.writers.base import Writer, make_folder

MAX_WAITING = 16  # drawings in the queue, each with its photo in memory


class OverlayWriter(Writer):
    """Saves each photo with heat map, box and label under its own name. Threads draw while the network works."""

    def __enter__(self) -> Self:
        make_folder(self.path)
        self.pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="draw")
        self.waiting: deque[Future[None]] = deque()
        return self

    def add(self, photo: Prediction) -> None:
        file = self.path / photo.name
        if file.resolve() == Path(photo.source).resolve():
            raise UserError(f"{file} would be overwritten.", "Save to another folder than that of the photos.")
        file.parent.mkdir(parents=True, exist_ok=True)
        self.waiting.append(self.pool.submit(photo.save, file))
        if len(self.waiting) > MAX_WAITING:
            self.waiting.popleft().result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.shutdown(cancel_futures=error is not None)
        if error is None:
            for saved in self.waiting:
                saved.result()
