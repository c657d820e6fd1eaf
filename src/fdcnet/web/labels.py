"""Photos that the Label tab boxes, a person checks, and `export` writes for other tools.

They stay on the server's disk until they are discarded or the server stops.
"""

import logging
import re
import shutil
import threading
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from fdcnet.data.records import BoxXYXY
from fdcnet.errors import UserError
from fdcnet.files import did_you_mean
from fdcnet.inference.annotation import Annotation
from fdcnet.inference.localizer import Localizer
from fdcnet.runtime.machine import lower_priority
from fdcnet.teaching.label_boxes import LabelledPhoto, box_photos
from fdcnet.teaching.label_corrections import Correction, apply_correction, checked
from fdcnet.teaching.label_files import FORMATS, place_photos, write_format
from fdcnet.teaching.label_learning import checked_boxes
from fdcnet.teaching.label_photos import KnownPhoto
from fdcnet.teaching.label_shapes import Shape
from fdcnet.web.box_lesson import BoxLesson
from fdcnet.web.guard import Refused
from fdcnet.web.model import ServedModel, ServedModels
from fdcnet.web.runner import LessonRunner
from fdcnet.web.uploads import Upload

log = logging.getLogger(__name__)
UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)  # names of devices on Windows
MAX_NAME, MAX_SUFFIX = 80, 6  # characters
PHOTOS = "photos"  # folder of the photos in archives of formats that have none of their own


@dataclass
class CheckedPhoto:
    """`found` is what the model found, `now` what will be exported. Rejected photos have no annotation."""

    found: LabelledPhoto
    now: LabelledPhoto

    def info(self, number: int) -> dict[str, Any]:
        [annotation] = self.found.annotations
        width, height = self.found.image_size
        return {
            "number": number,
            "name": self.found.name,
            "class": annotation.class_name,
            "width": width,
            "height": height,
            "found": annotation.box_xyxy,
            "box": self.now.annotations[0].box_xyxy if self.now.annotations else None,
            "confidence": round(annotation.score, 4),
            "reviewed": self.now.reviewed,
        }


class LabelSet:
    """One upload. A photo keeps its number, also when its box is drawn again."""

    def __init__(self, upload: Upload) -> None:
        self.upload, self.state = upload, "boxing"  # then ready or failed; learning, while a box lesson runs
        self.photos: list[CheckedPhoto] = []
        self.lesson: BoxLesson | None = None  # the one that is running, or the last one
        self.discarded = threading.Event()
        self._num_boxed = 0
        self._outcome: dict[str, Any] = {}

    def info(self) -> dict[str, Any]:
        photos = list(enumerate(self.photos)) if self.state == "ready" else []
        photos.sort(key=lambda numbered: numbered[1].found.confidence)
        return {
            "state": self.state,
            "classes": self.upload.classes,
            "num_boxed": self._num_boxed,
            "num_photos": len(self.upload.records),
            "photos": [photo.info(number) for number, photo in photos],
            "skipped": self.upload.skipped,
            **(self.lesson.info() if self.lesson else {}),
            **self._outcome,
        }

    def box(self, localizer: Localizer) -> None:
        try:
            photos = list(self._boxed(localizer, known_photos(self.upload)))
            self.photos = [CheckedPhoto(photo, photo) for photo in sorted(photos, key=lambda photo: photo.confidence)]
            self.state = "ready"
        except Exception as error:  # nobody else sees what this thread raises
            log.exception("The photos could not be boxed")
            self._outcome = {"problem": f"The photos could not be boxed: {str(error)[:300]}", "remedy": "Try again."}
            self.state = "failed"
        finally:
            if self.discarded.is_set():
                self.upload.delete()

    def learn(self, lesson: BoxLesson, model: ServedModel, keep: int, reservation: AbstractContextManager[Any]) -> None:
        """Train on the checked boxes, then draw those again that nobody has checked."""
        with reservation:
            try:
                lesson.run(model, keep, lambda lesson: self._draw_again(lesson, model.localizer()))
            finally:
                self.state = "ready"
                if self.discarded.is_set():
                    self.upload.delete()

    def _draw_again(self, lesson: BoxLesson, localizer: Localizer) -> int:
        numbers = {photo.found.name: number for number, photo in enumerate(self.photos) if not photo.now.reviewed}
        wanted = [photo for photo in known_photos(self.upload) if photo.name in numbers]
        found = []
        for photo in self._boxed(localizer, wanted):
            found.append(photo)
            lesson.redrawing(len(found), len(wanted))
        for photo in found:
            self.photos[numbers[photo.name]] = CheckedPhoto(photo, photo)
        return len(found)

    def _boxed(self, localizer: Localizer, wanted: Sequence[KnownPhoto]) -> Iterator[LabelledPhoto]:
        def skip(name: str, reason: str) -> None:
            self.upload.skipped.append({"name": name, "reason": reason})

        for photo in box_photos(localizer, wanted, skip):
            if self.discarded.is_set():
                return
            self._num_boxed += 1
            yield photo

    def stop(self) -> None:
        self.discarded.set()
        if self.lesson:
            self.lesson.cancel.set()

    def correct(self, number: int, box: BoxXYXY | None) -> None:
        """Accept the box (the one that was found) or replace it. None rejects the photo."""
        photo = self.photos[number]
        [found] = photo.found.annotations
        annotations: tuple[Annotation, ...] = ()
        if box is not None:
            shape = Shape(found.class_name, (box[:2], box[2:]), fractions=False)
            size = photo.found.image_size
            annotations = (checked(shape, photo.found.name, size, self.upload.classes, "The correction"),)
        correction = Correction(annotations, submitted=True)
        photo.now = apply_correction(photo.found, correction, photo.found.annotations, tolerance=0.01)

    def export(self, form: str, folder: Path) -> Path:
        """Write an archive of the photos that were not rejected, with their boxes; -> its path in `folder`"""
        photos = [photo.now for photo in self.photos if photo.now.annotations]
        if not photos:
            raise Refused(409, "There is no photo to export.", "Accept at least one box.")
        out = folder / "labels"
        if FORMATS[form].photos is None:
            place_photos(out / PHOTOS, photos, copy=False)
            photos = [replace(photo, path=out / PHOTOS / photo.name) for photo in photos]
        write_format(form, out, self.upload.classes, photos, copy_photos=False, prefix=None)
        archive = folder / f"labels-{form}.zip"
        with zipfile.ZipFile(archive, "w") as target:  # photos are compressed already
            for file in sorted(out.rglob("*")):
                if file.is_file():
                    target.write(file, file.relative_to(out))
        return archive


class Labelling:
    """Boxes one upload at a time, in a thread of its own."""

    def __init__(self, models: ServedModels, runner: LessonRunner) -> None:
        self.models, self.runner, self.workspace = models, runner, runner.workspace
        self.labels: LabelSet | None = None
        self._pool = ThreadPoolExecutor(1, "label", initializer=lower_priority)
        self._reserved, self._exporting = threading.Lock(), threading.Lock()

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """For one upload at a time. Start inside."""
        if not self._reserved.acquire(blocking=False):
            raise Refused(409, "Another upload is running.", "Wait until it is done.")
        try:
            if self.labels is not None:
                raise Refused(409, "There are photos to check already.", "Export them if needed, then discard them.")
            yield
        finally:
            self._reserved.release()

    def start(self, upload: Upload) -> None:
        try:
            localizer = self.models.current.localizer()
            refuse_unknown(upload.classes, localizer.classes)
        except UserError:
            upload.delete()
            raise
        self.labels = LabelSet(upload)
        self._pool.submit(self.labels.box, localizer)

    def learn_boxes(self) -> None:
        """Train the localizer on the checked boxes. No lesson can run at the same time."""
        labels, model = self.ready, self.models.current
        refuse_unknown(labels.upload.classes, model.localizer().classes)
        if not any(photo.now.reviewed and photo.now.annotations for photo in labels.photos):
            raise Refused(409, "There are no checked boxes to learn from.", "Accept or correct some boxes first.")
        with ExitStack() as reservation:
            reservation.enter_context(self.runner.reserved())
            labels.lesson, labels.state = BoxLesson(checked_boxes(photo.now for photo in labels.photos)), "learning"
            self._pool.submit(labels.learn, labels.lesson, model, self.runner.keep, reservation.pop_all())

    @property
    def ready(self) -> LabelSet:
        if self.labels is None or self.labels.state != "ready":
            raise Refused(409, "There are no boxes to check.", "Send photos to /api/labels and wait until it is ready.")
        return self.labels

    def discard(self) -> None:
        labels, self.labels = self.labels, None
        if labels:
            labels.stop()
            if labels.state not in ("boxing", "learning"):
                labels.upload.delete()

    def export(self, form: str) -> Path:
        """-> an archive, alone in a folder that the caller removes"""
        labels = self.ready
        with self._exporting:  # one at a time: it may be large
            folder = self.workspace.new_folder("export")
            try:
                return labels.export(form, folder)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise

    def close(self) -> None:
        if self.labels:
            self.labels.stop()
        self._pool.shutdown()


def refuse_unknown(wanted: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in wanted if name not in known]
    if unknown:
        remedy = did_you_mean(unknown[0], known, "Teach the model this class first.")
        raise Refused(400, f"The model does not know the class '{unknown[0]}'.", remedy)


def known_photos(upload: Upload) -> list[KnownPhoto]:
    """Each photo under `class/file name`. Names that differ in their extension alone get a number, as in YOLO."""
    taken: set[str] = set()
    photos = []
    for record in upload.records:
        shown_name = upload.names.get(record.path, record.path.name)
        file = PurePosixPath(safe_name(re.split(r"[/\\]", shown_name)[-1]))  # browsers send the path of a chosen folder
        folder, stem, number = safe_name(record.label), file.stem, 1
        while f"{folder}/{stem}".casefold() in taken:
            number += 1
            stem = f"{file.stem}-{number}"
        taken.add(f"{folder}/{stem}".casefold())
        photos.append(KnownPhoto(record.path, f"{folder}/{stem}{file.suffix}", (record.label,)))
    return photos


def safe_name(text: str) -> str:
    """One part of a path, valid on every system: neither separators nor dots at its ends."""
    name = PurePosixPath(UNSAFE.sub("_", text).strip(". ") or "_")
    suffix = name.suffix if len(name.suffix) <= MAX_SUFFIX else ""
    shortened = name.name.removesuffix(suffix)[:MAX_NAME] + suffix
    return f"_{shortened}" if RESERVED.match(shortened) else shortened
