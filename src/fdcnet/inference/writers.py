"""Predictions as files that other tools read. Each photo is written at once; the file appears when all is well."""

import csv
import io
import json
import os
import shutil
import sys
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import yaml

from fdcnet.data.records import BoxXYXY
from fdcnet.errors import UserError
from fdcnet.files import replacing, write_bytes
from fdcnet.inference.prediction import Prediction

ESCAPED = "backslashreplace"  # a file name that is no UTF-8 becomes an escape, which JSON reads back
MAX_WAITING = 16  # drawings that may wait, with their photos
LOCAL_FILES = "/data/local-files/?d="  # where Label Studio serves the files of its own machine


def is_read(write: Callable[[], object]) -> bool:
    """Whether somebody still reads what is written: `head` stops when it has enough, then the rest goes nowhere."""
    try:
        write()
    except (BrokenPipeError, SystemExit):  # rich makes the second of the first
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return False
    return True


class Writer:
    """Takes one prediction after another. Leaving the block without an error puts the file into its place."""

    def __init__(self, path: Path, classes: Sequence[str]) -> None:
        self.path, self.classes = path, classes
        self.label_of = {name: label for label, name in enumerate(classes)}
        self.left_out: list[str] = []  # what could not be written, and why

    def add(self, prediction: Prediction) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class FileWriter(Writer):
    """One file, which appears once it is complete; `-` is standard output."""

    def __enter__(self) -> Self:
        self.closing = ExitStack()
        self.to_stdout = str(self.path) == "-"
        self.file: IO[str] = sys.stdout if self.to_stdout else self._open()
        if not is_read(self.begin):
            self.begin()  # once more, into nowhere
        return self

    def _open(self) -> IO[str]:
        _make_folder(self.path.parent)
        if self.path.is_dir():
            raise UserError(f"{self.path} is a folder.", "Name a file.")
        content = self.closing.enter_context(replacing(self.path))
        return io.TextIOWrapper(content, encoding="utf-8", errors=ESCAPED, newline="")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.closing.__exit__(kind, error, trace)
            return
        with self.closing:
            if self.to_stdout:
                is_read(self._finish)
            else:
                self._finish()

    def _finish(self) -> None:
        self.end()
        self.file.flush()

    def begin(self) -> None: ...

    def end(self) -> None: ...


class JsonWriter(FileWriter):
    """A list; a line per photo for `.jsonl` and standard output."""

    def begin(self) -> None:
        self.lines = self.to_stdout or self.path.suffix == ".jsonl"
        self.items = _List(self.file)

    def add(self, prediction: Prediction) -> None:
        if self.lines:
            self.file.write(_text(prediction.to_dict()) + "\n")
            self.file.flush()
        else:
            self.items.add(prediction.to_dict())

    def end(self) -> None:
        if not self.lines:
            self.items.end()
            self.file.write("\n")


class CsvWriter(FileWriter):
    """A row per box; a photo that is none of these has a row without box."""

    def begin(self) -> None:
        self.rows = csv.writer(self.file, lineterminator="\n")
        self.rows.writerow(["path", "width", "height", "class", "score", "task", "x0", "y0", "x1", "y1"])

    def add(self, prediction: Prediction) -> None:
        facts = prediction.to_dict()
        keys = ("source", "width", "height", "class", "score", "task")
        for box in facts["boxes"] or [[None] * 4]:
            self.rows.writerow([*(facts[key] for key in keys), *box])


class CocoWriter(FileWriter):
    """COCO annotations: what CVAT, FiftyOne and pycocotools read. Annotations gather in a file of their own."""

    def begin(self) -> None:
        categories = [{"id": i, "name": name, "supercategory": ""} for i, name in enumerate(self.classes, start=1)]
        self.file.write(
            f'{{"info": {{"description": "fdcnet predict"}},\n"categories": {_text(categories)},\n"images": '
        )
        self.images = _List(self.file)
        aside = tempfile.TemporaryFile("w+", encoding="utf-8", errors=ESCAPED)  # noqa: SIM115 (closed by `closing`)
        self.aside = self.closing.enter_context(aside)
        self.annotations = _List(self.aside)
        self.num_images = self.num_boxes = 0

    def add(self, prediction: Prediction) -> None:
        self.num_images += 1
        width, height = prediction.image_size
        self.images.add({"id": self.num_images, "file_name": prediction.name, "width": width, "height": height})
        for box in prediction.boxes_xyxy:
            self.num_boxes += 1
            x, y, w, h = _xywh(box)
            self.annotations.add(
                {
                    "id": self.num_boxes,
                    "image_id": self.num_images,
                    "category_id": self.label_of[str(prediction.class_name)] + 1,
                    "bbox": [round(value, 2) for value in (x, y, w, h)],
                    "area": round(w * h, 2),
                    "segmentation": [],
                    "iscrowd": 0,
                    "score": round(prediction.score, 4),
                }
            )

    def end(self) -> None:
        self.images.end()
        self.annotations.end()
        self.file.write(',\n"annotations": ')
        self.aside.seek(0)
        shutil.copyfileobj(self.aside, self.file)
        self.file.write("}\n")


class LabelStudioWriter(FileWriter):
    """Label Studio's tasks with predictions, and beside them the labelling interface to which their names belong."""

    def __init__(self, path: Path, classes: Sequence[str], prefix: str = LOCAL_FILES) -> None:
        super().__init__(path, classes)
        self.prefix = prefix

    def begin(self) -> None:
        self.tasks = _List(self.file)

    def add(self, prediction: Prediction) -> None:
        score = round(prediction.score, 4)
        result = [_rectangle(prediction, box, score) for box in prediction.boxes_xyxy]
        answer = {"model_version": "fdcnet", "score": score, "result": result}
        self.tasks.add(
            {"data": {"image": self.prefix + quote(prediction.name, errors="surrogateescape")}, "predictions": [answer]}
        )

    def end(self) -> None:
        self.tasks.end()
        self.file.write("\n")
        if not self.to_stdout:
            labels = "".join(f"    <Label value={quoteattr(name)}/>\n" for name in self.classes)
            interface = (
                '<View>\n  <Image name="image" value="$image"/>\n'
                f'  <RectangleLabels name="label" toName="image">\n{labels}  </RectangleLabels>\n</View>\n'
            )
            write_bytes(self.path.with_suffix(".xml"), interface.encode("utf-8", ESCAPED))


class YoloWriter(Writer):
    """A folder of YOLO labels: labels/NAME.txt with `class cx cy w h` in shares of the photo, and the class names."""

    def __enter__(self) -> Self:
        _make_folder(self.path / "labels")
        self.written = {"classes.txt": "the list of classes"}  # label file -> whose it is
        names = yaml.safe_dump({"names": dict(enumerate(self.classes))}, allow_unicode=True, sort_keys=False)
        write_bytes(self.path / "data.yaml", ("path: .\ntrain: images\nval: images\n" + names).encode())
        write_bytes(self.path / "labels" / "classes.txt", "".join(f"{name}\n" for name in self.classes).encode())
        return self

    def add(self, prediction: Prediction) -> None:
        name = str(PurePosixPath(prediction.name).with_suffix(".txt"))
        if (other := self.written.setdefault(name, prediction.name)) != prediction.name:
            self.left_out.append(f"no YOLO labels for {prediction.name}: {other} has the same label file, {name}")
            return
        width, height = prediction.image_size
        lines = []
        for box in prediction.boxes_xyxy:
            x, y, w, h = _xywh(box)
            shares = ((x + w / 2) / width, (y + h / 2) / height, w / width, h / height)
            label = self.label_of[str(prediction.class_name)]
            lines.append(f"{label} {' '.join(f'{share:.6f}' for share in shares)}\n")
        write_bytes(self.path / "labels" / name, "".join(lines).encode())


class OverlayWriter(Writer):
    """Photos with heat map, box and label, under their own names; threads draw while the network works."""

    def __enter__(self) -> Self:
        _make_folder(self.path)
        self.pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="draw")
        self.waiting: deque[Future[None]] = deque()
        return self

    def add(self, prediction: Prediction) -> None:
        file = self.path / prediction.name
        if file.resolve() == Path(prediction.source).resolve():
            raise UserError(f"{file} would be painted over.", "Save into another folder than that of the photos.")
        file.parent.mkdir(parents=True, exist_ok=True)
        self.waiting.append(self.pool.submit(prediction.save, file))
        if len(self.waiting) > MAX_WAITING:
            self.waiting.popleft().result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.shutdown(cancel_futures=error is not None)
        if error is None:
            for saved in self.waiting:
                saved.result()


class _List:
    """A JSON list, item by item."""

    def __init__(self, file: IO[str]) -> None:
        self.file, self.opener = file, "["

    def add(self, item: Any) -> None:
        self.file.write(f"{self.opener}\n{_text(item)}")
        self.opener = ","

    def end(self) -> None:
        self.file.write("[]" if self.opener == "[" else "\n]")


def _rectangle(prediction: Prediction, box: BoxXYXY, score: float) -> dict[str, Any]:
    """One region as Label Studio documents it: in percent of the photo."""
    width, height = prediction.image_size
    x, y, w, h = _xywh(box)
    return {
        "id": uuid.uuid4().hex[:10],
        "type": "rectanglelabels",
        "from_name": "label",
        "to_name": "image",
        "original_width": width,
        "original_height": height,
        "image_rotation": 0,
        "score": score,
        "value": {
            "x": 100 * x / width,
            "y": 100 * y / height,
            "width": 100 * w / width,
            "height": 100 * h / height,
            "rotation": 0,
            "rectanglelabels": [prediction.class_name],
        },
    }


def _xywh(box: BoxXYXY) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = box
    return x0, y0, x1 - x0, y1 - y0


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"{folder} is a file.", "Name a folder, or a place that is free.") from error
