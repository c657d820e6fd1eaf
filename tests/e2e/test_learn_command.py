"""`fdcnet learn`, `history` and `rollback` as a user runs them: in a process of their own, and stopped the hard way."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fdcnet.data.synthetic import make_synthetic
from fdcnet.store.bundle import load_bundle
from fdcnet.store.versions import versions, writing

SMALL = (
    *("--backbone", "tiny", "--light", "--epochs", "2", "--device", "cpu"),
    *("--set", "data.size=40", "--set", "data.crop=32", "--set", "model.head_width=16"),
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ of three classes, one/ of another one, and a model of the three."""
    root = tmp_path_factory.mktemp("home")
    dataset = make_synthetic(root / "all", num_classes=4, train_per_class=10, test_per_class=2, size=40)
    for number, name in enumerate(dataset.classes):
        folder = root / ("photos" if number < 3 else "one") / name
        folder.mkdir(parents=True)
        for record in dataset.train:
            if record.label == name:
                shutil.copy(record.path, folder)
    made = run(root, "learn", "made", "photos", *SMALL)
    assert made.returncode == 0, made.stderr
    assert "rollback" not in made.stdout  # there is nothing to go back to
    return root


@pytest.fixture
def model(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home / "made", tmp_path / "model"))


def start(folder: Path, *arguments: str | Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "fdcnet", *map(str, arguments)]
    surroundings = os.environ | {"FDCNET_CACHE": str(folder / "cache"), "COLUMNS": "80"}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=surroundings,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell ignores it for all below
    )


def run(folder: Path, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_classes_that_were_not_evaluated_are_named(home: Path, model: Path, tmp_path: Path) -> None:
    [folder] = (home / "one").iterdir()
    few = tmp_path / "few" / folder.name
    few.mkdir(parents=True)
    for photo in sorted(folder.iterdir())[:5]:
        shutil.copy(photo, few)
    learned = run(home, "learn", model, few.parent, "--device", "cpu")
    assert learned.returncode == 0, learned.stderr
    assert f"Without held-out photos, so not evaluated: {folder.name}." in " ".join(learned.stdout.split())
    assert "not evaluated" not in run(home, "learn", model, "one", "--more", "--device", "cpu").stdout


def start_and_wait_for_epochs(home: Path, model: Path) -> "subprocess.Popen[str]":
    process = start(home, "learn", model, "one", "--epochs", "100000", "--device", "cpu")
    assert process.stdout
    for line in process.stdout:
        if line.startswith("epoch "):
            return process
    raise AssertionError(process.communicate()[1])


def test_learn_history_rollback(home: Path, model: Path) -> None:
    learned = run(home, "learn", model, "one", "--epochs", "2", "--device", "cpu")
    assert learned.returncode == 0, learned.stderr
    for words in (
        "1 new class from 8 photos",
        "About",
        "old classes, before",
        "old classes, after",
        "knows 4 classes",
        "rollback",
    ):
        assert words in learned.stdout
    shown = run(home, "history", model).stdout
    assert "2 *" in shown and load_bundle(model).classes[3] in shown
    assert max(map(len, shown.splitlines())) <= 80
    above, header, _, first, *_ = shown.splitlines()
    assert above.split() == ["class", "box", "both"]
    assert header.split() == ["version", "date", "classes", "added", "of", *["right"] * 3, "size"]
    assert re.match(r"1 +\d{4}-\d\d-\d\d +3 ", first)
    assert run(home, "rollback", model).stdout == f"{model} is now version 1 with 3 classes.\n"
    assert len(load_bundle(model).classes) == 3
    assert run(home, "rollback", model).returncode == 2
    assert run(home, "rollback", model, "--to", "2").returncode == 0


def test_a_class_that_is_known(home: Path, model: Path) -> None:
    refused = run(home, "learn", model, "photos")
    assert refused.returncode == 2 and "already knows" in refused.stderr and "--more" in refused.stderr
    again = run(home, "learn", model, "photos", "--more", "--device", "cpu")
    assert again.returncode == 2 and "None of the 30 photos is new" in again.stderr
    name = load_bundle(model).classes[0]
    shutil.copytree(home / "photos", home / "grown")
    shutil.copytree(next((home / "one").iterdir()), home / "grown" / name, dirs_exist_ok=True)  # ten take a name
    more = run(home, "learn", model, "grown", "--more", "--epochs", "1", "--device", "cpu")
    assert more.returncode == 0, more.stderr
    assert "Skipped 20 photos" in more.stdout and "8 further photos of known classes" in more.stdout


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_stopped_lesson_leaves_the_model(home: Path, model: Path, stop: signal.Signals, code: int) -> None:
    before = contents(model)
    process = start_and_wait_for_epochs(home, model)
    process.send_signal(stop)
    try:
        errors = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    assert process.returncode == code
    after = contents(model)
    if stop == signal.SIGKILL:
        del after["lock"]
    else:
        where = r"is unchanged\. To continue the lesson from task 2, phase main, (after )?epoch \d"
        assert re.search(where, " ".join(errors.split())), errors  # "after": between two epochs
        [checkpoint] = [name for name in after if name.startswith("stopped/")]
        del after[checkpoint]
    assert after == before
    assert run(home, "learn", model, "one", "--epochs", "1", "--device", "cpu").returncode == 0
    assert [version.number for version in versions(model)] == [1, 2]


def test_two_writers(home: Path, model: Path) -> None:
    with writing(model):
        for arguments in (("learn", model, "one"), ("rollback", model)):
            refused = run(home, *arguments)
            assert refused.returncode == 2 and f"process {os.getpid()}" in refused.stderr
    assert run(home, "history", model).returncode == 0


def test_no_model_and_no_photos(home: Path, tmp_path: Path) -> None:
    for arguments in (("history", tmp_path / "no"), ("rollback", tmp_path / "no"), ("learn", tmp_path / "no", "none")):
        refused = run(home, *arguments)
        assert refused.returncode == 2 and len(refused.stderr.strip().splitlines()) == 2, refused.stderr
    assert "only one class" in run(home, "learn", tmp_path / "no", "one").stderr
    assert not (tmp_path / "no").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX does")
def test_a_disk_that_fills_up(home: Path, model: Path) -> None:
    """A limit on the size of a file stands in for the disk: both end in an error of the system while writing."""
    import resource

    before = contents(model)
    command = [sys.executable, "-m", "fdcnet", "learn", str(model), "one", "--epochs", "1", "--device", "cpu"]
    limited = subprocess.run(
        command,
        cwd=home,
        env=os.environ | {"FDCNET_CACHE": str(home / "cache2")},
        text=True,
        capture_output=True,
        check=False,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)),
    )
    assert limited.returncode == 2, limited.stderr
    assert "the model is unchanged" in limited.stderr
    after = contents(model)
    [checkpoint] = [name for name in after if name.startswith("stopped/")]  # the next try need not train again
    del after[checkpoint]
    assert after == before


def test_time_is_told(home: Path, model: Path) -> None:
    started = time.monotonic()
    learned = run(home, "learn", model, "one", "--epochs", "1", "--device", "cpu", "--keep", "0")
    assert learned.returncode == 0 and "rollback" not in learned.stdout
    assert float(versions(model)[0].learned["seconds"]) <= time.monotonic() - started
    assert [version.number for version in versions(model)] == [2]
