"""Decode every photo once: to the GPU if it fits, else to a file that is mapped into memory.

Raw pixels that would exceed the limit of the cache are stored as JPEG.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fdcnet.data.decode import BadImage
from fdcnet.data.decode_all import Decoded, Progress, decode_all, try_decode
from fdcnet.data.pixels import EncodedPixels, Pixels, SharedFile, num_cores, select
from fdcnet.data.records import Record
from fdcnet.errors import UserError
from fdcnet.files import remove_leftovers, replacing, write_bytes

FORMAT = 1  # raise it whenever decoding changes, so that no stale pixels are used
GPU_SHARE = 0.4  # of the free memory: the rest is for training
LIMIT_VARIABLE = "FDCNET_CACHE_GB"
LIMIT_GB = 100.0
KEPT = ".kept"  # suffix of files that hold a checksum and bytes, see `keep`
DIGEST_BYTES = hashlib.sha256().digest_size
ENCODED_SHARE = 1 / 8  # of the raw size, at most about; photos take 1 / 9, noise more
_in_use: set[Path] = set()  # blocks of this process


@dataclass(frozen=True)
class PixelCache:
    """The readable photos of a list of records, in its order."""

    records: tuple[Record, ...]
    sizes: Tensor  # (N, 2) int64: width and height of each upright photo before resizing
    pixels: Pixels  # (N, S, S, 3) uint8
    broken: list[tuple[Path, str]] = field(default_factory=list)  # skipped photos with the reason

    @staticmethod
    def build(
        records: Sequence[Record],
        size: int,
        cache_dir: Path | None,
        device: torch.device,
        workers: int | None = None,
        progress: Progress | None = None,
        encoded: bool = False,
    ) -> "PixelCache":
        """Decode `records`, or map them from `cache_dir` if an earlier build left them there. Without it: in memory.

        `encoded`: as JPEG. By default only if raw pixels would exceed the limit of the cache.
        """
        if not records:
            nothing = torch.empty((0, size, size, 3), dtype=torch.uint8)
            return PixelCache((), torch.empty((0, 2), dtype=torch.int64), nothing)
        workers = workers or min(32, num_cores())

        def decoded(encoded: bool) -> Iterator[Decoded]:
            return decode_all([record.path for record in records], size, workers, progress, encoded)

        if cache_dir is None:
            block = _in_memory(decoded(False), len(records), size)
        else:
            block = _on_disk(records, size, cache_dir, decoded, encoded or exceeds_limit(len(records), size))
        readable = tuple(record for i, record in enumerate(records) if i not in block.broken)
        _require_every_class(records, readable, block.broken)
        broken = [(records[i].path, reason) for i, reason in block.broken.items()]
        return PixelCache(readable, torch.tensor(block.sizes), _place(block.pixels, device), broken)

    def __len__(self) -> int:
        return len(self.records)

    def gather(self, indices: Tensor) -> Tensor:
        """Whole photos, on the device of the pixels."""
        return self.pixels[indices.to(self.pixels.device)]  # (B, S, S, 3)

    def of_classes(self, classes: Collection[str]) -> "PixelCache":
        """Only the photos of these classes."""
        wanted = set(classes)
        return self.rows([i for i, record in enumerate(self.records) if record.label in wanted])

    def rows(self, rows: Sequence[int]) -> "PixelCache":
        """Only these photos, in the order of `rows`. Returns self (no copy) if all rows are selected."""
        if list(rows) == list(range(len(self))):
            return self
        kept = torch.tensor(rows, dtype=torch.int64)
        return PixelCache(tuple(self.records[i] for i in rows), self.sizes[kept], select(self.pixels, kept))


def default_cache_dir() -> Path:
    """FDCNET_CACHE, or the user's cache folder."""
    if named := os.environ.get("FDCNET_CACHE"):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fdcnet"


def keep(key: str, content: bytes) -> None:
    """Store bytes for `kept`, unless the limit of the cache is too small for them."""
    cache_dir = default_cache_dir()
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        remove_leftovers(cache_dir)
        if _make_room(cache_dir, len(content)):
            write_bytes(cache_dir / f"{key}{KEPT}", hashlib.sha256(content).digest() + content)
    except OSError as error:
        raise _cannot_write(cache_dir, len(content), error) from error


def kept(key: str) -> bytes | None:
    """What `keep` has stored, or None: it was removed to make room, or the file is damaged."""
    file = default_cache_dir() / f"{key}{KEPT}"
    try:
        with file.open("rb") as opened:
            digest, content = opened.read(DIGEST_BYTES), opened.read()
    except OSError:
        return None
    with contextlib.suppress(OSError):
        os.utime(file)  # time of last use, for _make_room
    return content if hashlib.sha256(content).digest() == digest else None


def fits_on_gpu(num_bytes: int, device: torch.device) -> bool:
    """Whether `device` is a GPU with room for this, beside training."""
    return device.type == "cuda" and num_bytes <= GPU_SHARE * torch.cuda.mem_get_info(device)[0]


def exceeds_limit(num_photos: int, size: int) -> bool:
    """Whether the raw pixels of this many photos do not fit into the cache."""
    return _raw_bytes(num_photos, size) > _limit_bytes()


def cache_key(records: Sequence[Record], size: int) -> str:
    """Changes with the list of files, their time stamps and the decoded size, but not with labels."""
    digest = hashlib.sha256(f"{FORMAT} {size}".encode())
    for record in records:
        path = record.path.absolute()
        try:
            status = path.stat()
            state = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            state = "missing"
        digest.update(os.fsencode(f"\0{path}\0{state}"))
    return digest.hexdigest()[:32]


@dataclass(frozen=True)
class _Block:
    pixels: Pixels  # (N, S, S, 3) uint8, readable photos only
    sizes: list[tuple[int, int]]
    broken: dict[int, str]  # index among all records -> reason


def _in_memory(decoded: Iterator[Decoded], num: int, size: int) -> _Block:
    try:
        pixels = np.empty((num, size, size, 3), np.uint8)
    except MemoryError as error:
        raise UserError(
            f"{num} photos at {size} x {size} need {_gigabytes(_raw_bytes(num, size))} of memory.",
            "Use a cache folder, or a smaller data.size.",
        ) from error
    sizes: list[tuple[int, int]] = []
    broken: dict[int, str] = {}
    for row, photo in enumerate(_readable(decoded, sizes, broken)):
        pixels[row] = photo
    return _Block(torch.from_numpy(pixels[: len(sizes)]), sizes, broken)


def _on_disk(
    records: Sequence[Record], size: int, cache_dir: Path, decoded: Callable[[bool], Iterator[Decoded]], encoded: bool
) -> _Block:
    stem = cache_dir / (cache_key(records, size) + ("-jpeg" if encoded else ""))
    found = _map(stem, len(records), size)
    if found is not None and not _any_repaired(found, records, size):
        _in_use.add(stem)
        return found
    raw = _raw_bytes(len(records), size)
    needed = int(raw * ENCODED_SHARE) if encoded else raw
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        remove_leftovers(cache_dir)
        _in_use.add(stem)
        if not _make_room(cache_dir, needed):
            _refuse_too_many(len(records), raw)
            return _in_memory(decoded(False), len(records), size)
        _write(stem, size, needed, decoded(encoded))
    except OSError as error:
        raise _cannot_write(cache_dir, needed, error) from error
    block = _map(stem, len(records), size)
    assert block is not None, "just written"
    return block


def _write(stem: Path, size: int, needed: int, decoded: Iterator[Decoded]) -> None:
    """The sidecar is written last: if it exists, the pixels are complete. Encoded photos have their lengths in it."""
    if shutil.disk_usage(stem.parent).free < needed:
        raise OSError(errno.ENOSPC, "No space left on device")  # now rather than after minutes of decoding
    sizes: list[tuple[int, int]] = []
    broken: dict[int, str] = {}
    lengths: list[int] = []
    with replacing(stem.with_suffix(".pixels")) as file:
        for photo in _readable(decoded, sizes, broken):
            if isinstance(photo, bytes):
                lengths.append(len(photo))
            file.write(photo if isinstance(photo, bytes) else photo.data)
    sidecar = {"format": FORMAT, "shape": [len(sizes), size, size, 3], "sizes": sizes, "broken": list(broken.items())}
    sidecar |= {"lengths": lengths} if lengths else {}
    write_bytes(stem.with_suffix(".json"), json.dumps(sidecar).encode())


def _readable(
    decoded: Iterator[Decoded], sizes: list[tuple[int, int]], broken: dict[int, str]
) -> Iterator[np.ndarray | bytes]:
    """Yield the photos that could be decoded. Fills in their sizes, and the reasons for the others."""
    for i, result in enumerate(decoded):
        if isinstance(result, BadImage):
            broken[i] = str(result)
        else:
            photo, original = result
            sizes.append(original)
            yield photo


def _map(stem: Path, num: int, size: int) -> _Block | None:
    """The block of an earlier build, or None. No photo is opened."""
    pixel_file = stem.with_suffix(".pixels")
    try:
        sidecar = json.loads(stem.with_suffix(".json").read_bytes())
        shape = tuple(sidecar["shape"])
        sizes = [(w, h) for w, h in sidecar["sizes"]]
        broken = {int(i): str(reason) for i, reason in sidecar["broken"]}
        if shape[1:] != (size, size, 3) or len(sizes) != shape[0] or shape[0] + len(broken) != num:
            return None
        lengths = np.array(sidecar.get("lengths", [size * size * 3] * len(sizes)), np.int64)
        if len(lengths) != len(sizes) or pixel_file.stat().st_size != lengths.sum():
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with contextlib.suppress(OSError):
        os.utime(stem.with_suffix(".json"))  # time of last use, for _make_room
    if not sizes:  # an empty file cannot be mapped
        return _Block(torch.empty(shape, dtype=torch.uint8), sizes, broken)
    if "lengths" in sidecar:
        return _Block(EncodedPixels(SharedFile(pixel_file), lengths.cumsum(), lengths, size), sizes, broken)
    # Copy-on-write: torch needs writable memory, but the file must not change.
    data = np.memmap(pixel_file, np.uint8, mode="c").view(np.ndarray)
    return _Block(torch.from_numpy(data.reshape(shape)), sizes, broken)


def _any_repaired(block: _Block, records: Sequence[Record], size: int) -> bool:
    """A photo can become readable without a new time stamp, for example by a permission."""
    return any(not isinstance(try_decode(records[i].path, size), BadImage) for i in block.broken)


def _make_room(cache_dir: Path, needed: int) -> bool:
    """Remove what was not used for longest until `needed` bytes fit into the limit; False if they cannot.

    Blocks of this process are never removed. One that another process has mapped stays readable to it.
    """
    room = _limit_bytes() - needed
    others = []
    for last_used in (*cache_dir.glob("*.json"), *cache_dir.glob(f"*{KEPT}")):  # the file whose time stamp counts
        with contextlib.suppress(OSError):
            content = last_used if last_used.suffix == KEPT else last_used.with_suffix(".pixels")
            num_bytes = content.stat().st_size
            if last_used.with_suffix("") in _in_use:
                room -= num_bytes
            else:
                others.append((last_used.stat().st_mtime, num_bytes, last_used, content))
    if room < 0:
        return False
    for _, num_bytes, last_used, content in sorted(others, reverse=True):
        room -= num_bytes
        if room < 0:
            last_used.unlink(missing_ok=True)
            content.unlink(missing_ok=True)
    return True


def _limit_bytes() -> float:
    limit = os.environ.get(LIMIT_VARIABLE, LIMIT_GB)
    try:
        return float(limit) * 1e9
    except ValueError as error:
        raise UserError(f"{LIMIT_VARIABLE} cannot be '{limit}'.", "Set it to a number of gigabytes.") from error


def _refuse_too_many(num_photos: int, raw: int) -> None:
    """Refuse what fits neither into the cache nor well into memory."""
    if hasattr(os, "sysconf") and raw > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2:
        needed = f"{_gigabytes(raw)}, or about {_gigabytes(int(raw * ENCODED_SHARE))} as JPEG"
        allowed = f"{LIMIT_VARIABLE} allows {_gigabytes(int(_limit_bytes()))}"
        raise UserError(f"{num_photos} photos need {needed}, but {allowed}.", "Raise it, or lower data.size.")


def _raw_bytes(num_photos: int, size: int) -> int:
    return num_photos * size * size * 3


def _place(pixels: Pixels, device: torch.device) -> Pixels:
    if not isinstance(pixels, Tensor):
        return pixels
    return pixels.to(device) if fits_on_gpu(pixels.nbytes, device) else pixels


def _require_every_class(records: Sequence[Record], readable: Sequence[Record], broken: dict[int, str]) -> None:
    if not readable:
        first, reason = next(iter(broken.items()))
        raise UserError(
            f"None of the {len(records)} photos can be read; the first is {records[first].path}: {reason}.",
            "Check that the folder contains photos, and that they open in an image viewer.",
        )
    left = {record.label for record in readable}
    for i, reason in broken.items():
        if records[i].label not in left:
            raise UserError(
                f"Class '{records[i].label}' has no readable photo; the first is {records[i].path}: {reason}.",
                "Repair or replace its photos, or remove the class.",
            )


def _cannot_write(cache_dir: Path, needed: int, error: OSError) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        problem = f"The disk is full: the cache in {cache_dir} needs {_gigabytes(needed)}."
        return UserError(problem, "Free space, or set FDCNET_CACHE to a folder on another disk.")
    problem = f"The cache folder {cache_dir} cannot be written: {error.strerror or error}."
    return UserError(problem, "Set FDCNET_CACHE to a folder of your own.")


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
