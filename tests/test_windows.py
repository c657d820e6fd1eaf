"""The command under the rules of Windows, as far as tests/windows.py simulates them. It was never run there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fdcnet.data.synthetic import make_synthetic

RULES = Path(__file__).with_name("windows.py")
SHRUNK = (
    *("--backbone", "tiny", "--light", "--epochs", "1", "--device", "cpu"),
    *("--set", "data.size=40", "--set", "data.crop=32", "--set", "model.head_width=16"),
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """first/ and second/ with two classes each."""
    root = tmp_path_factory.mktemp("windows")
    dataset = make_synthetic(root / "photos", num_classes=4, train_per_class=8, test_per_class=1, size=40)
    for number, name in enumerate(dataset.classes):
        shutil.copytree(root / "photos" / "train" / name, root / ("first", "second")[number // 2] / name)
    return root


def run_all(folder: Path, *commands: tuple[str, ...]) -> list[str]:
    """Run commands in one process under the rules; -> what each printed. Pipes have the encoding of Western Europe."""
    changes = {"PYTHONWARNDEFAULTENCODING": "1", "PYTHONIOENCODING": "cp1252", "FDCNET_CACHE": str(folder / "cache")}
    words = [sys.executable, str(RULES), json.dumps(commands)]
    done = subprocess.run(words, cwd=folder, env=os.environ | changes, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stdout.decode("cp1252") + done.stderr.decode("cp1252")
    return done.stdout.decode("cp1252").split("\0")


def test_every_module_can_be_imported_and_the_rules_hold(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(RULES)], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [
        "rename to an existing file: FileExistsError",
        "remove an open file: PermissionError",
        "rename the folder of a mapped file: PermissionError",
        "open a folder: PermissionError",
        "create con.txt: OSError",
        "link: OSError",
        "fdcnet sees fcntl: False, os.fork: False, sys.platform: win32",
    ]


def test_learn_and_predict(home: Path) -> None:
    (home / "second" / "striped star").rename(home / "second" / "星星")  # no letter of it exists in that encoding
    printed = run_all(
        home,
        ("learn", "model", "first", *SHRUNK),
        ("learn", "model", "second", "--epochs", "1", "--device", "cpu"),
        ("predict", "model", "photos/test", "--save", "drawn", "--json", "answers.json", "--coco", "coco.json"),
        ("history", "model"),
        ("rollback", "model"),
        ("label", "first", "--model", "model", "--out", "boxes", "--csv", "--yolo", "--device", "cpu"),
        ("label", "first", "--model", "model", "--out", "boxes", "--csv", "--yolo", "--device", "cpu"),
    )
    assert "model is now version 2 and knows 4 classes" in printed[1]
    assert "\\u661f" in printed[3]
    assert len(json.loads((home / "answers.json").read_bytes())) == 4
    assert len(list((home / "drawn").rglob("*.jpg"))) == 4
    assert (home / "model" / "current").read_text("ascii") == "1\n"
    assert len(list((home / "boxes" / "yolo" / "images").rglob("*.jpg"))) == 16
    assert not any(path.is_symlink() for path in (home / "boxes").rglob("*"))


def test_train_and_teach_the_result(home: Path) -> None:
    settings = (
        *("data.holdout=0.2", "data.size=40", "data.crop=32"),
        *("model.weights=none", "model.head_width=16", "train.batch_size=4"),
    )
    changes = tuple(word for setting in settings for word in ("--set", setting))
    options = ("--base", "2", "--epochs", "1", "--backbone", "tiny", "--method", "baseline")
    run_all(
        home,
        ("train", "first", *options, *changes, "--device", "cpu", "--out", "run"),
        ("learn", "run/model", "second", "--epochs", "1", "--device", "cpu"),
    )
    assert (home / "run" / "report.html").is_file()
    assert json.loads((home / "run" / "results.json").read_bytes())["tasks"][0]["num_classes"] == 2
    left = {path.name for path in (home / "run" / "model").iterdir()} - {"lock"}  # removed by filelock's own code there
    assert left == {"current", "versions"}
