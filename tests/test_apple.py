"""`--device mps` on a simulated device (tests/apple.py). It was never run on a Mac."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fdcnet.data.synthetic import make_synthetic

SIMULATION = Path(__file__).with_name("apple.py")
SHRUNK = ("data.size=40", "data.crop=32", "model.weights=none", "model.head_width=16", "train.batch_size=4")
CHANGES = tuple(word for setting in SHRUNK for word in ("--set", setting))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """photos/ with four classes; first/ and second/ have the training photos of two each."""
    dataset = make_synthetic(tmp_path / "photos", num_classes=4, train_per_class=8, test_per_class=2, size=40)
    for number, name in enumerate(dataset.classes):
        folder = tmp_path / ("first", "second")[number // 2] / name
        shutil.copytree(tmp_path / "photos" / "train" / name, folder)
    return tmp_path / "photos"


def run_all(folder: Path, *commands: tuple[str, ...]) -> None:
    environment = os.environ | {"FDCNET_CACHE": str(folder / "cache")}
    words = [sys.executable, str(SIMULATION), json.dumps(commands)]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("line", ["x.double()", "x + torch.ones(2)", "x.numpy()"])
def test_the_simulated_device_has_rules(line: str, tmp_path: Path) -> None:
    program = f"import apple, torch; x = torch.ones(2).to(apple.DEVICE); (x + 1).cpu().numpy(); print('ready'); {line}"
    environment = os.environ | {"PYTHONPATH": str(SIMULATION.parent)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600)
    assert done.stdout == "ready\n"
    assert done.returncode == 1


def test_lessons_and_predictions_are_those_of_the_cpu(photos: Path) -> None:
    home = photos.parent
    for device in ("mps", "cpu"):
        run_all(
            home,
            ("learn", device, "first", "--backbone", "tiny", "--light", "--epochs", "1", *CHANGES, "--device", device),
            ("learn", device, "second", "--epochs", "1", "--device", device),
            ("predict", device, "photos/test", "--json", f"{device}.json", "--device", device),
            ("label", "first", "--model", device, "--out", f"{device}-boxes", "--csv", "--device", device),
        )
    on_mps, on_cpu = (json.loads((home / f"{device}.json").read_bytes()) for device in ("mps", "cpu"))
    assert len(on_mps) == 8
    cell = 40 / 32 + 0.01  # a value of the map at the threshold may be rounded to either side
    for found, expected in zip(on_mps, on_cpu, strict=True):
        assert (found["class"], found["box"]) == (expected["class"], pytest.approx(expected["box"], abs=cell))
        assert found["score"] == pytest.approx(expected["score"], abs=1e-3)
    assert (home / "mps-boxes" / "boxes.csv").read_text().count("\n") == 1 + 16


def test_training_has_the_results_of_the_cpu(photos: Path) -> None:
    options = ("--base", "2", "--step", "2", "--epochs", "1", "--backbone", "tiny", "--method", "fdcnet", *CHANGES)
    for device in ("mps", "cpu"):
        run_all(photos.parent, ("train", "photos", *options, "--out", device, "--device", device))
    on_mps, on_cpu = (json.loads((photos.parent / d / "results.json").read_bytes()) for d in ("mps", "cpu"))
    assert len(on_mps["tasks"]) == 2
    assert on_mps["tasks"] == on_cpu["tasks"]
