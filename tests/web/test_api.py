"""The API as a program uses it: the same answers as the library, one lesson at a time, and what is refused."""

import io
import json
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
from fdcnet.web import runner as runners
from fdcnet.web.app import make_app
from fdcnet.web.model import ServedModels
from fdcnet.web.progress import Progress

SMALL = ("data.size=40", "data.crop=32", "model.head_width=16", "train.batch_size=4")
HERE = "http://localhost"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all/ has photos of four classes; made/ is a model that has learned three of them, in two runners."""
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
def client(model: Path, temporary: Path) -> Iterator[TestClient]:
    with TestClient(make_app(model, device="cpu"), HERE) as client:
        yield client
    assert list(temporary.iterdir()) == []


def uploads(temporary: Path) -> list[Path]:
    return list(temporary.glob("fdcnet-serve-*/upload-*"))


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
        got = client.post("/api/predict", params={"heat": True}, content=photo).json()
        expected = localizer.predict(photo).to_dict(heat=True)
        del expected["source"]
        assert expected.items() <= json.loads(json.dumps(got)).items()
        assert got["answered_by"] == "current" and got["num_classes"] == 3 and got["side"] == 32
    options = {"class_name": localizer.classes[1], "all_regions": True, "threshold": 0.2, "top_k": 2}
    query = {"class": options["class_name"], **{key: options[key] for key in ("all_regions", "threshold", "top_k")}}
    got = client.post("/api/predict", params=query, content=photo).json()
    expected = localizer.predict(photo, **options).to_dict()  # type: ignore[call-overload]
    assert (got["boxes"], got["top"], got["class"]) == (expected["boxes"], expected["top"], expected["class"])


def test_an_earlier_task_is_answered_by_the_version_that_was_kept(client: TestClient, home: Path, model: Path) -> None:
    [photo, *_] = photos(home, fourth(home))
    got = client.post("/api/predict?after=1", content=photo).json()
    assert got["answered_by"] == "kept" and got["num_classes"] == 2
    assert got["top"] == Localizer.load(versions(model)[0].path, "cpu").predict(photo).to_dict()["top"]
    assert client.post("/api/predict?after=2", content=photo).json()["answered_by"] == "current"
    answer = client.post("/api/predict?after=99", content=photo)
    assert refused(answer, 404) == "There is no task 99."
    assert answer.json()["remedy"] == "The model has learned 2 tasks."


def test_without_that_version_only_its_classes_may_be_named(client: TestClient, home: Path, model: Path) -> None:
    shutil.rmtree(versions(model)[0].path)
    [photo, *_] = photos(home, fourth(home))
    got = client.post("/api/predict?after=1", content=photo).json()
    everything = Localizer.load(model, "cpu").predict(photo, top_k=3).top
    assert got["answered_by"] == "restricted" and {entry["task"] for entry in got["top"]} == {1}
    assert sum(entry["score"] for entry in got["top"]) == pytest.approx(1, abs=1e-3)
    assert got["class"] == next(entry.class_name for entry in everything if entry.task == 1)
    later = next(entry.class_name for entry in everything if entry.task == 2)
    assert "did not know" in refused(
        client.post("/api/predict", params={"after": 1, "class": later}, content=photo), 400
    )
    assert client.post("/api/predict?after=1&min_score=1", content=photo).json()["class"] is None


@pytest.mark.parametrize(
    ("content", "query", "problem"),
    [
        (b"", "", "No photo was sent"),
        (b"no photo at all", "", "not an image"),
        (b"\xff\xd8\xff\xe0broken", "", "cannot be read"),
        (None, "?class=heffalump", "does not know the class"),
        (None, "?threshold=7", "threshold must be from 0 to 1"),
        (None, "?after=0", "Parameter 'after' is wrong"),
        (None, "?top_k=many", "Parameter 'top_k' is wrong"),
    ],
)
def test_a_bad_question(client: TestClient, home: Path, content: bytes | None, query: str, problem: str) -> None:
    photo = photos(home, fourth(home))[0] if content is None else content
    assert problem in refused(client.post(f"/api/predict{query}", content=photo), 400)


def test_a_decompression_bomb_is_refused(client: TestClient) -> None:
    buffer = io.BytesIO()
    Image.new("1", (20000, 20000)).save(buffer, "PNG")
    answer = client.post("/api/predict", content=buffer.getvalue())
    assert refused(answer, 400) == "photo cannot be read: too large: more than 89,478,485 pixels."
    assert answer.json()["remedy"] == "Reduce its size."


def test_a_format_that_browsers_cannot_show_comes_back_as_jpeg(client: TestClient, home: Path) -> None:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(photos(home, fourth(home))[0])).save(buffer, "TIFF")
    preview = client.post("/api/preview", content=buffer.getvalue())
    assert preview.headers["content-type"] == "image/jpeg"
    picture = Image.open(io.BytesIO(preview.content))
    assert (picture.format, picture.size) == ("JPEG", (40, 40))
    assert "not an image" in refused(client.post("/api/preview", content=b"no photo"), 400)


def test_limits_are_in_the_megabytes_that_are_written(client: TestClient) -> None:
    limits = client.get("/api/model").json()["limits"]
    assert (limits["photo_bytes"], limits["lesson_bytes"]) == (32_000_000, 2_000_000_000)
    assert refused(client.post("/api/predict", content=b"x" * 32_000_001), 413) == "The upload exceeds 32 MB."


def test_what_another_command_changes_is_noticed(client: TestClient, model: Path) -> None:
    assert len(client.get("/api/model").json()["tasks"]) == 2
    rollback(model)
    facts = client.get("/api/model").json()
    assert (facts["version"], len(facts["tasks"])) == (1, 1)


# Teaching


def test_a_lesson_and_the_way_back(client: TestClient, home: Path, model: Path, temporary: Path) -> None:
    name = fourth(home)
    answer = client.post("/api/lesson?epochs=3", files=form((f"  {name} ", [*photos(home, name), b"broken"])))
    assert answer.status_code == 202
    assert answer.json()["skipped"] == [{"name": "../../etc/passwd.jpg", "reason": "not an image"}]
    lesson = finished(client)
    assert lesson["state"] == "done" and lesson["report"]["added"] == [name] and lesson["report"]["can_roll_back"]
    assert len(lesson["epochs"]) == 3 and set(lesson["epochs"][0]["losses"]) == {"separation"}
    assert lesson["loss_names"] == {"separation": "Object separation (lower is better)"}  # as in the report
    assert uploads(temporary) == []  # nothing stays
    assert any("epochs" in note for note in lesson["messages"])
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


def test_a_refinement_is_a_version_of_its_own(
    client: TestClient, home: Path, model: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/api/model").json()["can_refine"]
    photo = photos(home, fourth(home))[0]
    before = client.post("/api/predict", content=photo).json()
    monkeypatch.setattr(runners, "refine", partial(runners.refine, epochs=1))
    answer = client.post("/api/lesson/refine")
    assert answer.status_code == 202 and answer.json()["is_refinement"]
    lesson = finished(client)
    assert lesson["state"] == "done" and lesson["report"]["version"] == 3 and lesson["report"]["can_roll_back"]
    assert len(lesson["epochs"]) == 1 and uploads(temporary) == []
    assert client.get("/api/history").json()[-1]["box_training"] == "boxes refined"
    after = client.post("/api/predict", content=photo).json()
    assert (after["class"], after["score"]) == (before["class"], pytest.approx(before["score"], abs=1e-3))
    assert client.post("/api/rollback?of=3").json()["version"] == 2


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

    monkeypatch.setattr("fdcnet.web.runner.compare", fails)
    client.post("/api/lesson?epochs=1", files=form(("other", photos(home, fourth(home)))))
    lesson = finished(client)
    assert (lesson["state"], lesson["photos"], lesson["report"]["added"]) == ("done", [], ["other"])


@pytest.mark.parametrize("name", ["../../outside", "a/b", "..", "日本 'x' \"y\" <b>", "con.jpg"])
def test_a_class_name_is_a_name_and_never_a_path(
    client: TestClient, home: Path, model: Path, temporary: Path, name: str
) -> None:
    around = set(model.parent.rglob("*"))
    assert client.post("/api/lesson?epochs=1", files=form((name, photos(home, fourth(home))))).status_code == 202
    assert finished(client)["report"]["added"] == [name]
    assert {path for path in set(model.parent.rglob("*")) - around if not path.is_relative_to(model)} == set()


def test_a_class_with_one_photo_is_refused_at_once(client: TestClient, home: Path, temporary: Path) -> None:
    own = photos(home, fourth(home))
    answer = client.post("/api/lesson", files=form(("other", own), ("alone", own[:1])))
    assert refused(answer, 400) == "Class 'alone' has one training photo."
    assert client.get("/api/lesson").json()["state"] == "none" and uploads(temporary) == []


def test_known_classes_need_to_be_meant(client: TestClient, home: Path, model: Path) -> None:
    known = Localizer.load(model).classes[0]
    client.post("/api/lesson?epochs=1", files=form((known, photos(home, known))))
    assert "already knows" in finished(client)["problem"]
    client.post("/api/lesson?epochs=1&more=true", files=form((known, photos(home, known))))
    assert "None of the 6 photos is new" in finished(client)["problem"]
    client.post("/api/lesson?epochs=1&more=true", files=form((known, photos(home, fourth(home)))))
    lesson = finished(client)
    assert lesson["report"]["more"] == [known]
    assert any(" 1 epoch," in note for note in lesson["messages"])


def test_a_model_can_be_made_by_the_first_lesson(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"backbone": "tiny", "overrides": SMALL, "full": False}
    monkeypatch.setattr(runners, "learn", lambda *words, **options: learn(*words, **(options | given)))
    with TestClient(make_app(tmp_path / "new", device="cpu"), HERE) as client:
        assert client.get("/api/model").json()["version"] == 0
        assert client.get("/api/history").json() == []
        [first, second, *_] = Localizer.load(home / "made").classes
        assert "no classes yet" in refused(client.post("/api/predict", content=photos(home, first)[0]), 409)
        client.post("/api/lesson?epochs=1", files=form((first, photos(home, first))))
        assert "one class" in finished(client)["problem"]
        client.post("/api/lesson?epochs=1", files=form((first, photos(home, first)), (second, photos(home, second))))
        lesson = finished(client)
        assert lesson["state"] == "done" and lesson["photos"][0]["before"] is None
        assert not lesson["report"]["can_roll_back"]
        assert client.post("/api/predict", content=photos(home, first)[0]).status_code == 200


class Slow:
    """A lesson that waits until it is told to end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        monkeypatch.setattr(runners, "learn", self)

    def __call__(self, *words: Any, cancel: Any, **options: Any) -> None:
        for _ in range(9000):
            if self.error:
                raise self.error
            if cancel.is_set():
                raise runners.Cancelled
            time.sleep(0.02)


def test_one_lesson_at_a_time_and_looking_goes_on(
    client: TestClient, home: Path, model: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Slow(monkeypatch)
    files = form((fourth(home), photos(home, fourth(home))))
    assert client.post("/api/lesson", files=files).status_code == 202
    assert client.get("/api/model").json()["learning"] and len(uploads(temporary)) == 1
    assert "already running" in refused(client.post("/api/lesson", files=files), 409)
    refused(client.post("/api/rollback"), 409)
    assert client.post("/api/predict", content=photos(home, fourth(home))[0]).status_code == 200
    assert client.delete("/api/lesson").json()["state"] in ("learning", "cancelled")
    assert finished(client)["state"] == "cancelled"
    assert uploads(temporary) == [] and len(versions(model)) == 2
    client.delete("/api/lesson")  # once more does no harm


@pytest.mark.parametrize("error", [MemoryError("no room"), OSError("gone"), RuntimeError("broken")])
def test_a_lesson_that_fails_says_so(
    client: TestClient, home: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    Slow(monkeypatch).error = error
    client.post("/api/lesson", files=form((fourth(home), photos(home, fourth(home)))))
    lesson = finished(client)
    assert lesson["state"] == "failed" and str(error) in lesson["problem"] and lesson["remedy"]
    assert uploads(temporary) == []


def test_an_unexpected_failure_is_logged(
    client: TestClient, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Slow(monkeypatch).error = KeyError("a bug")
    client.post("/api/lesson", files=form((fourth(home), photos(home, fourth(home)))))
    lesson = finished(client)
    assert lesson["state"] == "failed" and lesson["remedy"] == "See the server's terminal."
    assert "a bug" in caplog.text


def test_a_reservation_that_comes_too_late_is_refused(model: Path, temporary: Path) -> None:
    class JustReleased:
        """Held when it was asked for, free a moment later."""

        def acquire(self, blocking: bool) -> bool:
            return False

        def locked(self) -> bool:
            return False

    runner = runners.LessonRunner(ServedModels(model, "cpu"))
    held, runner._reserved = runner._reserved, JustReleased()  # type: ignore[assignment]
    with pytest.raises(runners.Refused, match="already running"), runner.reserved():
        pass
    runner._reserved = held
    with runner.reserved():
        assert held.locked()
    assert not held.locked()
    runner.close()


def test_the_server_ends_a_lesson_before_it_ends(
    model: Path, home: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Slow(monkeypatch)
    with TestClient(make_app(model, device="cpu"), HERE) as client:
        client.post("/api/lesson", files=form((fourth(home), photos(home, fourth(home)))))
        assert len(uploads(temporary)) == 1
    assert list(temporary.iterdir()) == []


def test_a_bad_upload(client: TestClient, home: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = photos(home, fourth(home))[0]
    for files, problem in (
        (form(("x", [b"broken", b"too"])), "No readable photos"),
        (form((" ", [photo])), "has no name"),
        ([("photo", ("a.jpg", photo))], "Unexpected form field 'photo'"),
        ([("class", (None, "x"))], "No photo was sent"),
        ([("class", (None, "x")), ("file", ("a.jpg", photo))], "Unexpected form field 'file'"),
    ):
        assert problem in refused(client.post("/api/lesson", files=files), 400)
    boundary = {"content-type": "multipart/form-data; boundary=x"}
    cut = b'--x\r\nContent-Disposition: form-data; name="class"\r\n\r\nheron\r\n'
    assert "incomplete" in refused(client.post("/api/lesson", content=cut, headers=boundary), 400)
    assert "cannot be read" in refused(client.post("/api/lesson", content=b"no form", headers=boundary), 400)
    assert "not a form" in refused(client.post("/api/lesson", content=b"{}"), 400)
    monkeypatch.setattr("fdcnet.web.uploads.MAX_PHOTOS", 3)
    assert "More than 3 photos" in refused(client.post("/api/lesson", files=form(("x", [photo] * 4))), 400)
    monkeypatch.setattr("fdcnet.web.uploads.MAX_PHOTO", 10)
    assert "larger than" in refused(client.post("/api/lesson", files=form(("x", [photo]))), 400)
    assert uploads(temporary) == []


def test_progress_of_a_lesson_never_goes_back(client: TestClient, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    update = Progress._advance

    def recorded(self: Progress) -> None:
        update(self)
        seen.append(self.fraction)

    monkeypatch.setattr(Progress, "_advance", recorded)
    client.post("/api/lesson?epochs=2", files=form(("other", photos(home, fourth(home)))))
    assert finished(client)["progress"] == 1
    assert len(seen) > 5 and seen == sorted(seen) and 0.5 < seen[-1] < 1


def test_the_classes_have_counts_thumbnails_and_a_history(client: TestClient, home: Path) -> None:
    first, second, _ = (photos(home, name) for name in Localizer.load(home / "made").classes)
    client.post("/api/lesson?epochs=1", files=form(("other", first + second)))  # twelve: two are held out
    finished(client)
    *_, known, new = client.get("/api/classes").json()
    assert (new["name"], new["task"], new["num_learned"], new["num_held_out"]) == ("other", 3, 10, 2)
    assert known["num_learned"] == 6 and known["history"] == []  # six photos: none was held out
    [lesson] = new["history"]
    assert lesson["version"] == 3 and lesson["before"] is None and lesson["after"] in (0, 50, 100)
    assert new["num_thumbnails"] == 4
    picture = client.get("/api/classes/3/photos/0")
    assert Image.open(io.BytesIO(picture.content)).size == (112, 112)
    refused(client.get("/api/classes/4/photos/0"), 404)
    refused(client.get("/api/classes/0/photos/4"), 404)
    client.post("/api/lesson?epochs=1", files=form(("third", first)))
    finished(client)
    *_, known, _ = client.get("/api/classes").json()
    assert [lesson["version"] for lesson in known["history"]] == [3, 4]
    assert known["history"][1]["before"] == known["history"][0]["after"]


def test_the_example_lasts_until_the_first_lesson(
    tmp_path: Path, home: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small: dict[str, Any] = {"backbone": "tiny", "overrides": SMALL, "full": False, "epochs": 1}
    monkeypatch.setattr(runners, "SETTINGS", small)
    monkeypatch.setattr(runners, "learn", lambda *words, **options: learn(*words, **(options | small)))
    [first, second, *_] = Localizer.load(home / "made").classes
    with TestClient(make_app(tmp_path / "new", device="cpu"), HERE) as client:
        assert client.post("/api/lesson/example").status_code == 202
        lesson = finished(client)
        assert lesson["state"] == "done" and lesson["num_examples"] == 12
        assert lesson["report"]["new_after"]["gt_known"] is not None  # its true boxes are known
        facts = client.get("/api/model").json()
        assert (facts["is_example"], facts["name"], facts["version"]) == (True, "example", 1)
        assert not (tmp_path / "new").exists()
        unseen = client.get("/api/example/photos/11").content
        assert client.post("/api/predict", content=unseen).json()["num_classes"] == 3
        refused(client.get("/api/example/photos/12"), 404)
        client.post("/api/lesson", files=form((first, photos(home, first)), (second, photos(home, second))))
        assert finished(client)["report"]["added"] == [first, second]
        facts = client.get("/api/model").json()
        assert (facts["is_example"], facts["name"]) == (False, "new")
        assert "already has classes" in refused(client.post("/api/lesson/example"), 409)
    assert list(temporary.iterdir()) == []


def test_a_lesson_lost_with_its_server_is_reported_once(model: Path, temporary: Path) -> None:
    dead, other = temporary / "fdcnet-serve-dead", temporary / "fdcnet-serve-other"
    for folder, path in ((dead, model), (other, model.with_name("another"))):
        (folder / "upload-1").mkdir(parents=True)
        (folder / "upload-1" / "photo").write_bytes(b"photo")
        (folder / "lock").touch()
        (folder / "lesson.json").write_text(json.dumps({"model": str(path.resolve()), "classes": ["heron", "wren"]}))
    with TestClient(make_app(model, device="cpu"), HERE) as client:
        lesson = client.get("/api/lesson").json()
        assert (lesson["state"], lesson["problem"]) == ("lost", "The server stopped during a lesson on heron, wren.")
        assert not dead.exists() and not other.exists()
        with TestClient(make_app(model, device="cpu"), HERE) as second:  # the first one is running: it stays
            assert second.get("/api/lesson").json()["state"] == "none"
            assert len(list(temporary.iterdir())) == 2


# Report and pages


def test_a_run_shows_its_report(taught: Path) -> None:
    with TestClient(make_app(taught / "run" / "model", device="cpu"), HERE) as client:
        assert client.get("/api/model").json()["report"]
        page = client.get("/run")
        assert page.status_code == 200 and "<svg" in page.text
        [scripts] = [part for part in page.headers["content-security-policy"].split("; ") if "script" in part]
        assert re.fullmatch(r"script-src 'sha256-[^' ]+'", scripts), "only the page's own script may run"
        photo = next((taught / "photos/test").rglob("*.jpg"), None) or next((taught / "photos/test").rglob("*.png"))
        assert client.post("/api/predict?after=1", content=photo.read_bytes()).json()["answered_by"] == "restricted"


def test_other_models_have_no_run(client: TestClient) -> None:
    refused(client.get("/run"), 404)


def test_the_page_and_the_description_load_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/").text
    linked = set(re.findall(r'(?:src|href)="static/([^"]+)"', page))
    modules = {file.name for file in web.STATIC.glob("*.js")}
    sources = {name: client.get(f"/static/{name}").text for name in linked | modules}
    imported = {name for text in sources.values() for name in re.findall(r'from "\./([^"]+)"', text)}
    assert imported | (linked & modules) == modules  # every module is used, and every import exists
    page += "".join(sources.values())
    assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+", page.replace("http://www.w3.org/2000/svg", "")) == []
    described = client.get("/openapi.json").json()
    assert {"/api/predict", "/api/lesson", "/api/history", "/api/rollback", "/api/model"} <= set(described["paths"])
    for path, methods in described["paths"].items():
        if "/photos/" in path and "labels" not in path:
            assert "404" in methods["get"]["responses"], path  # found by Schemathesis
    shown = client.get("/docs").text
    assert "http" not in shown.replace("http-equiv", "") and "<script" not in shown
    for path, methods in described["paths"].items():
        assert all(f"{method.upper()} {path}" in shown for method in methods)
        for described_route in methods.values():
            assert described_route["description"] and "`" not in described_route["description"], path
            options = [one for one in described_route.get("parameters", ()) if one["in"] == "query"]
            assert all(option.get("description") for option in options), path
    for path in ("/redoc", "/static/../app.py", "/static/%2e%2e/app.py", "/api/nothing"):
        refused(client.get(path), 404)
    refused(client.put("/api/predict"), 405)


def test_openapi_says_how_to_send_the_token(model: Path) -> None:
    with TestClient(make_app(model, device="cpu", token="secret"), HERE) as client:
        refused(client.get("/openapi.json"), 401)
        refused(client.get("/docs"), 401)
        described = client.get("/openapi.json", auth=("", "secret")).json()
    schemes = described["components"]["securitySchemes"]
    assert {name: scheme["scheme"] for name, scheme in schemes.items()} == {"bearer": "bearer", "basic": "basic"}
    assert described["security"] == [{"bearer": []}, {"basic": []}]


def test_photos_can_be_sent_as_a_form(client: TestClient, home: Path) -> None:
    own = photos(home, fourth(home))
    expected = [client.post("/api/predict?top_k=2", content=photo).json() for photo in own[:2]]
    one = client.post("/api/predict?top_k=2", files={"photo": ("a.jpg", own[0])})
    assert one.json() == expected[0]
    files = [("photo", ("a.jpg", own[0])), ("photo", ("bad.jpg", b"broken")), ("photo", ("b.jpg", own[1]))]
    several = client.post("/api/predict/batch?top_k=2", files=files).json()
    assert [entry["name"] for entry in several] == ["a.jpg", "bad.jpg", "b.jpg"]
    assert [entry["prediction"] for entry in several] == [expected[0], None, expected[1]]
    assert "cannot be read" in several[1]["problem"] and several[0]["problem"] is None
    assert refused(client.post("/api/predict", files={"file": ("a.jpg", own[0])}), 400) == "No photo was sent."
    too_many = [("photo", ("a.jpg", b"x"))] * 101
    assert "Too many files" in refused(client.post("/api/predict/batch", files=too_many), 400)


def test_what_is_no_model_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a model")
    with pytest.raises(UserError, match="is not a model"):
        make_app(tmp_path)
