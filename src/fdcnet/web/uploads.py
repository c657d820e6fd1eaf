"""Uploaded photos with their classes. They are stored under generated names until they are no longer needed."""

import shutil
import unicodedata
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from anyio import to_thread
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from fdcnet.data.decode import BadImage, decode
from fdcnet.data.records import Dataset, Record
from fdcnet.web.guard import Refused
from fdcnet.web.workspace import Workspace

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_PHOTO = 32 * 10**6  # bytes
MAX_LESSON = 2 * 10**9
MAX_PHOTOS = 1000
MAX_CLASSES = 100
MAX_FIELD = 10_000  # bytes of a class name
USAGE = "Send form fields in this order: class, its photos as photo, the next class, and so on."
FIELDS = {
    "class": {"type": "array", "items": {"type": "string"}, "description": "Class name of the photos that follow."},
    "photo": {"type": "array", "items": {"type": "string", "format": "binary"}},
}
UPLOAD_BODY = {  # for OpenAPI
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": {"type": "object", "properties": FIELDS}}},
    }
}
CHECK_SIDE = 32  # pixels; decoding a photo to this size shows whether it is complete


@dataclass
class Upload:
    """Classes and photos of one upload. `delete` removes all files."""

    folder: Path
    classes: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    unseen: list[Record] = field(default_factory=list)  # of the example: only for evaluation
    skipped: list[dict[str, str]] = field(default_factory=list)  # name, reason
    names: dict[Path, str] = field(default_factory=dict)  # the photos' own file names

    @property
    def dataset(self) -> Dataset:
        return Dataset("the page", tuple(self.classes), tuple(self.records), tuple(self.unseen))

    def count(self, name: str) -> int:
        return sum(record.label == name for record in self.records)

    def delete(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


async def receive_upload(request: Request, workspace: Workspace) -> Upload:
    """Write the photos to the workspace as they arrive. Unreadable ones are skipped."""
    try:
        folder = workspace.new_folder("upload")
        return await _receive(request.stream(), request.headers.get("content-type", ""), folder)
    except OSError as error:
        remedy = "Free some space in the server's temporary folder."
        raise Refused(507, f"The photos cannot be stored: {error.strerror or error}.", remedy) from error


async def _receive(body: AsyncIterator[bytes], content_type: str, folder: Path) -> Upload:
    form = _Form(Upload(folder))
    try:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise Refused(400, "The request is not a form.", USAGE)
        parser = MultipartParser(options[b"boundary"], form.callbacks)
        async for chunk in body:
            await to_thread.run_sync(parser.write, chunk)
        if not form.is_complete:
            raise Refused(400, "The form is incomplete.", USAGE)
        return await to_thread.run_sync(form.finish)
    except FormParserError as error:
        form.upload.delete()
        raise Refused(400, f"The form cannot be read: {error}.", USAGE) from error
    except BaseException:
        form.upload.delete()
        raise
    finally:
        form.close()


@dataclass
class _Photo:
    path: Path
    label: str
    shown_name: str
    size: int = 0


class _Form:
    """Handles the parts of a multipart body. At most one file is open, and memory use does not depend on the photos.

    File names that a client sends never become part of a path here.
    """

    def __init__(self, upload: Upload) -> None:
        self.upload, self.is_complete = upload, False
        self._photos: list[_Photo] = []
        self._label: str | None = None
        self._text, self._disposition, self._header, self._value = b"", b"", b"", b""
        self._file: BinaryIO | None = None
        self.callbacks: MultipartCallbacks = {
            "on_part_begin": self._begin_part,
            "on_header_field": self._read_header_name,
            "on_header_value": self._read_header_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._read_data,
            "on_part_end": self._end_part,
            "on_end": self._end,
        }

    def close(self) -> None:
        if self._file:
            self._file.close()

    def finish(self) -> Upload:
        if not self._photos:
            raise Refused(400, "No photo was sent.", USAGE)
        with ThreadPoolExecutor(2) as pool:  # each may decode a large photo
            problems = list(pool.map(_problem, self._photos))
        for photo, problem in zip(self._photos, problems, strict=True):
            if problem is None:
                self.upload.records.append(Record(photo.path, photo.label))
                self.upload.names[photo.path] = photo.shown_name
            else:
                photo.path.unlink()
                self.upload.skipped.append({"name": photo.shown_name, "reason": problem})
        if not self.upload.records:
            first = self.upload.skipped[0]
            raise Refused(
                400, f"No readable photos. The first one, {first['name']}: {first['reason']}.", "Send others."
            )
        return self.upload

    def _begin_part(self) -> None:
        self._text, self._disposition, self._header, self._value = b"", b"", b"", b""

    def _read_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _read_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header, self._value = b"", b""

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name == "photo" and b"filename" in options and self._label is not None:
            self._add_photo(options[b"filename"].decode("utf-8", "replace"), self._label)
        elif name != "class" or b"filename" in options:
            raise Refused(400, f"Unexpected form field '{name[:40]}'.", USAGE)

    def _add_photo(self, shown_name: str, label: str) -> None:
        if len(self._photos) == MAX_PHOTOS:
            raise Refused(400, f"More than {MAX_PHOTOS} photos.", "Send fewer at a time.")
        # Unique among lessons, because the model remembers these names.
        path = self.upload.folder / f"{self.upload.folder.name}-{len(self._photos):04d}"
        self._photos.append(_Photo(path, label, shown_name[:200] or "photo"))
        self._file = path.open("xb")

    def _read_data(self, data: bytes, start: int, end: int) -> None:
        if self._file:
            photo = self._photos[-1]
            photo.size += end - start
            if photo.size <= MAX_PHOTO:
                self._file.write(data[start:end])
        else:
            self._text += data[start:end]
            if len(self._text) > MAX_FIELD:
                raise Refused(400, "A class name is too long.", "Shorten it to 200 characters.")

    def _end_part(self) -> None:
        if self._file:
            self._file.close()
            self._file = None
            return
        self._label = clean_name(self._text.decode("utf-8", "replace"))
        if self._label not in self.upload.classes:
            self.upload.classes.append(self._label)
        if len(self.upload.classes) > MAX_CLASSES:
            raise Refused(400, f"More than {MAX_CLASSES} classes.", "Send fewer at a time.")

    def _end(self) -> None:
        self.is_complete = True


def _problem(photo: _Photo) -> str | None:
    """-> why the photo is skipped, or None"""
    if photo.size > MAX_PHOTO:
        return f"larger than {MAX_PHOTO // 10**6} MB"
    try:
        decode(photo.path, CHECK_SIDE)
    except BadImage as reason:
        return str(reason)
    return None


def clean_name(text: str) -> str:
    name = " ".join(unicodedata.normalize("NFC", text).split())
    if not name:
        raise Refused(400, "A class has no name.", "Give each class a name.")
    return name
