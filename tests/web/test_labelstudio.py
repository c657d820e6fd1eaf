"""The Label Studio backend, with requests as Label Studio sends them and a real server for its photos."""

import base64
import http.server
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fdcnet.data.synthetic import make_synthetic
from fdcnet.inference.localizer import Localizer
from fdcnet.teaching.label_boxes import box_photos
from fdcnet.teaching.label_photos import KnownPhoto
from fdcnet.teaching.learn import learn
from fdcnet.web.app import make_app
from fdcnet.web.guard import Refused
from fdcnet.web.runner import LessonRunner

SMALL = ("data.size=40", "data.crop=32", "model.head_width=16", "train.batch_size=4")
KEY = "0123456789abcdef0123456789abcdef01234567"
SCHEMA = """<View>
  <!-- A comment -->
  <Image name="img" value="$photo"/>
  <RectangleLabels name="box" toName="img">{labels}</RectangleLabels>
  <Choices name="kind" toName="img">{choices}</Choices>
</View>"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ has three classes; model/ has learned the first two."""
    root = tmp_path_factory.mktemp("labelstudio")
    dataset = make_synthetic(root / "photos", num_classes=3, train_per_class=6, test_per_class=2, size=40)
    train = tuple(record for record in dataset.train if record.label in dataset.classes[:2])
    part = type(dataset)("part", dataset.classes[:2], train)
    learn(root / "model", part, full=False, epochs=2, device="cpu", backbone="tiny", overrides=SMALL)
    return root


@pytest.fixture
def model(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home / "model", tmp_path / "model"))


@pytest.fixture
def client(model: Path) -> Iterator[TestClient]:
    with TestClient(make_app(model, device="cpu"), "http://localhost") as client:
        yield client


@pytest.fixture
def label_studio(home: Path) -> Iterator[str]:
    """Serves the photos to whoever has the key, as Label Studio does."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(home / "photos"))

        def do_GET(self) -> None:
            if self.headers.get("Authorization") == f"Token {KEY}":
                super().do_GET()
            else:
                self.send_error(401)

        def log_message(self, *arguments: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def schema(*classes: str) -> str:
    labels, choices = ("".join(f'<{tag} value="{name}"/>' for name in classes) for tag in ("Label", "Choice"))
    return SCHEMA.format(labels=labels, choices=choices)


def setup(client: TestClient, label_studio: str, *classes: str) -> Any:
    body = {"project": "1.1700000000", "schema": schema(*classes), "hostname": label_studio, "access_token": KEY}
    return client.post("/setup", json=body)


def address(home: Path, name: str, number: int) -> str:
    photo = sorted((home / "photos" / "train" / name).iterdir())[number]
    return f"/{photo.relative_to(home / 'photos')}"


def predict(client: TestClient, photo: str, *classes: str) -> Any:
    task = {"id": 7, "data": {"photo": photo}, "annotations": [], "predictions": []}
    body = {"tasks": [task], "project": "1.1700000000", "label_config": schema(*classes), "params": {"context": None}}
    return client.post("/predict", json=body)


def test_health_and_setup(client: TestClient, label_studio: str) -> None:
    assert client.get("/health").json()["status"] == "UP"
    assert setup(client, label_studio, "ringed disc").json() == {"model_version": "fdcnet-1"}


def test_tasks_get_rectangles_and_choices(client: TestClient, label_studio: str, home: Path, model: Path) -> None:
    classes = Localizer.load(model, "cpu").classes
    setup(client, label_studio, *classes)
    photo = address(home, classes[0], 0)
    [result] = predict(client, photo, *classes).json()["results"]
    localizer, path = Localizer.load(model, "cpu"), home / "photos" / photo[1:]
    predicted = localizer.predict(path).class_name
    assert predicted is not None
    [boxed] = box_photos(localizer, [KnownPhoto(path, path.name, (predicted,))], lambda *_: None)
    rectangle, choice = result["result"]
    assert (rectangle["from_name"], rectangle["to_name"], rectangle["type"]) == ("box", "img", "rectanglelabels")
    assert rectangle["value"]["rectanglelabels"] == choice["value"]["choices"] == [predicted]
    assert (choice["from_name"], choice["to_name"], choice["type"]) == ("kind", "img", "choices")
    value = rectangle["value"]
    box = [value["x"], value["y"], value["x"] + value["width"], value["y"] + value["height"]]
    assert box == pytest.approx([v * 100 / 40 for v in boxed.annotations[0].box_xyxy])
    assert result["score"] == rectangle["score"] == pytest.approx(boxed.confidence, abs=1e-4)
    assert result["model_version"] == "fdcnet-1"
    inline = "data:image/jpeg;base64," + base64.b64encode((home / "photos" / photo[1:]).read_bytes()).decode()
    [same] = predict(client, inline, *classes).json()["results"]
    assert same["result"][0]["value"] == value


def test_without_rectangles_the_score_is_that_of_the_class(client: TestClient, home: Path, model: Path) -> None:
    classes = Localizer.load(model, "cpu").classes
    path = home / "photos" / address(home, classes[0], 0)[1:]
    inline = "data:image/jpeg;base64," + base64.b64encode(path.read_bytes()).decode()
    config = re.sub("<RectangleLabels.*</RectangleLabels>", "", schema(*classes))
    body = {"tasks": [{"id": 7, "data": {"photo": inline}}], "label_config": config}
    [result] = client.post("/predict", json=body).json()["results"]
    [choice] = result["result"]
    expected = Localizer.load(model, "cpu").predict(path)
    assert choice["value"]["choices"] == [expected.class_name]
    assert result["score"] == choice["score"] == pytest.approx(expected.score, abs=1e-4)


def test_only_classes_of_the_project_are_suggested(
    client: TestClient, label_studio: str, home: Path, model: Path
) -> None:
    classes = Localizer.load(model, "cpu").classes
    setup(client, label_studio, *classes)
    photo = address(home, classes[0], 0)
    [result] = predict(client, photo, classes[1], "unknown").json()["results"]
    assert result["result"][0]["value"]["rectanglelabels"] == [classes[1]]
    [nothing] = predict(client, photo, "unknown").json()["results"]
    assert nothing["result"] == []


@pytest.mark.parametrize(
    ("photo", "message"),
    [
        ("https://example.org/photo.jpg", "is not on the Label Studio server"),
        ("file:///etc/passwd", "is not on the Label Studio server"),
        ("/train/missing.jpg", "cannot be read: HTTP Error 404"),
        ("data:image/png;base64,%%%", "damaged data URI"),
        ("data:image/png;base64,é", "damaged data URI"),
    ],
)
def test_photos_come_from_label_studio_only(photo: str, message: str, client: TestClient, label_studio: str) -> None:
    setup(client, label_studio, "ringed disc")
    answer = predict(client, photo, "ringed disc")
    assert answer.status_code in (400, 502)
    assert message in answer.json()["problem"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("<View>", "cannot be read"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><View>&b;</View>', "document types are not allowed"),
        ("<View/>", "no Image tag"),
        ('<View><Image name="img" value="$photo"/></View>', "no RectangleLabels or Choices"),
    ],
)
def test_configurations_that_cannot_be_used(config: str, message: str, client: TestClient) -> None:
    answer = client.post("/setup", json={"project": "1", "schema": config})
    assert answer.status_code == 400
    assert message in answer.json()["problem"]


def annotate(client: TestClient, task: int, photo: str, name: str) -> Any:
    region = {"from_name": "box", "to_name": "img", "type": "rectanglelabels"}
    region |= {"value": {"x": 10, "y": 10, "width": 50, "height": 50, "rotation": 0, "rectanglelabels": [name]}}
    body = {
        "action": "ANNOTATION_CREATED",
        "annotation": {"id": task, "result": [region], "was_cancelled": False},
        "project": {"id": 1, "title": "birds"},
        "task": {"id": task, "data": {"caption": "seen at the pond", "photo": photo}},
    }
    return client.post("/webhook", json=body).json()


def test_annotations_become_a_lesson(client: TestClient, label_studio: str, home: Path, model: Path) -> None:
    known = Localizer.load(model, "cpu").classes
    new = next(path.name for path in (home / "photos/train").iterdir() if path.is_dir() and path.name not in known)
    setup(client, label_studio, *known, new)
    for number in range(3):
        assert annotate(client, number, address(home, new, number), new)["collected"] == number + 1
    assert (
        client.post("/webhook", json={"action": "START_TRAINING", "project": {"id": 1}}).json()["status"] == "waiting"
    )
    for number in range(3, 6):
        annotate(client, number, address(home, new, number), new)
    started = client.post("/webhook", json={"action": "START_TRAINING", "project": {"id": 1}}).json()
    assert started == {"status": "learning", "photos": 6, "classes": [new]}
    deadline = time.monotonic() + 120
    while (lesson := client.get("/api/lesson").json())["state"] == "learning" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert lesson["state"] == "done", lesson
    assert Localizer.load(model, "cpu").classes == [*known, new]
    assert setup(client, label_studio, new).json() == {"model_version": "fdcnet-2"}


def test_a_refused_lesson_keeps_its_annotations(
    client: TestClient, label_studio: str, home: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Localizer.load(model, "cpu").classes
    setup(client, label_studio, *known)
    for number in range(4):
        annotate(client, number, address(home, known[0], number), known[0])
    asked = {"action": "START_TRAINING", "project": {"id": 1}}

    def uploading(runner: LessonRunner) -> Any:
        raise Refused(409, "A lesson is already running.", "Wait until it is done, or cancel it.")

    with monkeypatch.context() as patched:
        patched.setattr(LessonRunner, "reserved", uploading)
        assert client.post("/webhook", json=asked).status_code == 409
    assert client.post("/webhook", json=asked).json() == {"status": "learning", "photos": 4, "classes": [known[0]]}
    client.delete("/api/lesson")
