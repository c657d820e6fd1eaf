"""The command as people use it: a real process where exit codes and output count, else its `main` in this process."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file
from typer.main import get_command

from fdcnet import config
from fdcnet.cli import app, main
from fdcnet.data.synthetic import make_synthetic
from fdcnet.models.backbones import build_backbone
from fdcnet.teaching.learn import learn
from fdcnet.training.run_folder import resume_point

SMALL = (
    *("--backbone", "tiny", "--weights", "none", "--device", "cpu"),
    *("--set", "data.size=40", "--set", "data.crop=32", "--set", "model.head_width=16"),
    *("--set", "train.base_epochs=1", "--set", "train.step_epochs=1", "--set", "train.batch_size=4"),
    *("--set", "memory.budget=8", "--set", "protocols.0.crops=2"),
)


def surroundings(cache: Path) -> dict[str, str]:
    """Of a process: no colours asked for, no GPU, a cache of its own."""
    forced = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "FDCNET_WEIGHTS")
    kept = {key: value for key, value in os.environ.items() if key not in forced}
    return {**kept, "FDCNET_CACHE": str(cache), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def fdcnet(*arguments: str | int | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fdcnet", *map(str, arguments)]
    options = {"env": surroundings(cwd / "cache"), "capture_output": True, "encoding": "utf-8", "timeout": 120}
    return subprocess.run(command, cwd=cwd, check=False, **options)  # type: ignore[call-overload]


def make_photos(root: Path, num_classes: int = 4) -> Path:
    make_synthetic(root, num_classes=num_classes, train_per_class=6, test_per_class=2, size=40)
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with photos/ and run/, and what the command said."""
    folder = tmp_path_factory.mktemp("trained")
    make_photos(folder / "photos")
    done = fdcnet("train", "photos", "-m", "baseline", "--base", 2, "--step", 2, *SMALL, "-o", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder, done.stdout


def test_train_leaves_a_complete_run(trained: tuple[Path, str]) -> None:
    folder, said = trained
    run = folder / "run"
    names = {path.name for path in run.iterdir()}
    assert names == {
        *("run.json", "metrics.jsonl", "results.json", "report.html", "features"),
        *("model", "predictions", "examples"),
    }
    results = json.loads((run / "results.json").read_text())
    assert [task["num_classes"] for task in results["tasks"]] == [2, 4]
    facts = json.loads((run / "run.json").read_text())
    assert facts["finished"] is not None
    assert facts["command"][1:4] == ["train", "photos", "-m"]
    assert facts["data"] == {**facts["data"], "name": "photos", "num_train": 24, "num_test": 8}
    assert "<!DOCTYPE html>" in (run / "report.html").read_text(encoding="utf-8")
    assert "Task 1 of 2: 2 classes, 12 photos" in said
    assert "Task 2 of 2: 2 new classes, 12 photos" in said
    assert "After task 2 (4 classes):" in said
    assert "Report: run/report.html" in said


def test_light_training_has_the_settings_of_lessons_unless_told_otherwise(photos: Path) -> None:
    where, given = photos.parent, ("--set", "train.optim.lr=0.001", "-o", "light")
    done = fdcnet("train", "photos", "-m", "baseline", "--base", 2, "--step", 2, "--light", *SMALL, *given, cwd=where)
    assert done.returncode == 0, done.stderr
    used = json.loads((where / "light" / "run.json").read_text())["config"]
    assert used["train"]["views"] == 3
    assert used["train"]["loc_warmup"] == 0.6
    assert used["weights"]["area"] == 1.2
    assert used["protocols"][0]["threshold"] == 0.6
    assert used["model"]["head_width"] == 16
    assert (used["train"]["optim"]["lr"], used["train"]["batch_size"]) == (0.001, 4)


@pytest.mark.parametrize("named_by", ["recipe", "set"])
def test_light_training_keeps_the_method_of_a_recipe_or_setting(named_by: str, photos: Path) -> None:
    where = photos.parent
    (where / "mine.yaml").write_text("method: baseline\n")
    given = ["-r", "mine.yaml"] if named_by == "recipe" else ["--set", "method=baseline"]
    words = (*given, "--base", 2, "--step", 2, "--light", *SMALL, "-o", f"by-{named_by}")
    done = fdcnet("train", "photos", *words, cwd=where)
    assert done.returncode == 0, done.stderr
    used = json.loads((where / f"by-{named_by}" / "run.json").read_text())["config"]
    assert (used["method"], used["train"]["views"], used["weights"]["kd_cls"]) == ("baseline", 3, 5.0)


def test_light_training_of_few_photos_has_more_epochs(photos: Path) -> None:
    kept = [word for word in SMALL if "epochs" not in word]
    small = [word for i, word in enumerate(kept) if not (word == "--set" and kept[i + 1 : i + 2] in ([], ["--set"]))]
    done = fdcnet("train", "photos", "--base", 2, "--light", *small, "-o", "epochs", cwd=photos.parent)
    assert done.returncode == 0, done.stderr
    used = json.loads((photos.parent / "epochs" / "run.json").read_text())["config"]["train"]
    assert (used["base_epochs"], used["step_epochs"]) == (60, 60)  # 12 photos; 3000 would be shown 250 times


@pytest.mark.parametrize(("given", "crops"), [((), 2), (("--set", "protocols=[{crops: 1}]"), 1)])
def test_light_training_is_evaluated_on_few_views(photos: Path, given: tuple[str, ...], crops: int) -> None:
    small = SMALL[: SMALL.index("protocols.0.crops=2") - 1]
    done = fdcnet("train", "photos", "--base", 2, "--light", *small, *given, "-o", f"{crops}", cwd=photos.parent)
    assert done.returncode == 0, done.stderr
    [protocol] = json.loads((photos.parent / f"{crops}" / "run.json").read_text())["config"]["protocols"]
    assert protocol["crops"] == crops


def test_without_a_terminal_there_are_lines_and_no_bars(trained: tuple[Path, str]) -> None:
    _, said = trained
    assert "\x1b" not in said
    assert "\r" not in said
    assert "epoch 1/1  cls " in said
    assert "decoding training photos: 12 of 12\n" in said


def test_evaluate_repeats_the_numbers_of_the_run(trained: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = trained
    done = fdcnet("evaluate", "run/model", "--device", "cpu", "-o", tmp_path / "again", cwd=folder)
    assert done.returncode == 0, done.stderr
    again = json.loads((tmp_path / "again" / "results.json").read_text())
    run = json.loads((folder / "run" / "results.json").read_text())
    assert again["protocol"] == run["protocol"]
    assert again["last"] == run["last"]
    assert again["tasks"][-1] == {**run["tasks"][-1], "task": 1}
    assert (tmp_path / "again" / "predictions.csv.gz").exists()
    assert "Protocol: map class" in done.stdout


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., tuple]:
    """The command in this process, from an empty folder: -> exit code, output, errors."""
    monkeypatch.setenv("FDCNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FDCNET_WEIGHTS", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def run(*arguments: str | float | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fdcnet", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return run


Call = Callable[..., tuple[int, str, str]]


def test_version(call: Call) -> None:
    assert call("--version") == (0, f"fdcnet {version('fdcnet')}\n", "")


def test_evaluate_changes_one_part_of_the_protocol(trained: tuple[Path, str], call: Call, tmp_path: Path) -> None:
    folder, _ = trained
    model, photos = folder / "run" / "model", folder / "photos"
    code, said, _ = call("evaluate", model, photos, "--map", "topk-mean", "--threshold", 0.4, "-o", tmp_path / "again")
    assert code == 0
    protocol = json.loads((tmp_path / "again" / "results.json").read_text())["protocol"]
    assert (protocol["map"], protocol["threshold"], protocol["crops"]) == ("topk-mean", 0.4, 2)
    assert protocol["threshold_source"] == "given for this evaluation"
    assert "threshold 0.4" in said
    code, _, error = call("evaluate", model, photos, "--threshold", 3)
    assert (code, "threshold cannot be 3" in error) == (2, True)


def test_what_was_measured_once_is_not_taken_for_joint_training(
    trained: tuple[Path, str], call: Call, tmp_path: Path
) -> None:
    folder, _ = trained
    call("evaluate", folder / "run" / "model", folder / "photos", "-o", tmp_path / "again")
    code, _, error = call("compare", folder / "run", tmp_path / "again", "-o", tmp_path / "out")
    assert code == 0, error
    table = (tmp_path / "out" / "compare.md").read_text()
    assert "below joint" not in table
    assert table.splitlines()[-1].split("|")[2].strip() == "–"  # one measurement has no average over tasks
    assert "all classes at once" not in (tmp_path / "out" / "compare.html").read_text()


def test_a_report_of_a_file_says_what_to_do(call: Call, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    code, _, error = call("report", tmp_path / "results.json")
    assert code == 2
    assert "'fdcnet compare' also takes results files" in error


def test_evaluate_of_other_photos(trained: tuple[Path, str], call: Call, tmp_path: Path) -> None:
    model = trained[0] / "run" / "model"
    more = make_photos(tmp_path / "more", num_classes=5)
    code, said, _ = call("evaluate", model, more, "--device", "cpu")
    assert code == 0
    assert "Skipped 2 photos of classes the model does not know." in said
    for part in ("train", "test"):
        for folder in [path for path in (more / part).iterdir() if path.is_dir()]:
            folder.rename(folder.with_name(f"my {folder.name}"))
        (more / part / "boxes.csv").unlink()
    code, _, error = call("evaluate", model, more, "--device", "cpu")
    assert code == 2
    assert "None of the 10 photos is of a class that the model knows." in error
    code, _, error = call("evaluate", tmp_path, more)
    assert code == 2
    assert "is not a model" in error


def test_evaluate_of_a_model_with_a_holdout_takes_the_photos_set_aside(call: Call, tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", num_classes=2)
    run = tmp_path / "run"
    code, _, error = call("train", photos, *SMALL, "--set", "data.holdout=0.5", "-o", run)
    assert code == 0, error
    assert call("evaluate", run / "model", "--device", "cpu", "-o", tmp_path / "again")[0] == 0
    again = json.loads((tmp_path / "again" / "results.json").read_text())
    assert again["last"] == json.loads((run / "results.json").read_text())["last"]
    assert json.loads((run / "run.json").read_text())["data"]["num_test"] == 6


def test_report_of_two_runs(trained: tuple[Path, str], call: Call, tmp_path: Path) -> None:
    folder, _ = trained
    code, _, error = call(
        "train", folder / "photos", "-m", "finetune", "--base", 2, "--step", 2, *SMALL, "-o", tmp_path / "second"
    )
    assert code == 0, error
    code, said, _ = call("report", folder / "run", tmp_path / "second", "-o", tmp_path / "both.html")
    assert code == 0
    assert "baseline" in said
    assert "finetune" in said
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "baseline" in page
    assert "finetune" in page
    code, _, error = call("report", tmp_path / "photos")
    assert (code, error.splitlines()[0][:6]) == (2, "Error:")

    code, said, error = call("compare", folder / "run", tmp_path / "second", "-o", tmp_path / "compared")
    assert code == 0, error
    assert "GT-known" in said
    assert "lost" in said
    assert {"compare.html", "compare.csv", "photos.png"} <= {path.name for path in (tmp_path / "compared").iterdir()}


def test_an_existing_run_is_not_overwritten(trained: tuple[Path, str], call: Call) -> None:
    folder, _ = trained
    again = ("train", folder / "photos", "-m", "baseline", "--base", 2, "--step", 2, *SMALL, "-o", folder / "run")
    code, _, error = call(*again)
    assert code == 2
    assert "is already complete" in error


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_says_how_to_go_on(number: signal.Signals, code: int, photos: Path, tmp_path: Path) -> None:
    command = ("train", str(photos), *SMALL, "--set", "train.base_epochs=100000", "-o", "run")
    process = subprocess.Popen(
        [sys.executable, "-m", "fdcnet", *command],
        cwd=tmp_path,
        env=surroundings(tmp_path / "cache"),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        encoding="utf-8",
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs inherit it ignored
    )
    try:
        deadline = time.monotonic() + 180
        while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        _, error = process.communicate(timeout=180)
    finally:
        process.kill()
    assert process.returncode == code
    point = resume_point(tmp_path / "run")
    assert f"Stopped. To continue from {point}, run the same command with --resume." in error
    assert point is not None and point.startswith("task 1, phase main, ")
    assert "Traceback" not in error
    assert not (tmp_path / "run" / "lock").exists()


# The small verbs


def test_methods_are_explained(call: Call) -> None:
    code, said, _ = call("methods")
    assert code == 0
    for name in ("finetune", "baseline", "joint"):
        assert f"{name}\n  " in said
    assert "ACM MM 2023" in said


def test_doctor_names_what_there_is(call: Call, tmp_path: Path) -> None:
    code, said, _ = call("doctor")
    assert code == 0
    assert f"torch {torch.__version__}" in said
    assert str(tmp_path / "cache") in said
    assert "efficientnet_lite0 (comes with the installation); others: FDCNET_WEIGHTS names no folder" in said


def test_data_check_finds_nothing_wrong(call: Call, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    make_synthetic(photos, num_classes=2, train_per_class=6, test_per_class=2, size=64)
    code, said, _ = call("data", "check", photos)
    assert code == 0, said
    assert "train  12 photos, 12 boxes" in said
    assert "test   4 photos" in said
    assert "No problems found." in said


def test_data_check_of_one_class_says_who_holds_out_photos(call: Call, tmp_path: Path) -> None:
    make_synthetic(tmp_path / "photos", num_classes=1, train_per_class=4, test_per_class=1, size=64)
    code, said, _ = call("data", "check", tmp_path / "photos" / "train")
    assert code == 0 and "train: 1 class\n" in said
    assert "'learn' holds some out. For 'train'," in said


def test_data_check_finds_what_would_spoil_training(call: Call, photos: Path) -> None:
    train, test = photos / "train" / "ringed disc", photos / "test" / "ringed disc"
    (train / "000.jpg").write_bytes(b"this is no photo")
    shutil.copy(train / "001.jpg", test / "000.jpg")
    code, said, _ = call("data", "check", photos)
    assert code == 1
    assert "Photos that cannot be read: 1" in said
    assert f"{train / '000.jpg'}: not an image" in said
    assert "Photos both in training and in test: 1" in said


def test_the_settings_shown_are_a_recipe(call: Call, tmp_path: Path) -> None:
    changes = ("--set", "seed=7", "--set", "train.optim.lr=1e-3", "--set", "protocols.0.map=topk-mean")
    code, first, _ = call("config", "show", *changes)
    assert code == 0
    assert yaml.safe_load(first)["train"]["optim"]["lr"] == 0.001
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(first)
    assert config.load(recipe) == config.load(None, changes[1::2])
    assert call("config", "show", "-r", recipe)[1] == first


def all_commands() -> dict[str, Any]:
    """Verb -> its command."""
    found = {}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {f"{name} {sub}": verb for sub, verb in inner.items()} if inner else {name: command}
    return found


VERBS = tuple(all_commands())


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, call: Call) -> None:
    code, said, _ = call(*verb.split(), "--help")
    assert code == 0
    summary = all_commands()[verb].help.splitlines()[0].replace("`", "")
    assert len(summary) > 20 and summary in " ".join(said.split())
    assert f"Usage: fdcnet {verb}" in " ".join(said.split())


def test_help_version_and_completion_do_not_import_torch() -> None:
    """In one process: every help page, the version, the completions, the public names that need no network."""
    code = """
import contextlib, io, sys
import fdcnet
from fdcnet.cli import app, options

for arguments in [["--help"], ["--version"], *([*verb.split(), "--help"] for verb in sys.argv[1:])]:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as said:
        app(arguments, prog_name="fdcnet")
    assert said.getvalue(), arguments
assert dict(options.complete_method("fd")) == {"fdcnet": fdcnet.METHODS.summaries()["fdcnet"]}
assert [name for name, _ in options.complete_backbone("mobile")] == ["mobilenet_v1"]
assert "cub200-mobilenet_v1-fdcnet" in dict(options.complete_recipe("cub200-mobile"))
assert "joint" in fdcnet.METHODS and fdcnet.Config().seed == 0
heavy = {"torch", "numpy", "scipy", "PIL"} & set(sys.modules)
assert not heavy, heavy
"""
    command = [sys.executable, "-c", code, *VERBS]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr


def test_waiting_threads_sleep_unless_the_user_says_otherwise(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    call("--version")
    assert os.environ["OMP_WAIT_POLICY"] == "active"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    call("--version")
    assert os.environ["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fdcnet train --method base", "baseline"),
        ("fdcnet learn --backbone mobile", "mobilenet_v1"),
        ("fdcnet train --recipe cub200-mobilenet_v1-fo", "cub200-mobilenet_v1-foster"),
    ],
)
def test_the_shell_completes_values(line: str, expected: str, tmp_path: Path) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": "3", "_FDCNET_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-c", "from fdcnet.cli import app; app(prog_name='fdcnet')"],
        env={**surroundings(tmp_path), **words},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.stdout.split() == [expected], done.stderr


@pytest.mark.parametrize("verb", ["history", "rollback", "predict", "evaluate", "export"])
def test_verbs_about_a_model_say_where_it_comes_from(verb: str, call: Call) -> None:
    said = " ".join(call(verb, "--help")[1].split())
    assert f"Example: fdcnet {verb} birds" in said
    assert "fdcnet learn" in said and "fdcnet train" in said


# Mistakes: exit code 2, what is wrong, what to do, no traceback, nothing written


def empty_class(photos: Path) -> None:
    (photos / "train" / "unicorn").mkdir()


def one_class(photos: Path) -> None:
    for part in ("train", "test"):
        (photos / part / "boxes.csv").unlink()
        for folder in sorted(path for path in (photos / part).iterdir() if path.is_dir())[1:]:
            shutil.rmtree(folder)


def no_readable_photo(photos: Path) -> None:
    for photo in photos.rglob("*.jpg"):
        photo.write_bytes(b"this is no photo")


def negative_box(photos: Path) -> None:
    with (photos / "test" / "boxes.csv").open("a") as table:
        table.write("ringed disc/000.jpg,30,10,20,20\n")


def no_test_photos(photos: Path) -> None:
    shutil.rmtree(photos / "test")


def weights_of_tiny(photos: Path) -> None:
    backbone = build_backbone("tiny")
    state = {
        name.split(".", 2)[2] if name.startswith("shared.") else name.split(".", 1)[1]: value
        for name, value in backbone.state_dict().items()
    }
    save_file(state, photos.parent / "tiny.safetensors")


def nothing(photos: Path) -> None: ...


TRAIN = ("train", "PHOTOS", *SMALL)
MISTAKES: dict[str, tuple[Callable[[Path], None], tuple[str, ...], str, str]] = {
    "missing folder": (
        nothing,
        ("train", "FOLDER/nowhere", *SMALL),
        "There is no file or folder",
        "Check the spelling",
    ),
    "empty class folder": (empty_class, TRAIN, "Class 'unicorn' has no photos", "Put photos there"),
    "one class only": (one_class, TRAIN, "The first task has one class only", "add a class"),
    "no readable photo": (no_readable_photo, TRAIN, "None of the 24 photos can be read", "Check that the folder"),
    "no test photos": (no_test_photos, TRAIN, "There are no test photos", "data.holdout=0.2"),
    "box with negative size": (negative_box, TRAIN, "boxes.csv row 10: the box 30,10,20,20 is", "with x0 < x1"),
    "unknown method": (nothing, (*TRAIN, "-m", "basline"), "There is no method 'basline'", "Did you mean 'baseline'?"),
    "unknown backbone": (nothing, (*TRAIN, "-b", "mobilenet"), "no backbone 'mobilenet'", "mean 'mobilenet_v1'?"),
    "unknown setting": (nothing, (*TRAIN, "--set", "train.bach_size=2"), "'train.bach_size'", "'train.batch_size'?"),
    "setting without value": (nothing, (*TRAIN, "--set", "seed"), "--set 'seed' has no '='", "Write it as"),
    "setting of the wrong kind": (nothing, (*TRAIN, "--set", "seed=x"), "'seed' must be a whole number", "Set it like"),
    "weights missing": (nothing, (*TRAIN, "-w", "no.pth"), "There is no weights file no.pth", "Name a .safetensors"),
    "weights of another network": (
        weights_of_tiny,
        (*TRAIN, "-b", "mobilenet_v1", "-w", "FOLDER/tiny.safetensors"),
        "holds weights of tiny, not of mobilenet_v1",
        "Choose the backbone tiny",
    ),
    "recipe missing": (nothing, (*TRAIN, "-r", "no.yaml"), "There is no recipe 'no.yaml'", "fdcnet config list"),
    "base model missing": (nothing, (*TRAIN, "--base-model", "no"), "There is no model no", "A model is"),
    "memory too small": (
        nothing,
        (*TRAIN, "-m", "baseline", "--set", "memory.budget=3"),
        "A memory of 3 photos cannot hold one of each of 4 classes",
        "Raise memory.budget to 4",
    ),
}


def said_in_two_lines(error: str, problem: str, remedy: str) -> None:
    assert "Traceback" not in error
    first, second = error.splitlines()
    assert first.startswith("Error: ")
    assert problem in first
    assert remedy in second


def test_weights_are_listed_and_verified(call: Call, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights_of_tiny(photos)
    file = photos.parent / "tiny.safetensors"
    code, said, _ = call("weights", "verify", file)
    assert code == 0 and "tiny, lineage scratch" in said
    assert hashlib.sha256(file.read_bytes()).hexdigest() in said
    assert call("weights", "fetch", "tiny")[:2] == (0, "tiny needs no weights.\n")
    file.rename(file.with_name("resnet50.safetensors"))
    monkeypatch.setenv("FDCNET_WEIGHTS", str(photos.parent))
    monkeypatch.setenv("TORCH_HOME", str(photos.parent))
    code, said, _ = call("weights", "list")
    assert code == 0 and f"resnet50            {photos.parent / 'resnet50.safetensors'}" in said
    assert "vgg16               not downloaded" in said and "classify_image_graph_def.pb in http" in said
    file.write_bytes(b"no weights")
    assert call("weights", "verify", file)[0] == 2
    code, _, error = call("weights", "convert", file)
    said_in_two_lines(error, "is not a frozen TensorFlow graph or checkpoint", "unpack the archive again")
    assert code == 2


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_two_lines(mistake: str, call: Call, photos: Path, tmp_path: Path) -> None:
    prepare, arguments, problem, remedy = MISTAKES[mistake]
    prepare(photos)
    code, _, error = call(*(a.replace("PHOTOS", str(photos)).replace("FOLDER", str(tmp_path)) for a in arguments))
    assert code == 2
    said_in_two_lines(error, problem, remedy)
    assert list(Path.cwd().iterdir()) == [], "nothing is written"


@pytest.mark.parametrize(
    ("arguments", "problem", "remedy"),
    [
        (("train", "nowhere"), "There is no file or folder", "Check the spelling"),
        (("train", "photos", *SMALL, "--device", "cuda"), "No GPU is available to PyTorch", "--device cpu"),
        (("data", "check", "photos", "--format", "cocoa"), "There is no data format 'cocoa'", "Did you mean 'coco'?"),
    ],
)
def test_a_mistake_ends_the_process_with_2(
    arguments: tuple[str, ...], problem: str, remedy: str, photos: Path, tmp_path: Path
) -> None:
    done = fdcnet(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    said_in_two_lines(done.stderr, problem, remedy)
    assert {path.name for path in tmp_path.iterdir()} <= {"photos", "cache"}


def test_brackets_and_colons_in_a_path_are_printed_as_they_are(call: Call) -> None:
    _, _, error = call("train", "my [red] :smile: photos\\[1]")
    assert "my [red] :smile: photos\\[1]" in error


def test_a_failure_that_is_no_mistake_ends_with_1(call: Call, photos: Path, tmp_path: Path) -> None:
    code, _, error = call("train", photos, *SMALL, "--set", "train.optim.lr=1e30", "-o", tmp_path / "run")
    assert code == 1
    assert error.startswith("Failed: Loss is NaN or infinite (phase main, epoch 1")
    assert "train.optim.clip_norm" in error
    assert call("report", tmp_path / "run")[0] == 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Loss is NaN or infinite (phase main, epoch 1" in page  # in the banner


@pytest.mark.parametrize(("verb", "resumes"), [("train", True), ("predict", False)])
def test_a_disk_that_fails_is_told_in_words_of_the_command(
    verb: str, resumes: bool, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("fdcnet.cli.app", fail)
    code, _, error = call(verb)
    assert code == 1 and error.startswith("Failed: No space left on device\nFree space or repair that path.")
    assert ("--resume" in error) == resumes


def test_a_file_in_the_way_of_the_results_is_noticed_first(call: Call, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    code, _, error = call("evaluate", "no-model", "-o", tmp_path / "out")
    assert code == 2 and "out is a file" in error


def test_a_model_that_was_taught_has_a_report_but_no_test_photos(call: Call, tmp_path: Path) -> None:
    dataset = make_synthetic(tmp_path / "photos", num_classes=2, train_per_class=4, test_per_class=2, size=40)
    small = ("data.size=40", "data.crop=32", "model.head_width=16")
    learn(tmp_path / "model", dataset, backbone="tiny", epochs=1, device="cpu", overrides=small)
    code, said, _ = call("report", tmp_path / "model", "--device", "cpu")
    assert code == 0 and "report.html" in said
    assert "2 classes learned in 1 task" in (tmp_path / "model" / "report.html").read_text(encoding="utf-8")
    code, _, error = call("evaluate", tmp_path / "model")
    assert code == 2 and "Name test photos" in error
    code, said, _ = call("evaluate", tmp_path / "model", tmp_path / "photos", "--device", "cpu")
    assert code == 0 and "After task" not in said and "average" not in said.split("Protocol")[0]


def test_a_model_within_a_run_leads_to_its_report(trained: tuple[Path, str], call: Call) -> None:
    run = trained[0] / "run"
    (run / "report.html").unlink()
    code, _, _ = call("report", run / "model")
    assert code == 0
    assert "Run report" in (run / "report.html").read_text(encoding="utf-8")
