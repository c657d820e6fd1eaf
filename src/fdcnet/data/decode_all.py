"""Decode many photos, by as many threads or processes as there are cores."""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

from fdcnet.data.decode import BadImage, decode_with_size
from fdcnet.data.pixels import encode

CHUNK = 64  # photos per worker between two progress reports
MANY = 2000  # photos that are worth starting processes
ENOUGH_THREADS = 2  # up to two cores, threads are faster (1200 and 680 photos/s): processes have to send their photos

Progress = Callable[[int, int], None]
Decoded = tuple[np.ndarray | bytes, tuple[int, int]] | BadImage
"""Pixels or JPEG, and width and height of the upright photo"""


def decode_all(
    paths: Sequence[Path], size: int, workers: int, progress: Progress | None, encoded: bool
) -> Iterator[Decoded]:
    """In the order of `paths`, and in chunks, so that memory and Ctrl-C stay bounded."""
    decode = partial(try_decode, size=size, encoded=encoded)
    forks = sys.platform == "linux"  # elsewhere, new processes would import the user's script again
    in_chunks = _by_processes if forks and workers > ENOUGH_THREADS and len(paths) >= MANY else _by_threads
    done = 0
    for chunk in in_chunks(decode, paths, workers):
        yield from chunk
        done += len(chunk)
        if progress is not None:
            progress(done, len(paths))


def _by_threads(decode: Callable[[Path], Decoded], paths: Sequence[Path], workers: int) -> Iterator[list[Decoded]]:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    try:
        for start in range(0, len(paths), CHUNK * workers):
            yield list(pool.map(decode, paths[start : start + CHUNK * workers]))
    finally:
        pool.shutdown(cancel_futures=True)


def _by_processes(decode: Callable[[Path], Decoded], paths: Sequence[Path], workers: int) -> Iterator[list[Decoded]]:
    """Threads share the interpreter lock, which limits them to about a thousand photos a second."""
    chunks = [paths[start : start + CHUNK] for start in range(0, len(paths), CHUNK)]
    return iter(
        DataLoader(
            chunks,  # type: ignore[arg-type]
            batch_size=None,
            num_workers=min(workers, len(chunks)),
            collate_fn=lambda chunk: [decode(path) for path in chunk],
            multiprocessing_context="fork",
            generator=torch.Generator(),  # or it would draw from the generator of the run
        )
    )


def try_decode(path: Path, size: int, encoded: bool = False) -> Decoded:
    try:
        photo, original = decode_with_size(path, size)
        return encode(photo) if encoded else photo, original
    except BadImage as reason:
        return reason
