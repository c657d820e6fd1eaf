"""Draw the boxes for photos whose classes are known: what `fdcnet label` does."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdcnet.data.decode import BadImage, image_size
from fdcnet.errors import UserError, count
from fdcnet.files import did_you_mean, locked, sha256, write_bytes
from fdcnet.inference import hub
from fdcnet.inference.localizer import Localizer
from fdcnet.runtime.listener import ForwardingListener, Listener
from fdcnet.runtime.progress import default_listener
from fdcnet.store.bundle import has_bundle, read_current, read_description
from fdcnet.store.versions import lineage
from fdcnet.teaching.label_boxes import LabelledPhoto, box_photos
from fdcnet.teaching.label_corrections import Correction, apply_correction, read_corrections
from fdcnet.teaching.label_files import (
    FORMATS,
    MODEL,
    LabelRecord,
    check_output,
    read_record,
    refuse_edited,
    write_format,
    write_record,
)
from fdcnet.teaching.label_learning import checked_boxes, learn_from_boxes
from fdcnet.teaching.label_photos import KnownPhoto, KnownPhotos, other_photos, read_known_photos
from fdcnet.teaching.label_sheet import contact_sheet
from fdcnet.teaching.learn import learn

SHEET = "index.html"


@dataclass(frozen=True)
class LabelReport:
    """What `label` did. `photos` are in the order of the data set."""

    out: Path
    classes: tuple[str, ...]
    photos: tuple[LabelledPhoto, ...]
    written: tuple[Path, ...]
    skipped: tuple[str, ...]  # unreadable photos, and photos that a format cannot hold, with the reason
    seconds: float

    @property
    def num_reviewed(self) -> int:
        return sum(photo.reviewed for photo in self.photos)


def label(
    photos: str | Path,
    out: str | Path,
    *,
    model: str | Path | None = None,
    formats: Sequence[str] = ("coco",),
    corrections: str | Path | None = None,
    others: str | Path | None = None,
    learn_boxes: bool = False,
    copy_photos: bool = False,
    labelstudio_url: str | None = None,
    learn_options: Mapping[str, Any] | None = None,
    device: str = "auto",
    cache_dir: Path | None = None,
    progress: bool = True,
    listener: Listener | None = None,
) -> LabelReport:
    """Box each photo as the class that it is known to show, and write the boxes to the folder `out`.

    Without `model`, a model is learned from these photos first and kept in `out`. `formats` are names in `FORMATS`.
    `corrections` is a file of corrected boxes; corrected photos are kept as they are from then on. `learn_boxes` also
    trains the localizer on all boxes that were checked so far; the result is kept in `out` as a new version of its
    model, and a `model` that was named does not change. `others` is a folder of photos without the object, needed to
    learn a single class. Formats that need the photos get links to them, or copies with `copy_photos`. `learn_options`
    are passed to `fdcnet.learn`. `progress`: show bars in a terminal or notebook, unless a `listener` is given.
    """
    started = time.monotonic()
    out, listener = Path(out), listener or default_listener(progress)
    for name in formats:
        if name not in FORMATS:
            remedy = did_you_mean(name, FORMATS, f"Choose from {', '.join(FORMATS)}.")
            raise UserError(f"There is no label format '{name}'.", remedy)
    known = read_known_photos(photos)
    for note in known.notes:
        listener.note(note)
    check_output(out, Path(photos))
    record = read_record(out)
    corrected = read_corrections(Path(corrections), known.photos, known.classes) if corrections else {}
    refuse_edited(out, record, Path(corrections) if corrections else None)
    path = out / MODEL if model is None else _local(model)
    checked = _checked_photos(known.photos, record, corrected)
    examples = checked_boxes(checked.values()) if learn_boxes else []
    missing = _missing_classes(known, path, is_given=model is not None)
    if missing:
        _check_lesson(known, missing, path, others)

    with closing(listener), _writing(out):
        if missing:
            dataset = known.to_learn_from(missing, Path(others) if others else None)
            lesson = _LessonListener(listener, {photo.path for photo in known.photos if photo.name not in checked})
            options: dict[str, Any] = {"holdout": 0, "device": device, "cache_dir": cache_dir, "listener": lesson}
            taught_by_boxes = any(version.knows_checked_boxes for version in lineage(path))
            options["refine"] = not taught_by_boxes  # training again would undo what they taught
            try:
                learn(path, dataset, **options | dict(learn_options or {}))
            except UserError:
                lesson.name_unreadable()  # they may be the reason
                raise
        if examples:
            learn_from_boxes(path, out / MODEL, examples, device, cache_dir, listener)
            path = out / MODEL
        checksum = read_current(path, lambda bundle: sha256(bundle / "weights.safetensors"))
        kept = checked if record.model != checksum else _recorded_photos(known.photos, record) | checked
        boxed, skipped = _box(known.photos, kept, Localizer.load(path, device), listener)
        if not boxed:
            raise UserError("No photo could be read.", "Run 'fdcnet data check' on the photos.")
        formats = tuple(dict.fromkeys((*record.checksums, *formats)))
        write_record(out, checksum, known.classes, boxed, formats, complete=False)
        for name in formats:
            skipped += write_format(name, out, known.classes, boxed, copy_photos, labelstudio_url)
        write_bytes(out / SHEET, contact_sheet(known.title, boxed).encode("utf-8", "replace"))
        write_record(out, checksum, known.classes, boxed, formats, complete=True)
    written = (out / SHEET, *(out / FORMATS[name].target for name in formats))
    seconds = round(time.monotonic() - started, 1)
    return LabelReport(out, known.classes, tuple(boxed), written, tuple(skipped), seconds)


class _LessonListener(ForwardingListener):
    """Does not name unreadable photos that are boxed after the lesson: `label` names them then."""

    def __init__(self, inner: Listener, boxed_later: Collection[Path]) -> None:
        super().__init__(inner)
        self._boxed_later = boxed_later
        self._unnamed: list[tuple[Path, str]] = []
        self._total = 0

    def unreadable(self, photos: Sequence[tuple[Path, str]], total: int) -> None:
        self._unnamed, self._total = [found for found in photos if found[0] in self._boxed_later], total
        if others := [found for found in photos if found[0] not in self._boxed_later]:
            super().unreadable(others, total)

    def name_unreadable(self) -> None:
        if self._unnamed:
            super().unreadable(self._unnamed, self._total)


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Lock the folder; remove it again if it is new and stays empty."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        with locked(out):
            yield
    except BaseException:
        with suppress(OSError):
            out.rmdir()  # fails if it holds anything
        raise


def _local(model: str | Path) -> Path:
    return hub.download(model) if hub.is_address(model) else Path(model)


def _missing_classes(known: KnownPhotos, model: Path, is_given: bool) -> list[str]:
    """Classes that the model does not know. A model that the user named must know all of them."""
    if not is_given and not has_bundle(model):
        return list(known.classes)
    description = read_description(model)
    learned = [entry["name"] for entry in description["classes"]]
    missing = [name for name in known.classes if name not in learned]
    if missing and is_given:
        problem = f"{model} does not know the class '{missing[0]}'."
        teach = f"Teach it: fdcnet learn {model} PHOTOS. Or leave out --model."
        raise UserError(problem, did_you_mean(missing[0], learned, teach))
    return missing


def _check_lesson(known: KnownPhotos, missing: Sequence[str], model: Path, others: str | Path | None) -> None:
    if never_alone := [name for name in missing if not known.photos_of(name)]:
        raise UserError(
            f"All photos of the class '{never_alone[0]}' have other labels as well, so it cannot be learned from them.",
            "Add at least 4 photos that have this label only, or --model M if a model knows the class.",
        )
    if others is not None:
        other_photos(Path(others))
    elif len(missing) == 1 and not has_bundle(model):
        raise UserError(
            f"There is one class only, '{missing[0]}'. A model learns where an object is by telling classes apart.",
            "Add --others DIR with photos of other things, or --model M if a model knows the class.",
        )


def _checked_photos(
    photos: Sequence[KnownPhoto], record: LabelRecord, corrected: Mapping[str, Correction]
) -> dict[str, LabelledPhoto]:
    """Photos whose boxes a person checked, now or earlier, by name. They do not depend on the model."""
    found = _recorded_photos(photos, record)
    for photo in photos:
        if correction := corrected.get(photo.name):
            before = record.photos[photo.name][1] if photo.name in record.photos else None
            unboxed = LabelledPhoto(photo.path, photo.name, image_size(photo.path), ())
            found[photo.name] = apply_correction(found.get(photo.name, unboxed), correction, before)
    return {name: photo for name, photo in found.items() if photo.reviewed}


def _box(
    photos: Sequence[KnownPhoto], kept: Mapping[str, LabelledPhoto], localizer: Localizer, listener: Listener
) -> tuple[list[LabelledPhoto], list[str]]:
    """Box the photos that are not kept as they are; -> all photos in order, and unreadable ones with the reason."""
    new = [photo for photo in photos if photo.name not in kept]
    skipped: list[str] = []
    boxed = dict(kept)
    for number, found in enumerate(box_photos(localizer, new, lambda name, why: skipped.append(f"{name}: {why}")), 1):
        boxed[found.name] = found
        listener.progress("boxing", number, len(new))
    if skipped:
        listener.note(f"Skipped {count(len(skipped), 'unreadable photo')}.")
    return [boxed[photo.name] for photo in photos if photo.name in boxed], skipped


def _recorded_photos(photos: Sequence[KnownPhoto], record: LabelRecord) -> dict[str, LabelledPhoto]:
    return {photo.name: found for photo in photos if (found := _recorded(photo, record)) is not None}


def _recorded(photo: KnownPhoto, record: LabelRecord) -> LabelledPhoto | None:
    """What an earlier run found, unless the photo or its labels have changed since."""
    if photo.name not in record.photos:
        return None
    size, annotations, reviewed = record.photos[photo.name]
    with suppress(BadImage):
        same_labels = reviewed or {a.class_name for a in annotations} == set(photo.class_names)
        if same_labels and image_size(photo.path) == size:
            return LabelledPhoto(photo.path, photo.name, size, annotations, reviewed)
    return None
