"""The API as a program uses it: the same answers as the library, one lesson at a time, and what is refused."""

import io
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from fdcnet.data.synthetic import make_synthetic
from fdcnet.errors import UserError
from fdcnet.inference.localizer import Localizer
from fdcnet.teaching.learn import learn, rollback, versions
from fdcnet.web import app as web
from fdcnet.web import lesson as lessons
from fdcnet.web.app import make_app

SMALL = ("data.size=40", "data.crop=32", "model.head_width=16", "train.batch_size=4")
HERE = "http://localhost"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all/ has photos of four classes; made/ is a model that has learned three of them, in two lessons."""
    root = tmp_path_factory.mktemp("web")
    dataset = make_synthetic(root / "all", num_classes=4, train_per_class=6, test_per_class=2, size=40)
    for lesson in (dataset.classes[:2], dataset.classes[2:3]):
        train = tuple(record for record in dataset.train if record.label in lesson)
        part = type(dataset)("part", lesson, train)
        first = {} if (root / "made").exists() else {"backbone": "tiny", "overrides": SMALL}
        learn(root / "made", part, full=False, epochs=2, device="cpu", **first)  # type: ignore[arg-type]
    return root


@pytest.fixture
def model(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home / "made", tmp_path / "model"))


@pytest.fixture
def client(model: Path) -> Iterator[TestClient]:
    with TestClient(make_app(model, device="cpu"), HERE) as client:
        yield client


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where uploads go."""
    folder = tmp_path / "uploads"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def photos(home: Path, name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((home / "all/train" / name).iterdir())]


def fourth(home: Path) -> str:
    known = Localizer.load(home / "made").classes
    return next(path.name for path in (home / "all/train").iterdir() if path.is_dir() and path.name not in known)


def form(*parts: tuple[str, list[bytes]]) -> list[tuple[str, Any]]:
    """Fields in turn, as multipart: a name, then its photos."""
    fields: list[tuple[str, Any]] = []
    for name, files in parts:
        fields.append(("class", (None, name)))
        fields += [("photo", ("../../etc/passwd.jpg", content)) for content in files]
    return fields


def finished(client: TestClient) -> dict[str, Any]:
    for _ in range(3600):  # three minutes: the machine may be busy
        lesson: dict[str, Any] = client.get("/api/lesson").json()
        if lesson["state"] != "learning":
            return lesson
        time.sleep(0.05)
    raise AssertionError("the lesson does not end")


def refused(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"problem", "remedy"}
    return str(answer.json()["problem"])


# Looking


def test_the_answer_is_that_of_the_library(client: TestClient, home: Path, model: Path) -> None:
    localizer = Localizer.load(model, "cpu")
    for photo in photos(home, fourth(home))[:2]:
        got = client.post("/api/look", params={"heat": True}, content=photo).json()
        expected = localizer.predict(photo).to_dict(heat=True)
        del expected["source"]
        assert expected.items() <= json.loads(json.dumps(got)).items()
        assert got["how"] == "now" and got["num_classes"] == 3 and got["side"] == 32
    options = {"class_name": localizer.classes[1], "all_regions": True, "threshold": 0.2, "top_k": 2}
    query = {"class": options["class_name"], **{key: options[key] for key in ("all_regions", "threshold", "top_k")}}
    got = client.post("/api/look", params=query, content=photo).json()
    expected = localizer.predict(photo, **options).to_dict()  # type: ignore[call-overload]
    assert (got["boxes"], got["top"], got["class"]) == (expected["boxes"], expected["top"], expected["class"])


def test_an_earlier_task_is_answered_by_the_version_that_was_kept(client: TestClient, home: Path, model: Path) -> None:
    [photo, *_] = photos(home, fourth(home))
    got = client.post("/api/look?after=1", content=photo).json()
    assert got["how"] == "kept" and got["num_classes"] == 2
    assert got["top"] == Localizer.load(versions(model)[0].path, "cpu").predict(photo).to_dict()["top"]
    assert client.post("/api/look?after=2", content=photo).json()["how"] == "now"
    answer = client.post("/api/look?after=99", content=photo)
    assert refused(answer, 404) == "There is no task 99."
    assert answer.json()["remedy"] == "The model has learned 2 tasks."


def test_without_that_version_only_its_classes_may_be_named(client: TestClient, home: Path, model: Path) -> None:
    shutil.rmtree(versions(model)[0].path)
    [photo, *_] = photos(home, fourth(home))
    got = client.post("/api/look?after=1", content=photo).json()
    everything = Localizer.load(model, "cpu").predict(photo, top_k=3).top
    assert got["how"] == "restricted" and {entry["task"] for entry in got["top"]} == {1}
    assert sum(entry["score"] for entry in got["top"]) == pytest.approx(1, abs=1e-3)
    assert got["class"] == next(entry.class_name for entry in everything if entry.task == 1)
    later = next(entry.class_name for entry in everything if entry.task == 2)
    assert "did not know" in refused(client.post("/api/look", params={"after": 1, "class": later}, content=photo), 400)
    assert client.post("/api/look?after=1&min_score=1", content=photo).json()["class"] is None


@pytest.mark.parametrize(
    ("content", "query", "problem"),
    [
        (b"", "", "No photo was sent"),
        (b"no photo at all", "", "not an image"),
        (b"\xff\xd8\xff\xe0broken", "", "cannot be read"),
        (None, "?class=heffalump", "does not know the class"),
        (None, "?threshold=7", "threshold cannot be"),
        (None, "?after=0", "'after' is wrong"),
        (None, "?top_k=many", "'top_k' is wrong"),
    ],
)
def test_a_bad_question(client: TestClient, home: Path, content: bytes | None, query: str, problem: str) -> None:
    photo = photos(home, fourth(home))[0] if content is None else content
    assert problem in refused(client.post(f"/api/look{query}", content=photo), 400)


def test_a_decompression_bomb_is_refused(client: TestClient) -> None:
    buffer = io.BytesIO()
    Image.new("1", (20000, 20000)).save(buffer, "PNG")
    answer = client.post("/api/look", content=buffer.getvalue())
    assert refused(answer, 400) == "photo cannot be read: too large: more than 89,478,485 pixels."
    assert answer.json()["remedy"] == "Make it smaller first."


def test_a_format_that_browsers_do_not_show_comes_back_as_jpeg(client: TestClient, home: Path) -> None:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(photos(home, fourth(home))[0])).save(buffer, "TIFF")
    got = client.post("/api/look?preview=true", content=buffer.getvalue()).json()
    assert got["preview"].startswith("data:image/jpeg;base64,")


def test_limits_are_in_the_megabytes_that_are_written(client: TestClient) -> None:
    limits = client.get("/api/model").json()["limits"]
    assert (limits["photo_bytes"], limits["lesson_bytes"]) == (32_000_000, 2_000_000_000)
    assert refused(client.post("/api/look", content=b"x" * 32_000_001), 413) == "That is more than 32 MB."


def test_what_another_command_changes_is_noticed(client: TestClient, model: Path) -> None:
    assert len(client.get("/api/model").json()["tasks"]) == 2
    rollback(model)
    facts = client.get("/api/model").json()
    assert (facts["version"], len(facts["tasks"])) == (1, 1)


# Teaching


def test_a_lesson_and_the_way_back(client: TestClient, home: Path, model: Path, uploads: Path) -> None:
    name = fourth(home)
    answer = client.post("/api/lesson?epochs=3", files=form((f"  {name} ", [*photos(home, name), b"broken"])))
    assert answer.status_code == 202
    assert answer.json()["left_out"] == [{"name": "../../etc/passwd.jpg", "reason": "not an image"}]
    lesson = finished(client)
    assert lesson["state"] == "done" and lesson["report"]["added"] == [name] and lesson["report"]["can_go_back"]
    assert len(lesson["epochs"]) == 3 and set(lesson["epochs"][0]["losses"]) >= {"cls", "bas"}
    assert list(uploads.iterdir()) == []  # nothing stays
    assert any("epochs" in note for note in lesson["notes"])
    assert [photo["kind"] for photo in lesson["photos"]] == ["learned"] * 4  # too few to hold some out
    assert lesson["photos"][0]["before"]["class"] != name
    picture = client.get("/api/lesson/photos/0")
    assert picture.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(picture.content)).size == (lesson["photos"][0]["width"], lesson["photos"][0]["height"])
    refused(client.get("/api/lesson/photos/99"), 404)

    assert client.get("/api/model").json()["tasks"][-1] == {"task": 3, "classes": [name], "kept": True}
    assert [version["current"] for version in client.get("/api/history").json()] == [False, False, True]
    assert client.post("/api/rollback").json()["version"] == 2
    assert client.post("/api/rollback?to=3").json()["version"] == 3
    assert "no version 9" in refused(client.post("/api/rollback?to=9"), 400)
    assert refused(client.post("/api/rollback?of=2"), 409) == "Version 3 is in use, not version 2."
    assert client.post("/api/rollback?of=3").json()["version"] == 2
    assert refused(client.post("/api/rollback?of=3"), 409) == "Version 2 is in use, not version 3."
    assert client.get("/api/model").json()["version"] == 2
    assert "passwd" not in "".join(file.read_text("utf-8") for file in model.rglob("manifest.jsonl"))


def test_two_who_take_back_the_same_version_take_back_one(
    client: TestClient, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(path: Path, to: int | None) -> None:
        time.sleep(0.2)
        rollback(path, to)

    monkeypatch.setattr(web, "rollback", slowly)
    client.post("/api/lesson?epochs=1", files=form(("other", photos(home, fourth(home)))))
    assert finished(client)["report"]["version"] == 3
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: client.post("/api/rollback?of=3").status_code, range(2)))
    assert sorted(answers) == [200, 409]
    assert client.get("/api/model").json()["version"] == 2


def test_a_held_out_photo_that_comes_again_is_not_said_to_have_taught(client: TestClient, home: Path) -> None:
    first, second, third = (photos(home, name) for name in Localizer.load(home / "made").classes)
    client.post("/api/lesson?epochs=1", files=form(("other", first + second)))
    assert [photo["kind"] for photo in finished(client)["photos"]] == ["new"] * 2 + ["learned"] * 2
    client.post("/api/lesson?epochs=1&more=true", files=form(("other", third + second + first)))
    assert [photo["kind"] for photo in finished(client)["photos"]] == ["new"] * 2 + ["learned"] * 2


def test_a_lesson_without_pictures_is_a_lesson(client: TestClient, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr("fdcnet.web.lesson.compare", fails)
    client.post("/api/lesson?epochs=1", files=form(("other", photos(home, fourth(home)))))
    lesson = finished(client)
    assert (lesson["state"], lesson["photos"], lesson["report"]["added"]) == ("done", [], ["other"])


@pytest.mark.parametrize("name", ["../../outside", "a/b", "..", "日本 'x' \"y\" <b>", "con.jpg"])
def test_a_class_name_is_a_name_and_never_a_path(
    client: TestClient, home: Path, model: Path, uploads: Path, name: str
) -> None:
    around = set(model.parent.rglob("*"))
    assert client.post("/api/lesson?epochs=1", files=form((name, photos(home, fourth(home))))).status_code == 202
    assert finished(client)["report"]["added"] == [name]
    assert {path for path in set(model.parent.rglob("*")) - around if not path.is_relative_to(model)} == set()


def test_known_classes_need_to_be_meant(client: TestClient, home: Path, model: Path) -> None:
    known = Localizer.load(model).classes[0]
    client.post("/api/lesson?epochs=1", files=form((known, photos(home, known))))
    assert "already knows" in finished(client)["problem"]
    client.post("/api/lesson?epochs=1&more=true", files=form((known, photos(home, known))))
    assert "None of the 6 photos is new" in finished(client)["problem"]
    client.post("/api/lesson?epochs=1&more=true", files=form((known, photos(home, fourth(home)))))
    lesson = finished(client)
    assert lesson["report"]["more"] == [known]
    assert any(" 1 epoch," in note for note in lesson["notes"])


def test_a_model_can_be_made_by_the_first_lesson(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"backbone": "tiny", "overrides": SMALL, "full": False}
    monkeypatch.setattr(lessons, "learn", lambda *words, **options: learn(*words, **(options | given)))
    with TestClient(make_app(tmp_path / "new", device="cpu"), HERE) as client:
        assert client.get("/api/model").json()["version"] == 0
        assert client.get("/api/history").json() == []
        [first, second, *_] = Localizer.load(home / "made").classes
        assert "no class yet" in refused(client.post("/api/look", content=photos(home, first)[0]), 409)
        client.post("/api/lesson?epochs=1", files=form((first, photos(home, first))))
        assert "one class" in finished(client)["problem"]
        client.post("/api/lesson?epochs=1", files=form((first, photos(home, first)), (second, photos(home, second))))
        lesson = finished(client)
        assert lesson["state"] == "done" and lesson["photos"][0]["before"] is None
        assert not lesson["report"]["can_go_back"]
        assert client.post("/api/look", content=photos(home, first)[0]).status_code == 200


class Slow:
    """A lesson that waits until it is told to end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        monkeypatch.setattr(lessons, "learn", self)

    def __call__(self, *words: Any, cancel: Any, **options: Any) -> None:
        for _ in range(9000):
            if self.error:
                raise self.error
            if cancel.is_set():
                raise lessons.Cancelled
            time.sleep(0.02)


def test_one_lesson_at_a_time_and_looking_goes_on(
    client: TestClient, home: Path, model: Path, uploads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Slow(monkeypatch)
    files = form((fourth(home), photos(home, fourth(home))))
    assert client.post("/api/lesson", files=files).status_code == 202
    assert client.get("/api/model").json()["learning"] and len(list(uploads.iterdir())) == 1
    assert "learning already" in refused(client.post("/api/lesson", files=files), 409)
    refused(client.post("/api/rollback"), 409)
    assert client.post("/api/look", content=photos(home, fourth(home))[0]).status_code == 200
    assert client.delete("/api/lesson").json()["state"] in ("learning", "cancelled")
    assert finished(client)["state"] == "cancelled"
    assert list(uploads.iterdir()) == [] and len(versions(model)) == 2
    client.delete("/api/lesson")  # once more does no harm


@pytest.mark.parametrize("error", [MemoryError("no room"), OSError("gone"), RuntimeError("broken")])
def test_a_lesson_that_fails_says_so(
    client: TestClient, home: Path, uploads: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    Slow(monkeypatch).error = error
    client.post("/api/lesson", files=form((fourth(home), photos(home, fourth(home)))))
    lesson = finished(client)
    assert lesson["state"] == "failed" and str(error) in lesson["problem"] and lesson["remedy"]
    assert list(uploads.iterdir()) == []


def test_the_server_ends_a_lesson_before_it_ends(
    model: Path, home: Path, uploads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Slow(monkeypatch)
    with TestClient(make_app(model, device="cpu"), HERE) as client:
        client.post("/api/lesson", files=form((fourth(home), photos(home, fourth(home)))))
    assert list(uploads.iterdir()) == []


def test_a_bad_upload(client: TestClient, home: Path, uploads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = photos(home, fourth(home))[0]
    for files, problem in (
        (form(("x", [b"broken", b"too"])), "No photo can be read"),
        (form((" ", [photo])), "has no name"),
        ([("photo", ("a.jpg", photo))], "not expected"),
        ([("class", (None, "x"))], "No photo was sent"),
        ([("class", (None, "x")), ("file", ("a.jpg", photo))], "'file' is not expected"),
    ):
        assert problem in refused(client.post("/api/lesson", files=files), 400)
    monkeypatch.setattr(web, "MAX_PHOTOS", 3)
    assert "Too many files" in refused(client.post("/api/lesson", files=form(("x", [photo] * 4))), 400)
    monkeypatch.setattr("fdcnet.web.uploads.MAX_PHOTO", 10)
    assert "larger than" in refused(client.post("/api/lesson", files=form(("x", [photo]))), 400)
    assert list(uploads.iterdir()) == []


# Report and pages


def test_a_run_shows_its_report(taught: Path) -> None:
    with TestClient(make_app(taught / "run" / "model", device="cpu"), HERE) as client:
        assert client.get("/api/model").json()["report"]
        page = client.get("/run")
        assert page.status_code == 200 and "<svg" in page.text
        [scripts] = [part for part in page.headers["content-security-policy"].split("; ") if "script" in part]
        assert re.fullmatch(r"script-src 'sha256-[^' ]+'", scripts), "only the page's own script may run"
        photo = next((taught / "photos/test").rglob("*.jpg"), None) or next((taught / "photos/test").rglob("*.png"))
        assert client.post("/api/look?after=1", content=photo.read_bytes()).json()["how"] == "restricted"


def test_other_models_have_no_run(client: TestClient) -> None:
    refused(client.get("/run"), 404)


def test_the_page_and_the_description_load_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/").text
    for name in re.findall(r'(?:src|href)="(static/[^"]+)"', page):
        page += client.get(f"/{name}").text
    assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+", page.replace("http://www.w3.org/2000/svg", "")) == []
    described = client.get("/openapi.json").json()
    assert {"/api/look", "/api/lesson", "/api/history", "/api/rollback", "/api/model"} <= set(described["paths"])
    for path in ("/docs", "/redoc", "/static/../app.py", "/static/%2e%2e/app.py", "/api/nothing"):
        refused(client.get(path), 404)
    refused(client.put("/api/look"), 405)


def test_what_is_no_model_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a model")
    with pytest.raises(UserError, match="is not a model"):
        make_app(tmp_path)
