"""Photos that a client sends for a lesson: checked, and kept under names of our own until it is over."""

import secrets
import shutil
import tempfile
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from starlette.datastructures import FormData, UploadFile

from fdcnet.data.decode import BadImage, decode
from fdcnet.data.records import Dataset, Record
from fdcnet.web.guard import Refused

MAX_PHOTO = 32 * 10**6  # bytes
MAX_LESSON = 2 * 10**9
MAX_PHOTOS = 1000
MAX_CLASSES = 100
HOW = "Send form fields in turn: class, then its photos as photo, the next class, and so on."
TINY = 32  # pixels: decoding to this side finds out whether a photo is whole


@dataclass
class Upload:
    """Classes and photos of one lesson. `delete` leaves nothing of them."""

    folder: Path
    classes: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    left_out: list[dict[str, str]] = field(default_factory=list)  # name, reason

    @property
    def dataset(self) -> Dataset:
        return Dataset("the page", tuple(self.classes), tuple(self.records))

    def count(self, name: str) -> int:
        return sum(record.label == name for record in self.records)

    def delete(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def keep_uploads(form: FormData) -> Upload:
    """A client's file name is only ever shown; no part of it, nor of a class name, becomes a path."""
    upload = Upload(Path(tempfile.mkdtemp(prefix="fdcnet-lesson-")))
    try:
        _sort(form, upload)
    except BaseException:
        upload.delete()
        raise
    return upload


def _sort(form: FormData, upload: Upload) -> None:
    lesson, label = secrets.token_hex(4), None
    photos: list[tuple[Path, str, UploadFile]] = []
    for name, value in form.multi_items():
        if name == "class" and isinstance(value, str):
            label = clean_name(value)
            if label not in upload.classes:
                upload.classes.append(label)
        elif name == "photo" and isinstance(value, UploadFile) and label is not None:
            photos.append((upload.folder / f"{lesson}-{len(photos):04d}", label, value))
        else:
            raise Refused(400, f"The field '{name[:40]}' is not expected here.", HOW)
    if not photos:
        raise Refused(400, "No photo was sent.", HOW)
    with ThreadPoolExecutor(2) as pool:  # each may hold a large photo
        problems = list(pool.map(lambda photo: _store(photo[2], photo[0]), photos))
    for (path, label, sent), problem in zip(photos, problems, strict=True):
        if problem is None:
            upload.records.append(Record(path, label))
        else:
            upload.left_out.append({"name": (sent.filename or "photo")[:200], "reason": problem})
    if not upload.records:
        first = upload.left_out[0]
        raise Refused(400, f"No photo can be read; the first is {first['name']}: {first['reason']}.", "Send others.")


def _store(sent: UploadFile, path: Path) -> str | None:
    """Why it is not kept, if it is not."""
    if (sent.size or 0) > MAX_PHOTO:
        return f"larger than {MAX_PHOTO // 10**6} MB"
    with path.open("xb") as file:
        shutil.copyfileobj(sent.file, file)
    try:
        decode(path, TINY)
    except BadImage as reason:
        path.unlink()
        return str(reason)
    return None


def clean_name(text: str) -> str:
    name = " ".join(unicodedata.normalize("NFC", text).split())
    if not name:
        raise Refused(400, "A class has no name.", "Give each class a name.")
    return name
