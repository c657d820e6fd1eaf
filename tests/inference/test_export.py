"""Compares the exported model with PyTorch, and a copy without photos with its original."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pillow_heif
import pytest
import torch
from PIL import Image

from fdcnet import Localizer
from fdcnet.config import Config
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Dataset
from fdcnet.data.stream import make_stream
from fdcnet.errors import UserError
from fdcnet.inference import export, onnx_graph
from fdcnet.inference.export import export_onnx, export_without_memory
from fdcnet.inference.onnx_graph import ExportDiffers
from fdcnet.memory import ExemplarMemory
from fdcnet.methods import find_method
from fdcnet.methods.base import State
from fdcnet.models.backbones import BACKBONES
from fdcnet.models.drift import DriftSettings, add_drift
from fdcnet.models.network import new_network
from fdcnet.models.pairs import mix
from fdcnet.runtime.runtime import Runtime
from fdcnet.store.bundle import load_bundle, save_bundle
from fdcnet.training.task import learn_task

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def exported(taught: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("onnx") / "model.onnx"
    check = export_onnx(taught / "run" / "model", file)
    assert check.photos == "8 photos from its memory"
    assert max(check.scores, check.maps) < 1e-5
    assert [path.name for path in file.parent.iterdir()] == ["model.onnx"]
    return file


def test_onnx_agrees_with_predict(taught: Path, exported: Path) -> None:
    localizer = Localizer.load(taught / "run" / "model", device="cpu")
    session = onnxruntime.InferenceSession(str(exported))
    photos = sorted((taught / "photos" / "test").rglob("*.jpg"))[:5]
    squares = [Image.open(photo).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR) for photo in photos]
    for count in (1, 3, 5):
        scores, maps = session.run(["scores", "maps"], {"photos": np.stack([np.asarray(s) for s in squares[:count]])})
        assert scores.shape == (count, 4)
        assert maps.shape == (count, 4, 8, 8)
    for row, photo in enumerate(photos):
        found = localizer.predict(photo)
        best = int(scores[row].argmax())
        assert found.class_name == localizer.classes[best]
        assert found.score == pytest.approx(float(scores[row, best]), abs=1e-5)
        heat = maps[row, best]
        assert np.allclose((heat - heat.min()) / np.ptp(heat), found.heat, atol=1e-3)


def test_onnx_is_valid_and_has_metadata(exported: Path) -> None:
    model = onnx.load(str(exported))
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} == {""}  # only ONNX's own operators
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(facts["classes"]) == ["ringed disc", "dotted square", "checked triangle", "striped star"]
    assert json.loads(facts["tasks"]) == [1, 1, 2, 2]
    assert json.loads(facts["preprocessing"])["size"] == [32, 32]
    assert json.loads(facts["postprocessing"])["threshold"] == 0.5
    assert str(ROOT) not in str(model)


EXAMPLE = ROOT / "examples" / "onnx_predict.py"
KINDS: dict[str, Callable[[Image.Image, Path], None]] = {
    "jpg": lambda photo, path: photo.save(path, "JPEG", quality=95),
    "16-bit png": lambda photo, path: Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 256 + 99).save(
        path, "PNG"
    ),  # neither the low byte alone nor a clipped value gives the photo
    "heic": lambda photo, path: pillow_heif.from_pillow(photo).save(path, quality=95),
    "transparent png": lambda photo, path: half_transparent(photo).save(path, "PNG"),
    "palette gif": lambda photo, path: photo.quantize(64).save(path, "GIF"),
    "cmyk jpg": lambda photo, path: photo.convert("CMYK").save(path, "JPEG", quality=95),
}


def half_transparent(photo: Image.Image) -> Image.Image:
    photo = photo.convert("RGBA")
    photo.putalpha(Image.linear_gradient("L").resize(photo.size))
    return photo


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_agrees_with_predict_and_needs_no_torch(
    kind: str, taught: Path, exported: Path, tmp_path: Path
) -> None:
    photo = tmp_path / "photo"
    KINDS[kind](Image.open(sorted((taught / "photos" / "test").rglob("*.jpg"))[0]), photo)
    code = f"import sys, runpy; sys.modules['torch'] = sys.modules['fdcnet'] = None; runpy.run_path({str(EXAMPLE)!r})"
    done = subprocess.run([sys.executable, "-c", code, exported, photo], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = Localizer.load(taught / "run" / "model", device="cpu").predict(photo)
    name, _, box = done.stdout.strip().partition("%")
    assert name == f"{found.class_name} {100 * found.score:.0f}"
    assert np.abs(np.array(json.loads(box)) - np.array(found.box_xyxy)).max() <= 2


def test_the_example_is_short_and_shows_its_usage() -> None:
    assert len([line for line in EXAMPLE.read_text().splitlines() if line and not line.startswith('"""')]) <= 36
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("Usage: python onnx_predict.py MODEL.onnx PHOTO")


@pytest.mark.parametrize("damage", ["missing", "empty", "text", "truncated", "swapped"])
def test_the_example_says_in_one_line_what_it_cannot_read(
    damage: str, taught: Path, exported: Path, tmp_path: Path
) -> None:
    photo = sorted((taught / "photos" / "test").rglob("*.jpg"))[0]
    for place, (good, problem) in enumerate(((exported, "cannot be read, or"), (photo, "cannot be read as a photo"))):
        bad = {"missing": tmp_path / "missing", "swapped": photo if place == 0 else exported}.get(damage)
        if bad is None:
            bad = tmp_path / f"bad{place}"
            bad.write_bytes({"empty": b"", "text": b"hello"}.get(damage, good.read_bytes()[: good.stat().st_size // 2]))
        arguments = [bad if number == place else path for number, path in enumerate((exported, photo))]
        done = subprocess.run([sys.executable, EXAMPLE, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and done.stdout == ""
        [line] = done.stderr.splitlines()
        assert line.startswith(f"{bad} {problem}"), line


@pytest.mark.parametrize(
    ("backbone", "place"), [*((name, "inside") for name in BACKBONES if name != "tiny"), ("tiny", "after")]
)
def test_every_backbone_exports_with_its_compensation(
    backbone: str, place: str, small_config: Callable[..., Config], tmp_path: Path
) -> None:
    config = small_config(
        "fdcnet", f"model.backbone={backbone}", f"drift.place={place}", "data.crop=64", "data.size=72"
    )
    network = new_network(config.model, 0)
    network.grow(3)
    add_drift(network, 2, DriftSettings())
    assert network.drift is not None
    for module in (network.drift.class_drift, network.drift.loc_drift):
        torch.nn.init.normal_(module[-1].weight, std=0.02)  # type: ignore[arg-type]
    save_bundle(State(config, network.eval(), ExemplarMemory(0), ["a", "b", "c"], [2, 1]), tmp_path / "model")
    check = export_onnx(tmp_path / "model", tmp_path / "model.onnx")
    assert check.photos == "generated photos, because the model stores none"
    assert max(check.scores, check.maps) < 1e-3


def test_two_branches_and_cosine_scores_export(small_config: Callable[..., Config], tmp_path: Path) -> None:
    config = small_config("aanets", "model.classifier=cosine", "data.crop=64", "data.size=72")
    network = new_network(config.model, 0)
    network.grow(3)
    mix(network)
    save_bundle(State(config, network.eval(), ExemplarMemory(0), ["a", "b", "c"], [2, 1]), tmp_path / "model")
    check = export_onnx(tmp_path / "model", tmp_path / "model.onnx")
    assert max(check.scores, check.maps) < 1e-4


def test_a_model_that_differs_is_not_written(taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    (tmp_path / "model.onnx").write_text("old")
    with pytest.raises(ExportDiffers, match="Nothing was written"):
        export_onnx(taught / "run" / "model", tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_missing_package_is_named(taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_graph.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"fdcnet\[onnx\]"):
        export_onnx(taught / "run" / "model", tmp_path / "model.onnx")


def test_photos_to_check_with_can_be_given(taught: Path, tmp_path: Path) -> None:
    check = export_onnx(taught / "run" / "model", tmp_path / "model.onnx", taught / "photos" / "test")
    assert (check.num_photos, check.photos) == (8, f"8 photos from {taught / 'photos' / 'test'}")
    with pytest.raises(UserError, match="no readable photos"):
        export_onnx(taught / "run" / "model", tmp_path / "model.onnx", tmp_path)


def test_a_copy_without_photos_predicts_the_same(taught: Path, tmp_path: Path) -> None:
    export_without_memory(taught / "run" / "model", tmp_path / "shared")
    assert list((tmp_path / "shared" / "memory" / "images").iterdir()) == []
    assert str(taught) not in (tmp_path / "shared" / "fdcnet.json").read_text()
    state = load_bundle(tmp_path / "shared")
    assert (len(state.memory), state.memory.budget) == (0, 9)
    photo = sorted((taught / "photos" / "test").rglob("*.jpg"))[0]
    before, after = (
        Localizer.load(model, "cpu").predict(photo) for model in (taught / "run" / "model", tmp_path / "shared")
    )
    assert before.to_dict(heat=True) == after.to_dict(heat=True)
    with pytest.raises(UserError, match="already exists"):
        export_without_memory(taught / "run" / "model", tmp_path / "shared")


def test_a_model_whose_replacement_was_killed_can_be_copied(taught: Path, tmp_path: Path) -> None:
    shutil.copytree(taught / "run" / "model", tmp_path / "model.old")
    export_without_memory(tmp_path / "model", tmp_path / "shared")
    assert load_bundle(tmp_path / "shared").classes == load_bundle(taught / "run" / "model").classes


def test_a_copy_without_photos_can_learn_more(taught: Path, tmp_path: Path, small_dataset: Dataset) -> None:
    export_without_memory(taught / "run" / "model", tmp_path / "shared")
    state = load_bundle(tmp_path / "shared")
    *_, task = make_stream(small_dataset, base_classes=2, step_classes=2)
    runtime = Runtime.of(state.config)
    state.classes, state.task_sizes = [f"old {i}" for i in range(4)], [2, 2]
    new = PixelCache.build(task.train, state.config.data.size, None, runtime.device)
    later = replace(task, number=3, first_label=4)
    learn_task(state, find_method("fdcnet")(), later, new, runtime)
    assert len(state.classes) == 6
    assert set(state.memory.pixels) == {4, 5}
