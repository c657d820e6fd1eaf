"""Photos with their predictions drawn on them."""

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from fdcnet.data.decode import BadImage
from fdcnet.errors import UserError
from fdcnet.inference.prediction import Prediction
from fdcnet.inference.writers.base import Writer, make_folder

MAX_WAITING = 16  # drawings in the queue, each with its photo in memory
SAVED_AS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


class OverlayWriter(Writer):
    """Saves each photo with heat map, box and label under its own name. Threads draw while the network works.

    Formats that not every installation can write, such as HEIC, become JPEG: photo.heic.jpg.
    """

    def __enter__(self) -> Self:
        make_folder(self.path)
        self.pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="draw")
        self.waiting: deque[tuple[str, Future[None]]] = deque()
        return self

    def add(self, photo: Prediction) -> None:
        name = photo.name if Path(photo.name).suffix.lower() in SAVED_AS else f"{photo.name}.jpg"
        file = self.path / name
        if file.resolve() == Path(photo.source).resolve():
            raise UserError(f"{file} would be overwritten.", "Save to another folder than that of the photos.")
        file.parent.mkdir(parents=True, exist_ok=True)
        self.waiting.append((name, self.pool.submit(photo.save, file)))
        if len(self.waiting) > MAX_WAITING:
            self._wait_for(*self.waiting.popleft())

    def _wait_for(self, name: str, saved: Future[None]) -> None:
        try:
            saved.result()
        except BadImage as error:  # the photo has changed since it was predicted
            self.skipped.append(f"no drawing of {name}: {error}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.shutdown(cancel_futures=error is not None)
        if error is None:
            for name, saved in self.waiting:
                self._wait_for(name, saved)
