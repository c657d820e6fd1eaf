"""The inputs of a command: a photo, folder, pattern or video, or `-` for a photo from standard input."""

import glob
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from PIL import Image

from fdcnet.data.decode import UPRIGHT, BadImage, refuse_bomb
from fdcnet.data.photo import Photo
from fdcnet.data.sources.files import ACCEPTED, listing
from fdcnet.errors import UserError

VIDEO_SUFFIXES = frozenset({".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv"})
MAX_STDIN = 256 * 2**20
FRAME_SIDE = 1600  # larger frames are reduced while they wait for the network
TURNED = {90: UPRIGHT[8], 180: UPRIGHT[3], -180: UPRIGHT[3], -90: UPRIGHT[6], 270: UPRIGHT[6]}  # by a phone


def find_photos(words: Sequence[str], stdin: BinaryIO, step: int | None = None) -> Iterator[Photo]:
    """Yield photos with unique names. Missing inputs are refused before the first one.

    `step`: use every Nth frame of a video; by default one per second.
    """
    if step is not None and step < 1:
        raise UserError(f"The frame step cannot be {step}.", "Use 1 for every frame, 30 for every 30th.")
    parts = [part for word in words for part in _expand(word, stdin, step)]
    return _named_apart(chain.from_iterable(part() for part in parts))


def _expand(word: str, stdin: BinaryIO, step: int | None) -> Iterator[Callable[[], Iterable[Photo]]]:
    if word == "-":
        yield lambda: [_from_stdin(stdin)]
        return
    path = Path(word)
    if path.is_dir():
        found = listing(path, deep=True)
        if not found.images:
            foreign = f" ({', '.join(sorted(found.foreign))} cannot be read)" if found.foreign else ""
            raise UserError(f"There are no photos in {path}{foreign}.", f"Photos are: {ACCEPTED}.")
        files = sorted([*found.images, *found.foreign_files]) if found.foreign_files else found.images
        yield lambda: (Photo(file, file.relative_to(path).as_posix()) for file in files)
    elif path.is_file():
        yield _of_file(path, step)
    elif any(sign in word for sign in "*?["):
        matches = glob.glob(word, recursive=True)  # noqa: PTH207 (Path.glob refuses absolute patterns)
        files = sorted(file for file in map(Path, matches) if file.is_file())
        if not files:
            raise UserError(f"No file matches {word}.", "Quote the pattern; ** stands for any folders.")
        fixed = Path(word[: min(word.find(sign) for sign in "*?[" if sign in word)] + "x").parent
        yield from (_of_file(file, step, file.relative_to(fixed).as_posix()) for file in files)
    else:
        raise UserError(f"There is no photo, folder or video {word}.", "Relative paths start in the current folder.")


def _of_file(path: Path, step: int | None, name: str = "") -> Callable[[], Iterable[Photo]]:
    if path.suffix.lower() in VIDEO_SUFFIXES:
        av = _video_package()
        return lambda: _frames(av, path, step)
    if not name:
        name = path.name if path.is_absolute() or ".." in path.parts else path.as_posix()
    return lambda: [Photo(path, name)]


def _named_apart(photos: Iterable[Photo]) -> Iterator[Photo]:
    """Make names unique: output files are named after photos."""
    taken: set[str] = set()
    last_number: dict[str, int] = {}  # so that thousands of equal names do not try all numbers again
    for photo in photos:
        name, number = photo.name, last_number.get(photo.name, 1)
        while name in taken:
            number += 1
            path = PurePosixPath(photo.name)
            name = str(path.with_name(f"{path.stem}-{number}{path.suffix}"))
        last_number[photo.name] = number
        taken.add(name)
        yield replace(photo, name=name)


def _from_stdin(stdin: BinaryIO) -> Photo:
    content = stdin.read(MAX_STDIN + 1)
    if not content:
        raise UserError("Standard input is empty.", "Send a photo: fdcnet predict MODEL - < photo.jpg")
    problem = f"larger than {MAX_STDIN // 2**20} MB" if len(content) > MAX_STDIN else None
    return Photo(content, "stdin.jpg", problem=problem)


def _video_package() -> Any:
    try:
        return importlib.import_module("av")
    except ImportError as error:
        remedy = "Install it: pip install 'fdcnet[video]'"
        raise UserError("Videos need the package av, which is not installed.", remedy) from error


def _frames(av: Any, path: Path, step: int | None) -> Iterator[Photo]:
    """Frames as displayed. Damage ends the video, not the run."""
    number = 0
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise BadImage("it has no video stream")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            refuse_bomb((stream.width, stream.height))
            every = step or max(1, round(float(stream.average_rate or 25)))
            for number, frame in enumerate(container.decode(stream)):
                if number % every == 0:
                    yield _frame(frame, path, number)
    except (av.FFmpegError, BadImage, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        problem = f"{reason} (after frame {number})" if number else reason
        yield Photo(path, path.name, problem=problem)


def _frame(frame: Any, path: Path, number: int) -> Photo:
    image = frame.to_image()
    if turn := TURNED.get(frame.rotation):
        image = image.transpose(turn)
    size = image.size
    image.thumbnail((FRAME_SIDE, FRAME_SIDE), Image.Resampling.BILINEAR)
    return Photo(image, f"{path.name}/frame-{number:06d}.jpg", size, frame.time)
