"""Label Studio's machine learning backend: boxes for its tasks, and lessons from its annotations."""

import base64
import http.client
import json
import os
import threading
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from fastapi import Body, FastAPI

from fdcnet.data.photo import as_photo
from fdcnet.data.records import Record
from fdcnet.inference.localizer import Localizer
from fdcnet.inference.writers.labelstudio import as_prediction
from fdcnet.teaching.holdout import FEWEST_PHOTOS
from fdcnet.teaching.label_boxes import box_photo
from fdcnet.teaching.label_shapes import photo_address
from fdcnet.web.guard import Refused
from fdcnet.web.model import ServedModels
from fdcnet.web.runner import LessonRunner
from fdcnet.web.uploads import MAX_PHOTO, Upload, clean_name

URL_VARIABLE, KEY_VARIABLE = "LABEL_STUDIO_URL", "LABEL_STUDIO_API_KEY"  # the names that its own tools use
BATCH_SIZE = 20  # new annotations that start a lesson
TIMEOUT = 30.0  # seconds for one photo
Json = dict[str, Any]


@dataclass(frozen=True)
class Interface:
    """The parts of a labeling configuration that can be filled in."""

    image: str  # name of the Image tag
    key: str  # where a task holds the address of its photo
    rectangles: str | None  # name of the RectangleLabels tag
    choices: str | None  # name of the Choices tag
    classes: tuple[str, ...]


@dataclass
class Connection:
    """The Label Studio server that uses this backend. Photos are fetched from it and from nowhere else."""

    url: str = field(default_factory=lambda: os.environ.get(URL_VARIABLE, ""))
    key: str = field(default_factory=lambda: os.environ.get(KEY_VARIABLE, ""))
    photo_fields: dict[str, str] = field(default_factory=dict)  # project -> where its tasks hold their photos

    def fetch(self, address: str) -> bytes:
        if address.startswith("data:"):
            return _decode_data_uri(address)
        full = urljoin(self.url, quote(address, safe="%/:?=&#@+,;~"))  # file names may contain spaces
        if not self.url or urlsplit(full)[:2] != urlsplit(self.url)[:2]:
            problem = f"{address[:200]} is not on the Label Studio server '{self.url}'."
            raise Refused(400, problem, f"Set {URL_VARIABLE} and {KEY_VARIABLE}, then start 'fdcnet serve' again.")
        headers = {"Authorization": self._authorization()} if self.key else {}
        content = _open(urllib.request.Request(full, headers=headers))
        if len(content) > MAX_PHOTO:
            raise Refused(400, f"{address[:200]} exceeds {MAX_PHOTO // 10**6} MB.", "Use smaller photos.")
        return content

    def _authorization(self) -> str:
        """Older API keys are sent as they are. Newer ones (JSON Web Tokens) are exchanged for a short-lived token."""
        if self.key.count(".") != 2:
            return f"Token {self.key}"
        body = json.dumps({"refresh": self.key}).encode()
        request = urllib.request.Request(
            urljoin(self.url, "/api/token/refresh/"), body, {"Content-Type": "application/json"}
        )
        return f"Bearer {json.loads(_open(request))['access']}"


@dataclass
class Annotations:
    """Annotated tasks that no lesson has used yet: task -> class and address of the photo."""

    tasks: dict[int, tuple[str, str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take_lesson(self, known: list[str]) -> dict[int, tuple[str, str]]:
        """Remove and return the tasks whose classes have enough photos to learn from."""
        with self.lock:
            names = [name for name, _ in self.tasks.values()]
            enough = {name for name in names if name in known or names.count(name) >= FEWEST_PHOTOS}
            taken = {task: entry for task, entry in self.tasks.items() if entry[0] in enough}
            if not known and len(enough) < 2:
                return {}
            self.tasks = {task: entry for task, entry in self.tasks.items() if task not in taken}
            return taken

    def put_back(self, tasks: dict[int, tuple[str, str]]) -> None:
        with self.lock:
            self.tasks = tasks | self.tasks


def add_labelstudio_routes(app: FastAPI, models: ServedModels, runner: LessonRunner) -> None:
    connection, annotations = Connection(), Annotations()

    @app.get("/health")
    def health() -> Json:
        """Label Studio asks whether the server is running."""
        return {"status": "UP", "model_class": "fdcnet"}

    @app.post("/setup")
    def setup(request: Json = Body()) -> Json:
        """Label Studio calls this first, with its address, its key and the labeling configuration."""
        interface = read_interface(str(request.get("schema", "")))
        connection.photo_fields[_project(request)] = interface.key
        connection.url = os.environ.get(URL_VARIABLE) or str(request.get("hostname") or connection.url)
        connection.key = os.environ.get(KEY_VARIABLE) or str(request.get("access_token") or connection.key)
        return {"model_version": _version(models)}

    @app.post("/predict")
    def predict(request: Json = Body()) -> Json:
        """Predictions for tasks of Label Studio, in its format."""
        interface = read_interface(str(request.get("label_config", "")))
        localizer = models.own.localizer()
        tasks = request.get("tasks")
        if not isinstance(tasks, list):
            raise Refused(400, "The request has no tasks.", "Send what Label Studio sends.")
        results = [_annotate(localizer, interface, connection.fetch(_address(task, interface))) for task in tasks]
        return {"results": [result | {"model_version": _version(models)} for result in results]}

    @app.post("/webhook")
    def webhook(request: Json = Body()) -> Json:
        """Collects annotations. A lesson starts after a batch of them, or when the user starts training."""
        action, asked = request.get("action"), request.get("action") == "START_TRAINING"
        if action in ("ANNOTATION_CREATED", "ANNOTATION_UPDATED"):
            _collect(annotations, request, connection.photo_fields.get(_project(request), "image"))
        if runner.busy or not (asked or len(annotations.tasks) >= BATCH_SIZE):
            return {"status": "waiting", "collected": len(annotations.tasks), "learning": runner.busy}
        known = models.own.localizer().classes if models.own.exists else []
        with runner.reserved():  # before annotations are taken: it may refuse
            taken = annotations.take_lesson(known)
            if not taken:
                return {"status": "waiting", "collected": len(annotations.tasks), "learning": False}
            upload = Upload(runner.workspace.new_folder("upload"))
            try:
                _fill(upload, taken, connection)
                runner.start(upload, more=True, epochs=None)
            except BaseException:
                annotations.put_back(taken)
                upload.delete()
                raise
        return {"status": "learning", "photos": len(taken), "classes": upload.classes}


def read_interface(schema: str) -> Interface:
    """Read the project's XML configuration."""
    try:
        if "<!DOCTYPE" in schema.upper():  # its entities could be huge
            raise ET.ParseError("document types are not allowed")
        root = ET.fromstring(schema)
    except ET.ParseError as error:
        raise Refused(400, f"The labeling configuration cannot be read: {error}.", "Send it as XML.") from error
    image = root.find(".//Image")
    if image is None:
        raise Refused(400, "The labeling configuration has no Image tag.", "See docs/label.md for one that works.")
    name = image.get("name", "image")
    rectangles, choices = (
        next((element for element in root.iter(tag) if element.get("toName") == name), None)
        for tag in ("RectangleLabels", "Choices")
    )
    if rectangles is None and choices is None:
        problem = "The labeling configuration has no RectangleLabels or Choices for the image."
        raise Refused(400, problem, "See docs/label.md for one that works.")
    values = [element.get("value", "") for part in (rectangles, choices) if part is not None for element in part]
    key = image.get("value", "$image").removeprefix("$")
    return Interface(
        name,
        key,
        None if rectangles is None else rectangles.get("name"),
        None if choices is None else choices.get("name"),
        tuple(dict.fromkeys(values)),
    )


def _annotate(localizer: Localizer, interface: Interface, photo: bytes) -> Json:
    """The best class that both the model and the configuration know, boxed as `fdcnet label` does."""
    top = localizer.predict(photo, top_k=len(localizer.classes)).top
    best = next((entry for entry in top if entry.class_name in interface.classes), None)
    if best is None:
        return {"score": 0.0, "result": []}
    found: Json = {"score": round(best.score, 4), "result": []}
    if interface.rectangles is not None:
        boxed = box_photo(localizer, as_photo(photo), best.class_name)
        found = as_prediction(boxed, interface.rectangles, interface.image)
    if interface.choices is not None:
        value = {"choices": [best.class_name]}
        names = {"from_name": interface.choices, "to_name": interface.image, "type": "choices"}
        found["result"].append(names | {"id": "class", "score": round(best.score, 4), "value": value})
    return found


def _project(request: Mapping[str, Any]) -> str:
    """The number of the project: /setup gets it with a time, as "1.1700000000", and webhooks get its facts."""
    project = request.get("project")
    return str(project.get("id") if isinstance(project, Mapping) else project).partition(".")[0]


def _collect(annotations: Annotations, request: Mapping[str, Any], photo_field: str) -> None:
    task, annotation = request.get("task") or {}, request.get("annotation") or {}
    names = [name for region in annotation.get("result", ()) for name in _class_names(region)]
    address = photo_address(task.get("data", {}), photo_field)
    if names and address and not annotation.get("was_cancelled"):
        with annotations.lock:
            annotations.tasks[int(task["id"])] = (clean_name(names[0]), address)


def _class_names(region: Mapping[str, Any]) -> list[str]:
    value = region.get("value", {})
    return [str(name) for name in value.get("choices") or value.get("rectanglelabels") or ()]


def _fill(upload: Upload, tasks: Mapping[int, tuple[str, str]], connection: Connection) -> None:
    for task, (name, address) in tasks.items():
        path = upload.folder / f"{upload.folder.name}-{task}"
        path.write_bytes(connection.fetch(address))
        upload.records.append(Record(path, name))
        if name not in upload.classes:
            upload.classes.append(name)


def _address(task: Mapping[str, Any], interface: Interface) -> str:
    address = task.get("data", {}).get(interface.key)
    if not isinstance(address, str):
        problem = f"Task {task.get('id')} has no photo under '{interface.key}'."
        raise Refused(400, problem, "Check the value of the Image tag in the labeling configuration.")
    return address


def _version(models: ServedModels) -> str:
    return f"fdcnet-{models.own.version if models.own.exists else 0}"


def _decode_data_uri(address: str) -> bytes:
    try:
        return base64.b64decode(address.partition("base64,")[2], validate=True)
    except ValueError as error:  # also of letters that are not ASCII
        raise Refused(400, "A task holds a damaged data URI.", "Import the photo again.") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The key must not be sent to another server."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


def _open(request: urllib.request.Request) -> bytes:
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT) as answer:
            content: bytes = answer.read(MAX_PHOTO + 1)
            return content
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        problem = f"{request.full_url[:200]} cannot be read: {error}."
        raise Refused(502, problem, f"Check the server, and the key in {KEY_VARIABLE}.") from error
