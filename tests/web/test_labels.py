"""The API of the Label tab: boxes for uploaded photos, corrections, and archives that other tools can load."""

import csv
import io
import json
import shutil
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image
from starlette.testclient import TestClient

from fdcnet.inference.localizer import Localizer
from fdcnet.teaching.label import label
from fdcnet.teaching.label_boxes import box_photos
from fdcnet.web import labels
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
    for _ in range(1200):
        found: dict[str, Any] = client.get("/api/labels").json()
        if found["state"] != "boxing":
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
