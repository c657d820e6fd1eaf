"""Check every photo of a data set before training: unreadable, duplicate or tiny photos, and wrong boxes."""

import os
import statistics
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from fdcnet.data.decode import BadImage, decode_with_size
from fdcnet.data.records import Dataset, Record
from fdcnet.files import sha256

Severity = Literal["error", "warning", "note"]

_WINDOW = 1024  # photos handed to the threads at a time: a million waiting jobs would fill the memory
_SIDE = 64  # decoding at a small size finds the same errors, faster
_TOLERANCE = 1.0  # pixels: conventions differ on whether the last pixel counts


@dataclass(frozen=True)
class Finding:
    """One kind of problem, with every photo or class that has it."""

    severity: Severity
    what: str
    examples: tuple[str, ...]
    what_to_do: str


@dataclass(frozen=True)
class Spread:
    """Minimum, median and maximum; zeros if there are no numbers."""

    minimum: float
    median: float
    maximum: float


@dataclass(frozen=True)
class SplitCounts:
    """The size of a split."""

    images: int
    boxes: int
    classes: int  # with at least one photo
    per_class: Spread


@dataclass(frozen=True)
class Report:
    """The result of `check`. `ok`: no errors."""

    name: str
    num_classes: int
    train: SplitCounts
    test: SplitCounts
    class_counts: dict[str, tuple[int, int]]  # class -> train, test photos
    widths: Spread
    heights: Spread
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)


@dataclass(frozen=True)
class _Photo:
    """One file that was opened."""

    record: Record
    in_train: bool
    digest: str = ""
    size: tuple[int, int] | None = None  # width, height
    fault: str = ""  # why it cannot be decoded


def check(
    dataset: Dataset,
    *,
    small_side: int = 64,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Open every photo and report. `progress` is called with (done, total) from the calling thread."""
    photos = _look_at_all(dataset, workers or min(8, os.cpu_count() or 1), progress)
    train = Counter(record.label for record in dataset.train)
    test = Counter(record.label for record in dataset.test)
    sizes = [photo.size for photo in photos if photo.size]
    findings = [
        *_about_files(photos, small_side),
        *_about_doubles(photos),
        *_about_boxes(photos),
        *_about_classes(dataset, train, test),
    ]
    severities = ("error", "warning", "note")
    return Report(
        name=dataset.name,
        num_classes=len(dataset.classes),
        train=_counts(dataset.classes, dataset.train, train),
        test=_counts(dataset.classes, dataset.test, test),
        class_counts={name: (train[name], test[name]) for name in dataset.classes},
        widths=_spread([width for width, _ in sizes]),
        heights=_spread([height for _, height in sizes]),
        findings=tuple(sorted(findings, key=lambda finding: severities.index(finding.severity))),
    )


def _look_at_all(dataset: Dataset, workers: int, progress: Callable[[int, int], None] | None) -> list[_Photo]:
    jobs = [(record, True) for record in dataset.train] + [(record, False) for record in dataset.test]
    photos: list[_Photo] = []
    with warnings.catch_warnings(), ThreadPoolExecutor(workers) as pool:
        warnings.simplefilter("ignore")  # Pillow warns of bombs and odd metadata; what matters becomes a finding
        for start in range(0, len(jobs), _WINDOW):
            for photo in pool.map(_look_at, jobs[start : start + _WINDOW]):
                photos.append(photo)
                if progress:
                    progress(len(photos), len(jobs))
    return photos


def _look_at(job: tuple[Record, bool]) -> _Photo:
    record, in_train = job
    digest = ""
    try:
        digest = sha256(record.path)
        if record.path.stat().st_size == 0:
            return _Photo(record, in_train, fault="the file is empty")
        _, size = decode_with_size(record.path, _SIDE)  # completely, as in training
    except BadImage as error:
        return _Photo(record, in_train, digest, fault=str(error))
    except OSError as error:
        return _Photo(record, in_train, digest, fault=error.strerror or str(error))
    return _Photo(record, in_train, digest, size)


def _about_files(photos: Sequence[_Photo], small_side: int) -> Iterator[Finding]:
    bad = [f"{photo.record.path}: {photo.fault}" for photo in photos if photo.fault]
    yield from _found(
        "error", "Photos that cannot be read", bad, "Replace or remove them; shrink those that are too large."
    )
    small = [f"{p.record.path}: {p.size[0]} x {p.size[1]}" for p in photos if p.size and min(p.size) < small_side]
    yield from _found(
        "warning", f"Photos with a side below {small_side} pixels", small, "Use larger photos where there are any."
    )


def _about_doubles(photos: Sequence[_Photo]) -> Iterator[Finding]:
    """Report each group of equal files once, under its most serious problem."""
    groups: dict[str, list[_Photo]] = defaultdict(list)
    for photo in photos:
        if photo.digest:
            groups[photo.digest].append(photo)
    leaks, contradictions, repeats = [], [], []
    for group in groups.values():
        if len(group) > 1:
            text = " = ".join(str(photo.record.path) for photo in group)
            leaked = len({photo.in_train for photo in group}) > 1
            torn = len({photo.record.label for photo in group}) > 1
            leaks += [text] * leaked
            contradictions += [text] * torn
            repeats += [text] * (not leaked and not torn)
    yield from _found(
        "error", "Photos both in training and in test", leaks, "Remove one of each: accuracy would be too optimistic."
    )
    yield from _found("warning", "Photos in two classes", contradictions, "Decide on one class for each.")
    yield from _found("note", "Photos more than once in their class", repeats, "Keep one of each.")


def _about_boxes(photos: Sequence[_Photo]) -> Iterator[Finding]:
    outside, tiny = [], []
    for photo in photos:
        for x0, y0, x1, y1 in photo.record.boxes_xyxy:
            text = f"{photo.record.path}: {x0:g},{y0:g},{x1:g},{y1:g}"
            if photo.size:
                width, height = photo.size
                if min(x0, y0) < -_TOLERANCE or x1 > width + _TOLERANCE or y1 > height + _TOLERANCE:
                    outside.append(f"{text} in {width} x {height}")
            if min(x1 - x0, y1 - y0) < 2:
                tiny.append(text)
    yield from _found(
        "warning",
        "Boxes that reach out of their photo",
        outside,
        "Were the photos resized or rotated after annotation?",
    )
    yield from _found(
        "warning",
        "Boxes less than two pixels wide or high",
        tiny,
        "Boxes must be in pixels, not fractions of the photo.",
    )


def _about_classes(dataset: Dataset, train: Counter[str], test: Counter[str]) -> Iterator[Finding]:
    without = [name for name in dataset.classes if not train[name]]
    yield from _found("error", "Classes without training photos", without, "Add photos, or remove the classes.")
    if not dataset.test:
        advice = "'learn' holds some out. For 'train', move some to test/, or set data.holdout."
        yield Finding("note", "No test photos", (), advice)
        return
    without = [name for name in dataset.classes if not test[name]]
    yield from _found(
        "warning", "Classes without test photos", without, "Add some, or these classes are not evaluated."
    )
    boxed = {record.label for record in dataset.test if record.boxes_xyxy}
    if not boxed:
        yield Finding(
            "note",
            "No boxes on the test photos",
            (),
            "Add boxes to evaluate localization.",
        )
        return
    without = [name for name in dataset.classes if test[name] and name not in boxed]
    yield from _found(
        "warning", "Classes without boxes on their test photos", without, "Add boxes to evaluate localization."
    )


def _found(severity: Severity, what: str, examples: Sequence[str], what_to_do: str) -> Iterator[Finding]:
    if examples:
        yield Finding(severity, f"{what}: {len(examples)}", tuple(examples), what_to_do)


def _counts(classes: Iterable[str], records: Sequence[Record], counts: Counter[str]) -> SplitCounts:
    boxes = sum(len(record.boxes_xyxy) for record in records)
    return SplitCounts(len(records), boxes, len(counts), _spread([counts[name] for name in classes]))


def _spread(numbers: Sequence[int]) -> Spread:
    if not numbers:
        return Spread(0, 0, 0)
    return Spread(min(numbers), statistics.median(numbers), max(numbers))
