"""`fdcnet serve --workers 2` as a real server: the same answers, new versions everywhere, and workers that die."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from fdcnet.data.records import Dataset
from fdcnet.data.synthetic import make_synthetic
from fdcnet.inference.localizer import Localizer
from fdcnet.teaching.learn import learn
from fdcnet.web.guard import Refused
from fdcnet.web.pool import WorkerPool

SMALL = ("data.size=40", "data.crop=32", "model.head_width=16", "train.batch_size=4")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")


@dataclass
class Server:
    client: httpx.Client
    process: int
    model: Path
    photos: list[bytes]
    third: Dataset

    def predict(self, photo: bytes) -> httpx.Response:
        return self.client.post("api/predict?heat=true", content=photo)

    def workers(self) -> list[int]:
        found = []
        for children in Path(f"/proc/{self.process}/task").glob("*/children"):
            for child in children.read_text().split():
                if b"fdcnet.web.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves a model that knows two classes; `third` has photos of one more."""
    root = tmp_path_factory.mktemp("workers")
    dataset = make_synthetic(root / "photos", num_classes=3, train_per_class=6, test_per_class=2, size=40)
    first, third = (
        Dataset("part", names, tuple(record for record in dataset.train if record.label in names))
        for names in (dataset.classes[:2], dataset.classes[2:])
    )
    learn(root / "model", first, full=False, epochs=2, device="cpu", backbone="tiny", overrides=SMALL)
    command = [sys.executable, "-m", "fdcnet", "serve", str(root / "model")]
    command += ["--port", "0", "--no-token", "--device", "cpu", "--workers", "2"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        photos = [record.path.read_bytes() for record in dataset.test]
        with httpx.Client(base_url=link, timeout=300) as client:
            server = Server(client, process.pid, root / "model", photos, third)
            yield server
        workers = server.workers()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert len(workers) == 2 and not any(Path(f"/proc/{worker}").exists() for worker in workers)


def without_source(prediction: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in prediction.items() if key != "source"}


def test_the_answers_are_those_of_one_process(server: Server) -> None:
    localizer = Localizer.load(server.model, "cpu")
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(server.predict, server.photos))
    for photo, answer in zip(server.photos, answers, strict=True):
        assert without_source(localizer.predict(photo).to_dict(heat=True)).items() <= answer.json().items()
    assert len(server.workers()) == 2
    problem = server.client.post("api/predict", content=b"not a photo")
    assert problem.status_code == 400 and "cannot be read" in problem.json()["problem"]
    assert server.client.post("api/predict?after=9", content=server.photos[0]).status_code == 404


def test_a_new_version_reaches_all_workers(server: Server) -> None:
    learn(server.model, server.third, full=False, epochs=1, device="cpu")
    # Workers take turns, so two requests after each other reach both.
    assert [server.predict(server.photos[0]).json()["num_classes"] for _ in range(2)] == [3, 3]
    assert server.client.get("api/model").json()["version"] == 2


def test_a_killed_worker_loses_no_request(server: Server) -> None:
    expected = server.predict(server.photos[0]).json()
    before = server.workers()
    with ThreadPoolExecutor(4) as clients:
        answers = [clients.submit(server.predict, server.photos[0]) for _ in range(8)]
        for worker in before:
            os.kill(worker, signal.SIGKILL)
        assert [answer.result().json() for answer in answers] == [expected] * 8
    for _ in before:  # workers take turns: one that died idle is replaced when it is asked
        assert server.predict(server.photos[0]).json() == expected
    after = server.workers()
    assert len(after) == 2 and not set(before) & set(after)


def test_a_request_that_ends_its_worker_twice_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    pool = WorkerPool(1, "cpu")
    for _ in range(2):  # the worker is free again
        with pytest.raises(Refused, match="has stopped") as error:
            pool.predict(tmp_path, b"photo")
        assert error.value.status == 503
    pool.close()
    with pytest.raises(Refused, match="The server is stopping"):
        pool.predict(tmp_path, b"photo")
