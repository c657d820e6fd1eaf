"""What a script shows while it runs: bars in a terminal, nothing in a pipe or when they are turned off."""

import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import fdcnet
from fdcnet.config import Config
from fdcnet.data.records import Dataset, Task
from fdcnet.data.synthetic import make_synthetic
from fdcnet.runtime.listener import Listener
from fdcnet.runtime.progress import OFF, Bars, Lines, default_listener
from fdcnet.training.run import train

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def test_bars_are_for_terminals_and_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", OFF):
        monkeypatch.delenv(name, raising=False)
    assert type(default_listener()) is Listener
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich's way to ask for a terminal's output
    assert isinstance(default_listener(), Bars)
    monkeypatch.setenv(OFF, "0")
    assert type(default_listener()) is Listener


def test_a_run_shows_tasks_phases_and_results(
    tmp_path: Path, small_dataset: Dataset, small_config: Callable[..., Config]
) -> None:
    screen = io.StringIO()
    bars = Bars(Console(file=screen, force_terminal=True, width=100))
    train(small_config("finetune"), small_dataset, tmp_path / "run", listener=bars)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    for text in ("Task 1 of 2: 2 classes, 12 photos", "learning (main)", "After task 2 (4 classes):"):
        assert text in shown


def test_scores_that_were_not_measured_are_left_out() -> None:
    screen = io.StringIO()
    task = Task(2, ("wren",), 3, (), ())
    lines = Lines(Console(file=screen, width=100))
    lines.task_ended(task, {"top1_cls": 75.0, "gt_known": None, "top1_loc": None})
    assert screen.getvalue() == "After task 2 (4 classes): class right 75.0 %\n"


def test_a_run_caches_decoded_photos_by_default(
    tmp_path: Path, small_dataset: Dataset, small_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDCNET_CACHE", str(tmp_path / "cache"))
    train(small_config("finetune", "train.step_epochs=1"), small_dataset, tmp_path / "run")
    assert any((tmp_path / "cache").iterdir())


def test_folders_may_be_given_as_text_or_as_paths(
    tmp_path: Path, small_dataset: Dataset, small_config: Callable[..., Config]
) -> None:
    config, run, photos = small_config("finetune", "train.step_epochs=1"), tmp_path / "run", tmp_path / "photos"
    first = small_config("finetune", "data.tasks=1")
    fdcnet.train(first, small_dataset, str(tmp_path / "first"))
    fdcnet.train(config, small_dataset, run, base_model=str(tmp_path / "first" / "model"))
    by_text, _ = fdcnet.evaluate(str(run / "model"), str(photos), device="cpu")
    by_path, _ = fdcnet.evaluate(run / "model", photos, device="cpu")
    assert by_text == by_path


def test_a_lesson_shows_bars_and_caches_photos_unless_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("FDCNET_CACHE", str(tmp_path / "cache"))
    make_synthetic(tmp_path / "photos", num_classes=2, train_per_class=4, test_per_class=1, size=40)
    settings = ("data.size=40", "data.crop=32", "model.head_width=16")
    tiny = {"backbone": "tiny", "weights": "none", "epochs": 1, "device": "cpu", "overrides": settings}

    fdcnet.learn(tmp_path / "quiet", tmp_path / "photos", cache=False, progress=False, **tiny)
    assert not (tmp_path / "cache").exists() and not capsys.readouterr().out
    fdcnet.label(tmp_path / "photos" / "train", tmp_path / "unseen", model=tmp_path / "quiet", progress=False)
    assert not capsys.readouterr().out

    fdcnet.learn(tmp_path / "shown", tmp_path / "photos", **tiny)
    assert any((tmp_path / "cache").iterdir()) and "opening photos" in capsys.readouterr().out
    fdcnet.label(tmp_path / "photos" / "train", tmp_path / "boxes", model=tmp_path / "shown")
    assert "boxing" in capsys.readouterr().out


class Interrupted(Bars):
    """Somebody presses Ctrl-C while a bar is shown."""

    def progress(self, what: str, done: int, total: int) -> None:
        super().progress(what, done, total + 1)
        raise KeyboardInterrupt


def test_the_cursor_comes_back_however_it_ends(taught: Path, tmp_path: Path) -> None:
    """A bar hides it, and rich does not bring it back when the program ends."""
    model, photos = taught / "run" / "model", tmp_path / "photos"
    shutil.copytree(taught / "photos" / "test", photos)
    (photos / "ringed disc" / "zzz.jpg").write_bytes(b"not a photo")  # the bar ends before it is full
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    report = fdcnet.label(photos, tmp_path / "boxes", model=model, device="cpu", listener=Bars(console))
    assert len(report.skipped) == 1
    assert screen.getvalue().count(SHOW_CURSOR) == screen.getvalue().count(HIDE_CURSOR) == 1
    with pytest.raises(KeyboardInterrupt):
        fdcnet.evaluate(model, str(photos), device="cpu", listener=Interrupted(console))
    assert screen.getvalue().count(SHOW_CURSOR) == screen.getvalue().count(HIDE_CURSOR) == 2
