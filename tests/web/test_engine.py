"""A served model with ONNX Runtime: PyTorch answers first, and nobody waits for the export."""

import logging
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from fdcnet.data.cache import KEPT
from fdcnet.errors import UserError
from fdcnet.inference import onnx_graph
from fdcnet.inference.engine import OnnxPart
from fdcnet.inference.localizer import Localizer
from fdcnet.web.app import make_app
from fdcnet.web.engine import LOCK
from fdcnet.web.model import ServedModel
from fdcnet.web.pool import WorkerPool


@pytest.fixture
def model(taught: Path) -> Path:
    return taught / "run" / "model"


@pytest.fixture
def photo(taught: Path) -> bytes:
    return sorted((taught / "photos" / "test").rglob("*.jpg"))[0].read_bytes()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("FDCNET_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def wait_until(is_done: Callable[[], bool]) -> None:
    for _ in range(1800):  # three minutes: the machine may be busy
        if is_done():
            return
        time.sleep(0.1)
    raise TimeoutError


def num_exported(localizer: Localizer) -> int:
    return sum(isinstance(part, OnnxPart) for part in localizer.state.network.modules())


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    close = pytest.approx([entry["score"] for entry in first["top"]], abs=2e-4)
    rest = {"score": None, "top": None}
    return [entry["score"] for entry in second["top"]] == close and first | rest == second | rest


def test_pytorch_answers_until_the_export_is_ready(model: Path, photo: bytes, cache: Path) -> None:
    served = ServedModel(model, "cpu", "onnx")
    with FileLock(cache / LOCK):  # the export has to wait
        first = served.predict(photo, None, False)
        assert num_exported(served.localizer()) == 0
    wait_until(lambda: num_exported(served.localizer()) == 5)
    assert same(served.predict(photo, None, False), first)
    again = ServedModel(model, "cpu", "onnx")  # the server is started again
    wait_until(lambda: num_exported(again.localizer()) == 5)


def test_pytorch_goes_on_if_the_export_fails(
    model: Path, photo: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    served = ServedModel(model, "cpu", "onnx")
    with caplog.at_level(logging.ERROR):
        first = served.predict(photo, None, False)
        wait_until(lambda: "PyTorch computes the predictions" in caplog.text)
    assert num_exported(served.localizer()) == 0
    assert same(served.predict(photo, None, False), first)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the workers in /proc")
def test_all_workers_use_one_export(model: Path, photo: bytes, cache: Path) -> None:
    pool = WorkerPool(2, "cpu", "onnx")
    try:
        answers = [pool.predict(model, photo, after=None, heat=False) for _ in range(2)]  # workers take turns
        maps = [Path(f"/proc/{worker.pid}/maps") for worker in pool._running]
        wait_until(lambda: all("onnxruntime" in text.read_text() for text in maps))
        assert len(list(cache.glob(f"*{KEPT}"))) == 5
        answers += [pool.predict(model, photo, after=None, heat=False) for _ in range(2)]
        assert all(same(answer, answers[0]) for answer in answers)
    finally:
        pool.close()


def test_a_missing_package_is_named_at_the_start(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_graph.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"fdcnet\[onnx\]"):
        make_app(model, device="cpu", engine="onnx")
