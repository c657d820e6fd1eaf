"""What a script shows while it runs: bars in a terminal, nothing in a pipe or when they are turned off."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from fdcnet.config import Config
from fdcnet.data.records import Dataset
from fdcnet.runtime.listener import Listener
from fdcnet.runtime.progress import OFF, Bars, default_listener
from fdcnet.training.run import train


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


def test_a_run_caches_decoded_photos_by_default(
    tmp_path: Path, small_dataset: Dataset, small_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDCNET_CACHE", str(tmp_path / "cache"))
    train(small_config("finetune", "train.step_epochs=1"), small_dataset, tmp_path / "run")
    assert any((tmp_path / "cache").iterdir())
