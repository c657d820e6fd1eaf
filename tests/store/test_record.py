"""The run record: what it refuses, what survives a kill, and what it says about source and machine."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fdcnet.errors import UserError
from fdcnet.store.record import (
    RunRecord,
    commit,
    environment,
    file_stem,
    plain,
    read_json,
    truncate_metrics,
    write_json,
)

FACTS = {"command": ["fdcnet", "train"], "seed": 3}


def test_create_writes_the_facts_and_open_finds_them(tmp_path: Path) -> None:
    RunRecord.create(tmp_path / "a" / "run", FACTS)
    facts = RunRecord.open(tmp_path / "a" / "run").run()
    assert facts["schema"] == 1
    assert facts["command"] == ["fdcnet", "train"]
    assert facts["seed"] == 3
    assert facts["finished"] is None
    assert facts["started"].endswith("+00:00")


def test_finish_keeps_the_facts_and_adds_time(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path / "run", FACTS)
    record.write_run(memory_images=20)
    record.finish(12.345)
    facts = record.run()
    assert (facts["seed"], facts["memory_images"], facts["seconds"]) == (3, 20, 12.3)
    assert facts["finished"] is not None


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(UserError, match="not empty and is not a run") as error:
        RunRecord.create(tmp_path, FACTS)
    assert error.value.remedy == "Choose an empty or a new folder."
    assert not (tmp_path / "run.json").exists()


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        RunRecord.create(tmp_path / "run", FACTS)


@pytest.mark.parametrize(
    ("finished", "problem", "remedy"),
    [(True, "is already complete", "fdcnet report"), (False, "holds an unfinished run", "--resume")],
)
def test_an_existing_run_is_never_overwritten(tmp_path: Path, finished: bool, problem: str, remedy: str) -> None:
    record = RunRecord.create(tmp_path / "run", FACTS)
    if finished:
        record.finish(1.0)
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(UserError, match=problem) as error:
        RunRecord.create(tmp_path / "run", {"seed": 9})
    assert remedy in error.value.remedy
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_resume_keeps_the_first_start_and_notes_the_second(tmp_path: Path) -> None:
    first = RunRecord.create(tmp_path / "run", {**FACTS, "device": "CPU"}).run()
    again = RunRecord.create(tmp_path / "run", {"seed": 9, "device": "GPU"}, resume=True).run()
    assert (again["seed"], again["device"], again["started"]) == (3, "CPU", first["started"])
    assert [note["device"] for note in again["resumed"]] == ["GPU"]


def test_resume_without_a_run_starts_one(tmp_path: Path) -> None:
    assert RunRecord.create(tmp_path / "run", FACTS, resume=True).run()["seed"] == 3


def test_open_refuses_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        RunRecord.open(tmp_path)
    (tmp_path / "run.json").write_text('{"schema": 2}')
    with pytest.raises(UserError, match="schema 2"):
        RunRecord.open(tmp_path)
    for text in ("{half", "[" * 100_000):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(UserError, match="not valid JSON"):
            RunRecord.open(tmp_path)
    (tmp_path / "run.json").write_text("[1]")
    with pytest.raises(UserError, match="JSON object"):
        RunRecord.open(tmp_path)


def test_metrics_come_back_and_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path / "run", FACTS)
    assert record.metrics() == []
    record.append_metrics({"epoch": 1, "losses": {"cls": np.float32(0.5)}})
    record.append_metrics({"epoch": 2, "losses": {"cls": float("nan")}})
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "los')
    assert record.metrics() == [{"epoch": 1, "losses": {"cls": 0.5}}, {"epoch": 2, "losses": {"cls": None}}]


def test_truncate_keeps_what_it_is_told_and_mends_a_torn_end(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path / "run", FACTS)
    truncate_metrics(record.folder, lambda line: True)  # nothing there yet
    for epoch in (1, 2, 3):
        record.append_metrics({"task": 1, "epoch": epoch})
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"task": 1, "epo')
    truncate_metrics(record.folder, lambda line: line["epoch"] <= 2)
    record.append_metrics({"task": 1, "epoch": 3, "again": True})
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.json"
    write_json(path, {"value": 1})

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"value": 2})
    assert read_json(path) == {"value": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_strict_and_plain(tmp_path: Path) -> None:
    value = {"a": (1, np.int64(2)), "b": np.array([0.5, np.inf]), "c": tmp_path, 4: float("nan"), "d": np.bool_(True)}
    assert plain(value) == {"a": [1, 2], "b": [0.5, None], "c": str(tmp_path), "4": None, "d": True}
    write_json(tmp_path / "x.json", value)
    assert "NaN" not in (tmp_path / "x.json").read_text()
    with pytest.raises(UserError, match="There is no"):
        read_json(tmp_path / "y.json")


def test_results_of_the_first_protocol_come_first(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path / "run", FACTS)
    assert record.results() == {}
    record.write_results({"n": 2}, "results-class")
    record.write_results({"n": 1})
    assert list(record.results().items()) == [("results", {"n": 1}), ("results-class", {"n": 2})]


def test_examples_keep_pixels_map_and_facts(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path / "run", FACTS)
    photo = np.full((6, 8, 3), (200, 40, 90), dtype=np.uint8)
    heat = np.zeros((6, 8))
    heat[2, 3] = 0.5
    record.write_examples(10, [("../birds/1", photo, heat, {"label": "kite", "iou": float("nan")})])
    record.write_examples(2, [("../birds/1", photo, np.full((6, 8), 7, dtype=np.uint8), {"label": "kite"})])
    assert list(record.examples()) == [2, 10]
    (example,) = record.examples()[10]
    assert (example["label"], example["iou"]) == ("kite", None)
    assert example["image"] == record.examples()[2][0]["image"]  # the same photo is stored once
    stored = np.asarray(Image.open(record.folder / example["map"]))
    assert (stored[2, 3], stored.sum(), stored.shape) == (128, 128, (6, 8))
    assert np.asarray(Image.open(record.folder / record.examples()[2][0]["map"])).min() == 7
    assert np.abs(np.asarray(Image.open(record.folder / example["image"])).astype(int) - photo).max() < 12
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # the id did not lead out of the folder


def test_file_stems_are_safe_and_distinct() -> None:
    assert file_stem("bird_07-a") == "bird_07-a"
    stems = [file_stem(name) for name in ("a/b", "a.b", "a b", "..", "é" * 300, "\udcff")]
    assert len(set(stems)) == len(stems)
    assert all(set(stem) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") and len(stem) < 100 for stem in stems)


def test_environment_names_device_and_versions() -> None:
    facts = environment("CPU (2 threads)")
    assert facts["device"] == "CPU (2 threads)"
    assert facts["versions"]["numpy"] == np.__version__
    assert {"python", "torch", "pillow"} <= set(facts["versions"])


def test_environment_names_the_build_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of torch from PyPI has 2.13.0 where torch.__version__ has 2.13.0+cu130."""
    monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
    assert environment("CPU")["versions"]["torch"] == "2.13.0+cu130"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with src/fdcnet; -> that package folder."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    package = tmp_path / "checkout" / "src" / "fdcnet"
    package.mkdir(parents=True)
    (package / "a.py").write_text("a = 1\n")
    git(package, "init", "--quiet", str(tmp_path / "checkout"))
    git(package, "add", ".")
    git(package, "-c", "user.name=n", "-c", "user.email=e@localhost", "commit", "--quiet", "--message=first")
    return package


def git(folder: Path, *arguments: str) -> None:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    subprocess.run(["git", "-C", str(folder), "-c", "core.hooksPath=/dev/null", *arguments], env=clean, check=True)


def test_commit_of_a_clean_and_of_a_modified_checkout(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = commit(checkout)
    assert clean is not None
    assert len(clean) == 40
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as in a hook
    assert commit(checkout) == clean
    (checkout.parents[1] / "notes.txt").write_text("outside the source")
    assert commit(checkout) == clean
    (checkout / "b.py").write_text("b = 1\n")
    assert commit(checkout) == f"{clean}-dirty"


def test_commit_is_none_elsewhere(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = checkout.parents[1] / "venv" / "fdcnet"  # a copy inside somebody else's checkout
    installed.mkdir(parents=True)
    assert commit(installed) is None
    assert commit(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert commit(checkout) is None
