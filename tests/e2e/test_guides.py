"""What the README and the guides show is run: commands and code, shrunk to seconds, and the notebook."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import av
import pytest
from PIL import Image

from fdcnet.cli import main
from fdcnet.data.records import Dataset
from fdcnet.data.synthetic import make_synthetic
from guides import GUIDES, ROOT, blocks, shell_lines

CLASSES = {
    "first-photos/": slice(0, 2),
    "new-photos/": slice(2, 4),
    "ten/": slice(4, 6),
    "five/": slice(6, 8),
    "herons/": slice(0, 1),
    "landscapes/": slice(1, 3),
}
MODELS = {"predict.md": "runs/birds/model", "label.md": "boxes/model"}  # that a guide has from elsewhere
RUN_ELSEWHERE = {
    "demo": "tests/e2e/test_demo.py",
    "serve": "tests/e2e/test_serve_command.py",
    "suite": "tests/suite/test_suite_command.py",
    "--learn-boxes": "tests/teaching/test_label_learning.py",
    "--resume": "tests/contracts/test_methods.py",
}


def make_folder(name: str, photos: Dataset, further: Dataset) -> None:
    """A folder of photos as a guide names it: some classes, further photos of a class, or a set with a test part."""
    root = photos.train[0].path.parents[2]
    if name == "more-photos/":
        shutil.copytree(further.train[0].path.parent, Path(name) / photos.classes[0])
    elif name in CLASSES:
        for label in photos.classes[CLASSES[name]]:
            shutil.copytree(root / "train" / label, Path(name) / label)
    else:
        for label in photos.classes[:4]:
            for part in ("train", "test"):
                shutil.copytree(root / part / label, Path(name) / part / label)


def make_files(photos: Dataset) -> None:
    """Single files that the guides name."""
    Path("archive/2020").mkdir(parents=True)
    with Image.open(photos.train[0].path) as image:
        for name in ("photo.jpg", "archive/2020/a.jpg"):
            image.save(name)
        frame = av.VideoFrame.from_image(image)
    with av.open("clip.mp4", "w") as clip:
        stream = clip.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = frame.width, frame.height, "yuv420p"
        clip.mux([*stream.encode(frame), *stream.encode()])
    first, second = photos.classes[:2]
    Path("list.csv").write_text(f"path,label\nphoto.jpg,{first}\n")
    Path("pond.csv").write_text(f"path,label\nphoto.jpg,{first}\narchive/2020/a.jpg,{first}|{second}\n")
    Path("mine.yaml").write_text("method: baseline\n")


def shrink(words: list[str], settings: typing.Sequence[str]) -> list[str]:
    """The same command as a run of seconds: the tiny backbone, few classes, few epochs."""
    verb, arguments = words[0], words[1:]
    tiny = ["--backbone", "tiny", "--weights", "none"]
    if verb == "learn":
        network = ("data.size=40", "data.crop=32", "model.head_width=16")
        new = [] if Path(arguments[0]).exists() else [*tiny, *(word for key in network for word in ("--set", key))]
        return [*words, *new, "--epochs", "1"]
    if verb != "train":
        return words
    small = dict(setting.split("=") for setting in (*settings, "data.format=folders", "data.classes=0"))
    for place, word in enumerate(arguments):
        key, _, value = word.partition("=")
        if word in ("--base", "--step"):
            arguments[place + 1] = "2"
        elif key == "data.classes":
            small[key] = "2"
        elif key in small and value == "0":
            small[key] = "0"
    return [verb, *arguments, *tiny, *(word for key in small for word in ("--set", f"{key}={small[key]}"))]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("guides") / "photos"
    return make_synthetic(folder, num_classes=8, train_per_class=6, test_per_class=2, size=40)


def prepare(commands: list[list[str]], photos: Dataset, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Go to an empty folder and put there what the commands take for granted."""
    monkeypatch.setenv("FDCNET_CACHE", str(folder / "cache"))
    further = make_synthetic(folder / "further", num_classes=1, train_per_class=6, size=40, seed=1)
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    make_files(photos)
    for words in commands:
        for before, word in itertools.pairwise(words):
            is_input = not before.startswith("--") or before == "--others"
            if is_input and re.match(r"data/|[\w-]+/$", word) and not Path(word).exists():
                make_folder(word, photos, further)


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fdcnet", *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code, words


def commands_of(page: Path) -> list[list[str]]:
    return [words[1:] for words in shell_lines(page) if words[0] == "fdcnet"]


@pytest.mark.parametrize("page", [page for page in GUIDES if shell_lines(page)], ids=lambda page: page.name)
def test_commands_and_code_run(
    page: Path, photos: Dataset, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrunk, commands = request.getfixturevalue("shrunk"), commands_of(page)
    prepare(commands, photos, monkeypatch, tmp_path)
    if page.name in MODELS:
        shutil.copytree(request.getfixturevalue("taught") / "run" / "model", MODELS[page.name])
    for number, words in enumerate(commands):
        if elsewhere := RUN_ELSEWHERE.keys() & set(words):
            assert (ROOT / RUN_ELSEWHERE[elsewhere.pop()]).exists()
            continue
        own_folder = ["--out", f"runs/{number}"] if words[0] == "train" and "--out" not in words else []
        run([*shrink(words, shrunk), *own_folder], monkeypatch)
    for code in blocks(page, "python"):
        code = code.replace("load_config(", f"load_config(overrides={list(shrunk)},")
        exec(re.sub(r'_(classes|epochs)": \d+', r'_\1": 2', code), {})


@pytest.mark.long
def test_the_lessons_of_the_readme_run_as_written(
    photos: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = [words for words in commands_of(ROOT / "README.md") if words[0] in ("learn", "predict")]
    prepare(commands, photos, monkeypatch, tmp_path)
    for words in commands:
        run(words, monkeypatch)
    answers = json.loads(Path("results.json").read_text(encoding="utf-8"))
    assert len(answers) == 4 * (6 + 2)
    assert {answer["class"] for answer in answers} <= set(photos.classes[:4])


def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook = json.loads((ROOT / "docs/notebooks/from-photos-to-boxes.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in notebook["cells"])
    cells.append("print(report.num_classes, min(report.old_after.gt_known, report.new_after.gt_known))")
    (tmp_path / "cells.py").write_text("\n".join(cells), encoding="utf-8")
    environment = os.environ | {"FDCNET_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "cells.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    num_classes, gt_known = done.stdout.split()[-2:]
    assert int(num_classes) == 3
    assert float(gt_known) >= 80
