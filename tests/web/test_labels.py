"""The API of the Label tab: boxes for uploaded photos, corrections, and archives that other tools can load."""

import csv
import io
import json
import shutil
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from starlette.testclient import TestClient

from fdcnet.data.records import Dataset
from fdcnet.data.synthetic import make_synthetic
from fdcnet.inference.localizer import Localizer
from fdcnet.store.bundle import load_bundle
from fdcnet.store.versions import versions
from fdcnet.teaching.label import label
from fdcnet.teaching.label_boxes import box_photos
from fdcnet.teaching.label_photos import KnownPhoto
from fdcnet.teaching.learn import learn
from fdcnet.web import box_lesson, labels
from fdcnet.web.app import make_app
from fdcnet.web.labels import safe_name

HERE = "http://localhost"


@pytest.fixture
def client(taught: Path, temporary: Path) -> Iterator[TestClient]:
    with TestClient(make_app(taught / "run" / "model", device="cpu"), HERE) as client:
        yield client
    assert list(temporary.iterdir()) == []


@pytest.fixture
def photos(taught: Path) -> dict[str, list[Path]]:
    """Two photos of two classes."""
    folders = sorted(path for path in (taught / "photos" / "train").iterdir() if path.is_dir())
    return {folder.name: sorted(folder.iterdir())[:2] for folder in folders[:2]}


def form(photos: dict[str, list[Path]]) -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = []
    for name, files in photos.items():
        fields.append(("class", (None, name)))
        fields += [("photo", (file.name, file.read_bytes())) for file in files]
    return fields


def upload(client: TestClient, photos: dict[str, list[Path]]) -> dict[str, Any]:
    answer = client.post("/api/labels", files=form(photos))
    assert answer.status_code == 202, answer.text
    return boxed(client)


def boxed(client: TestClient) -> dict[str, Any]:
    for _ in range(3600):  # three minutes: the machine may be busy
        found: dict[str, Any] = client.get("/api/labels").json()
        if found["state"] not in ("boxing", "learning"):
            return found
        time.sleep(0.05)
    raise AssertionError("the boxing does not end")


def put(client: TestClient, number: int, box: Any) -> Any:
    return client.put(f"/api/labels/photos/{number}", json={"box": box})


def refused(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"problem", "remedy"}
    return str(answer.json()["problem"])


def exported(client: TestClient, form: str) -> zipfile.ZipFile:
    answer = client.get(f"/api/labels/export/{form}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == f'attachment; filename="labels-{form}.zip"'
    return zipfile.ZipFile(io.BytesIO(answer.content))


def test_the_boxes_are_those_of_the_command(
    client: TestClient, photos: dict[str, list[Path]], taught: Path, tmp_path: Path
) -> None:
    for name, files in photos.items():
        (tmp_path / "set" / name).mkdir(parents=True)
        for file in files:
            shutil.copy(file, tmp_path / "set" / name)
    report = label(tmp_path / "set", tmp_path / "out", model=taught / "run" / "model", device="cpu")
    expected = {photo.name: photo for photo in report.photos}
    found = upload(client, photos)
    assert found["classes"] == list(photos) and found["num_photos"] == found["num_boxed"] == 4
    scores = [photo["confidence"] for photo in found["photos"]]
    assert scores == sorted(scores)  # least certain first
    for number, photo in enumerate(found["photos"]):
        same = expected[photo["name"]]
        assert photo["class"] == same.annotations[0].class_name and photo["number"] == number
        assert photo["box"] == photo["found"] == pytest.approx(same.annotations[0].box_xyxy)
        assert photo["confidence"] == pytest.approx(same.confidence, abs=1e-4) and not photo["reviewed"]
        picture = Image.open(io.BytesIO(client.get(f"/api/labels/photos/{number}").content))
        assert picture.size == (photo["width"], photo["height"])


def test_accept_correct_and_reject(client: TestClient, photos: dict[str, list[Path]]) -> None:
    first, second, third, fourth = upload(client, photos)["photos"]
    accepted = put(client, 0, first["found"]).json()
    assert accepted["reviewed"] and accepted["box"] == first["found"]
    corrected = put(client, 1, [4, 5, 24, 35]).json()
    assert corrected["reviewed"] and corrected["box"] == [4, 5, 24, 35] and corrected["found"] == second["found"]
    assert put(client, 2, None).json()["box"] is None

    with exported(client, "coco") as archive:
        content = json.loads(archive.read("coco/labels.json"))
        names = [image["file_name"] for image in content["images"]]
        assert sorted(names) == sorted(photo["name"] for photo in (first, second, fourth))
        boxes = {names[each["image_id"] - 1]: each for each in content["annotations"]}
        assert boxes[second["name"]]["bbox"] == [4, 5, 20, 30] and boxes[second["name"]]["segmentation"] == []
        assert boxes[first["name"]]["segmentation"] != []  # accepted: the mask is still right
        own = photos[first["class"]][[path.name for path in photos[first["class"]]].index(Path(first["name"]).name)]
        assert archive.read(f"coco/data/{first['name']}") == own.read_bytes()
    assert put(client, 2, third["found"]).json()["box"] == third["found"]  # after all
    assert [photo["reviewed"] for photo in client.get("/api/labels").json()["photos"]] == [True] * 3 + [False]


def test_every_format_is_complete(client: TestClient, photos: dict[str, list[Path]], tmp_path: Path) -> None:
    found = upload(client, photos)["photos"]
    names = {photo["name"] for photo in found}
    stems = {name.rpartition(".")[0] for name in names}
    for form, folder, suffix in (
        ("yolo", "labels", "txt"),
        ("yolo-seg", "labels", "txt"),
        ("voc", "Annotations", "xml"),
    ):
        with exported(client, form) as archive:
            assert {f"{form}/{folder}/{stem}.{suffix}" for stem in stems} <= set(archive.namelist())
            images = "JPEGImages" if form == "voc" else "images"
            assert {f"{form}/{images}/{name}" for name in names} <= set(archive.namelist())
    with exported(client, "yolo") as archive:
        assert yaml.safe_load(archive.read("yolo/data.yaml"))["names"] == dict(enumerate(photos))
    with exported(client, "labelstudio") as archive:
        assert len(json.loads(archive.read("labelstudio.json"))) == 4 and "labelstudio.xml" in archive.namelist()
    with exported(client, "csv") as archive:
        rows = list(csv.DictReader(io.TextIOWrapper(archive.open("boxes.csv"))))
        assert {row["path"] for row in rows} == {f"photos/{name}" for name in names} < set(archive.namelist())
    refused(client.get("/api/labels/export/other"), 400)


def test_wrong_requests_change_nothing(client: TestClient, photos: dict[str, list[Path]], temporary: Path) -> None:
    assert client.get("/api/labels").json()["state"] == "none"
    assert "no boxes to check" in refused(client.get("/api/labels/export/yolo"), 409)
    assert "no boxes to check" in refused(put(client, 0, None), 409)
    unknown = {"heron": next(iter(photos.values()))}
    assert refused(client.post("/api/labels", files=form(unknown)), 400) == "The model does not know the class 'heron'."
    assert "No photo was sent" in refused(client.post("/api/labels", files=[("class", (None, "x"))]), 400)
    assert list(temporary.glob("*/upload-*")) == []

    before = upload(client, photos)
    assert "photos to check already" in refused(client.post("/api/labels", files=form(photos)), 409)
    assert "beyond the photo" in refused(put(client, 0, [0, 0, 10_000, 10]), 400)
    assert "is empty" in refused(put(client, 0, [5, 5, 5, 9]), 400)
    refused(put(client, 0, [1, 2, 3]), 400)
    refused(put(client, 4, None), 404)
    refused(client.get("/api/labels/photos/-1"), 404)
    assert client.get("/api/labels").json() == before
    for number in range(4):
        put(client, number, None)
    assert "no photo to export" in refused(client.get("/api/labels/export/yolo"), 409)


def test_discarded_photos_are_deleted(
    client: TestClient, photos: dict[str, list[Path]], temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(client, photos)
    exported(client, "yolo")
    assert len(list(temporary.glob("*/upload-*"))) == 1 and list(temporary.glob("*/export-*")) == []
    assert client.delete("/api/labels").json()["state"] == "none"
    assert list(temporary.glob("*/upload-*")) == []

    def slow(localizer: Localizer, *rest: Any) -> Iterator[Any]:  # cancelled after the first photo
        for photo in box_photos(localizer, *rest):
            yield photo
            while client.get("/api/labels").json()["state"] == "boxing":
                time.sleep(0.01)

    monkeypatch.setattr(labels, "box_photos", slow)
    client.post("/api/labels", files=form(photos))
    assert client.delete("/api/labels").json()["state"] == "none"
    for _ in range(600):
        if not list(temporary.glob("*/upload-*")):
            break
        time.sleep(0.05)
    assert list(temporary.glob("*/upload-*")) == []


def test_an_unexpected_failure_does_not_look_like_boxing_for_ever(
    client: TestClient, photos: dict[str, list[Path]], temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.setattr(labels, "box_photos", broken)
    found = upload(client, photos)
    assert found["state"] == "failed" and "a bug" in found["problem"] and found["remedy"]
    client.delete("/api/labels")
    assert list(temporary.glob("*/upload-*")) == []


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Path]:
    """Photos of two classes, and a model that learned them."""
    root = tmp_path_factory.mktemp("learned")
    photos = make_synthetic(root / "photos", num_classes=2, train_per_class=6, test_per_class=0, size=64)
    small = ("data.size=64", "data.crop=56", "model.head_width=16", "train.batch_size=4")
    learn(root / "model", photos, full=False, backbone="tiny", epochs=1, overrides=small, device="cpu")
    return photos, root / "model"


@pytest.fixture
def learner(
    learned: tuple[Dataset, Path], tmp_path: Path, temporary: Path
) -> Iterator[tuple[TestClient, dict[str, list[Path]], Path]]:
    """A server, three photos of each class, and its model."""
    dataset, model = learned[0], Path(shutil.copytree(learned[1], tmp_path / "model"))
    files = {name: [r.path for r in dataset.train if r.label == name][:3] for name in dataset.classes}
    with TestClient(make_app(model, device="cpu"), HERE) as client:
        yield client, files, model
    assert list(temporary.iterdir()) == []


def test_checked_boxes_train_the_model_when_asked(learner: tuple[TestClient, dict[str, list[Path]], Path]) -> None:
    client, photos, model = learner
    before = load_bundle(model).network.state_dict()
    upload(client, photos)
    assert refused(client.post("/api/labels/learn"), 409) == "There are no checked boxes to learn from."
    for number in (0, 1):
        put(client, number, [4, 4, 24, 24])
    put(client, 2, None)
    assert len(versions(model)) == 1  # corrections alone train nothing

    assert client.post("/api/labels/learn").json()["state"] == "learning"
    found = boxed(client)
    assert found["learned"] == {"version": 2, "num_boxes": 2, "num_redrawn": 3}
    photos_now = {photo["number"]: photo for photo in found["photos"]}
    assert [photos_now[number]["box"] for number in (0, 1, 2)] == [[4, 4, 24, 24], [4, 4, 24, 24], None]
    scores = [photo["confidence"] for photo in found["photos"]]
    assert scores == sorted(scores)  # least certain first, again
    localizer = Localizer.load(model, "cpu")
    names = {f"{name}/{path.name}": (name, path) for name in photos for path in photos[name]}
    unchecked = [(photos_now[number]["name"], *names[photos_now[number]["name"]]) for number in (3, 4, 5)]
    wanted = [KnownPhoto(path, name, (label,)) for name, label, path in unchecked]
    for number, boxed_again in zip((3, 4, 5), box_photos(localizer, wanted, lambda *_: None), strict=True):
        assert photos_now[number]["box"] == pytest.approx(boxed_again.annotations[0].box_xyxy)

    after = load_bundle(model).network.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"localizer.weight", "localizer.bias"}
    assert client.get("/api/history").json()[-1]["box_training"] == "boxes learned from 2 checked boxes"
    assert client.get("/api/history").json()[-1]["added"] == []
    assert client.post("/api/rollback?of=2").json()["version"] == 1


def test_learning_from_boxes_can_be_cancelled_and_excludes_lessons(
    learner: tuple[TestClient, dict[str, list[Path]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, photos, model = learner
    before = upload(client, photos)["photos"]
    put(client, 0, before[0]["found"])
    started = threading.Event()

    def slow(*arguments: Any) -> None:
        listener = arguments[5]
        for step in range(9000):
            listener.progress("learning from boxes", step, 9000)
            started.set()
            time.sleep(0.02)

    monkeypatch.setattr(box_lesson, "learn_from_boxes", slow)
    client.post("/api/labels/learn")
    assert started.wait(60)
    assert "already running" in refused(client.post("/api/lesson", files=form(photos)), 409)
    assert "already running" in refused(client.post("/api/lesson/refine"), 409)
    assert "no boxes to check" in refused(client.post("/api/labels/learn"), 409)
    client.delete("/api/labels/learn")
    found = boxed(client)
    assert found["state"] == "ready" and found["learned"] is None and len(found["photos"]) == len(before)
    assert found["photos"][0]["reviewed"] and len(versions(model)) == 1
    assert client.post("/api/rollback").status_code == 400  # nothing is reserved any more: there is no earlier version


def test_a_model_with_drift_modules_cannot_learn_from_boxes(client: TestClient, photos: dict[str, list[Path]]) -> None:
    found = upload(client, photos)["photos"]
    put(client, 0, found[0]["found"])
    client.post("/api/labels/learn")
    after = boxed(client)
    assert after["state"] == "ready" and "drift modules" in after["problem"] and after["learned"] is None


def test_photos_keep_their_names_and_their_folder(client: TestClient, photos: dict[str, list[Path]]) -> None:
    [name, *_] = photos
    content = photos[name][0].read_bytes()
    files = [
        "heron 1.jpg",
        "heron 1.png",
        "../../../etc/passwd.jpg",
        "C:\\\\Windows\\\\con.jpg",
        "nul",
        "日本.jpg",
        "...",
        "a/b.jpg",
    ]
    fields: list[tuple[str, Any]] = [("class", (None, name))]
    client.post("/api/labels", files=fields + [("photo", (file, content)) for file in files])
    found = {photo["name"].removeprefix(f"{name}/") for photo in boxed(client)["photos"]}
    assert len(found) == len(files) and {"heron 1.jpg", "heron 1-2.png", "日本.jpg", "passwd.jpg", "b.jpg"} <= found
    for file in found:
        assert file == safe_name(file) and not set(file) & set('/\\:*?"<>|')


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a/b", "a_b"),
        ("..", "_"),
        ("", "_"),
        (".hidden", "hidden"),
        ("con.jpg", "_con.jpg"),
        ("NUL", "_NUL"),
        ("console.jpg", "console.jpg"),
        ("005.Crested_Auklet", "005.Crested_Auklet"),
        ("x" * 200 + ".jpeg", "x" * 80 + ".jpeg"),
        ("tab\tnewline\n", "tab_newline_"),
    ],
)
def test_safe_names(text: str, name: str) -> None:
    assert safe_name(text) == name
