"""The service that shares a GPU starts before the runs and ends after them. NVIDIA's program is a script here."""

import os
from pathlib import Path

import pytest

from fdcnet.suite.mps import CONTROL, LOG, PIPE, shared_gpu


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that holds the folder, arguments and input of each call."""
    script, file = tmp_path / CONTROL, tmp_path / "said"
    script.write_text(f'#!/bin/sh\necho "$CUDA_MPS_PIPE_DIRECTORY|$*|$(cat)" >> {file}\nexit ${{MPS_CODE:-0}}\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(PIPE, raising=False)
    return file


def test_it_runs_as_long_as_the_runs_do(said: Path) -> None:
    with shared_gpu() as variables:
        folder = variables[PIPE]
        assert variables[LOG] == folder
        assert said.read_text() == f"{folder}|-d|\n"
    assert said.read_text() == f"{folder}|-d|\n{folder}||quit\n"
    assert not Path(folder).exists()


def test_without_it_runs_go_on(said: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPS_CODE", "1")
    with shared_gpu() as variables:
        assert variables == {}
    with shared_gpu(wanted=False) as variables:
        assert variables == {}
    monkeypatch.setenv(PIPE, "somewhere")  # another one runs already
    with shared_gpu() as variables:
        assert variables == {}
    assert said.read_text().count("\n") == 1


def test_a_machine_without_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with shared_gpu() as variables:
        assert variables == {}
