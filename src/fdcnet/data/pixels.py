"""Decoded photos wherever they are: in one tensor, as JPEG in a file, or in several such blocks."""

import io
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import get_worker_info

QUALITY = 90  # about 20 kB per photo of 256 x 256; 1 / 9 of its raw pixels


class LazyPixels(ABC):
    """Behaves like a uint8 tensor (N, S, S, 3) on the CPU, but fetches photos when they are indexed."""

    side: int
    encoded: bool  # whether fetching a photo means decoding it
    device = torch.device("cpu")

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def photo(self, row: int) -> Tensor:
        """(S, S, 3)"""

    @abstractmethod
    def select(self, rows: Tensor) -> "LazyPixels":
        """These photos, in this order. Nothing is fetched."""

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), self.side, self.side, 3))

    def __getitem__(self, rows: int | slice | Tensor) -> Tensor:
        if isinstance(rows, int):
            return self.photo(range(len(self))[rows])
        wanted: Sequence[int] = range(len(self))[rows] if isinstance(rows, slice) else rows.tolist()
        photos = np.empty((len(wanted), *self.shape[1:]), np.uint8)  # inference mode ends where a thread begins

        def fetch(place: int, row: int) -> None:
            photos[place] = self.photo(row).numpy()

        alone = not self.encoded or get_worker_info() is not None  # a worker process has one core
        with ThreadPoolExecutor(1 if alone else num_cores(), thread_name_prefix="decode") as pool:
            list(pool.map(fetch, range(len(wanted)), wanted))
        return torch.from_numpy(photos)

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.photo, range(len(self)))


Pixels = Tensor | LazyPixels


class EncodedPixels(LazyPixels):
    """Photos as JPEG, one after the other in a file."""

    encoded = True

    def __init__(self, file: "SharedFile", ends: np.ndarray, lengths: np.ndarray, side: int) -> None:
        self.file, self.ends, self.lengths, self.side = file, ends, lengths, side

    def __len__(self) -> int:
        return len(self.ends)

    def photo(self, row: int) -> Tensor:
        end, length = int(self.ends[row]), int(self.lengths[row])
        with Image.open(io.BytesIO(self.file.read(end - length, length)), formats=("JPEG",)) as image:
            return torch.from_numpy(np.array(image))

    def select(self, rows: Tensor) -> "EncodedPixels":
        kept = rows.numpy()
        return EncodedPixels(self.file, self.ends[kept], self.lengths[kept], self.side)


class SharedFile:
    """Threads and forked processes read it at the same time. Unlike a mapped file, it takes none of their memory."""

    def __init__(self, path: Path) -> None:
        self._file, self._lock = path.open("rb", buffering=0), Lock()

    def read(self, start: int, length: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._file.fileno(), length, start)
        with self._lock:  # Windows, where processes do not fork
            self._file.seek(start)
            return self._file.read(length)


class JoinedPixels(LazyPixels):
    """Several blocks in one row. Photos stay where they are."""

    def __init__(self, parts: Sequence[Pixels], part_of: np.ndarray, row_of: np.ndarray) -> None:
        self.parts, self.part_of, self.row_of = parts, part_of, row_of
        self.side = int(parts[0].shape[1])
        self.encoded = any(isinstance(part, LazyPixels) and part.encoded for part in parts)

    def __len__(self) -> int:
        return len(self.row_of)

    def photo(self, row: int) -> Tensor:
        return self.parts[self.part_of[row]][int(self.row_of[row])]

    def select(self, rows: Tensor) -> "JoinedPixels":
        kept = rows.numpy()
        return JoinedPixels(self.parts, self.part_of[kept], self.row_of[kept])


def join(parts: Sequence[Pixels]) -> Pixels:
    """All photos of `parts`, on the device of the first. Photos in main memory are not copied."""
    if len(parts) == 1:
        return parts[0]
    if parts[0].device.type != "cpu":
        return torch.cat([part[:].to(parts[0].device) for part in parts])
    parts = [part if isinstance(part, LazyPixels) else part.cpu() for part in parts]
    sizes = [len(part) for part in parts]
    rows = np.concatenate([np.arange(size) for size in sizes])
    return JoinedPixels(parts, np.repeat(np.arange(len(parts)), sizes), rows)


def select(pixels: Pixels, rows: Tensor) -> Pixels:
    """These photos, in this order. Those in a tensor are copied."""
    return pixels.select(rows) if isinstance(pixels, LazyPixels) else pixels[rows.to(pixels.device)]


def chunks(pixels: Pixels, size: int, rows: range | None = None) -> Iterator[Tensor]:
    """The photos of `rows` (default: all), `size` at a time."""
    first, end = (rows.start, rows.stop) if rows is not None else (0, len(pixels))
    return (pixels[start : min(start + size, end)] for start in range(first, end, size))


def encode(photo: np.ndarray) -> bytes:
    # Pillow holds the interpreter lock while it encodes to memory, but not while it writes to a file.
    with tempfile.TemporaryFile() as file:
        Image.fromarray(photo).save(file, "JPEG", quality=QUALITY)
        file.seek(0)
        return file.read()


def num_cores() -> int:
    """Cores for this process; processes started together by torchrun share them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
