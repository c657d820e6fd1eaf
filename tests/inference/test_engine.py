"""ONNX Runtime as the engine: predictions as by PyTorch for every kind of model, and a cache that is safe to use."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fdcnet import Localizer, Prediction, learn
from fdcnet.cli import main
from fdcnet.config import Config
from fdcnet.data.cache import KEPT
from fdcnet.data.photo import Photo
from fdcnet.data.records import Dataset
from fdcnet.errors import UserError
from fdcnet.inference import engine, onnx_graph
from fdcnet.inference.engine import OnnxPart, check_engine, use_onnx
from fdcnet.inference.onnx_graph import ExportDiffers
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State
from fdcnet.models.discriminant import Discriminant, Layer
from fdcnet.models.drift import DriftSettings, add_drift
from fdcnet.models.network import new_network
from fdcnet.models.pairs import mix
from fdcnet.store.bundle import load_bundle, save_bundle
from fdcnet.teaching.label_boxes import box_photos
from fdcnet.teaching.label_photos import KnownPhoto

Make = Callable[..., Config]
TRUNK = {"backbone", "classifier.tail", "classifier.hidden"}


@pytest.fixture(scope="module")
def photos(taught: Path) -> list[Path]:
    return sorted((taught / "photos" / "test").rglob("*.jpg"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("FDCNET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise AssertionError("exported again")

    monkeypatch.setattr(engine, "_export", refuse)


def same(first: Prediction, second: Prediction) -> bool:
    return (
        same_scores(first, second)
        and np.allclose(first.heat, second.heat, atol=1e-3)
        and np.allclose(first.boxes_xyxy, second.boxes_xyxy, atol=1)
    )


def same_scores(first: Prediction, second: Prediction) -> bool:
    (names, scores), (other_names, other_scores) = (
        zip(*((entry.class_name, entry.score) for entry in prediction.top), strict=True)
        for prediction in (first, second)
    )
    return (
        names == other_names and np.allclose(scores, other_scores, atol=1e-4) and first.unfamiliar == second.unfamiliar
    )


def exported_parts(localizer: Localizer) -> set[str]:
    return {name for name, part in localizer.state.network.named_modules() if isinstance(part, OnnxPart)}


def make_model(path: Path, config: Config) -> State:
    """Three classes in two tasks, with random weights that tell photos apart."""
    network = new_network(config.model, 0)
    network.grow(3)
    if config.method == "aanets":
        mix(network)
    if config.method == "fdcnet":
        add_drift(network, 2, config.section(DriftSettings))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim > 1:
                weight.normal_(std=(2 / weight[0].numel()) ** 0.5, generator=generator)
        network.classifier.output.weight *= 20
    state = State(config, network.eval(), ExemplarMemory(0), ["a", "b", "c"], [2, 1])
    save_bundle(state, path)
    return state


def add_discriminant(path: Path, state: State, photos: list[Path], layer: Layer) -> None:
    """Half of the photos are farther away than it allows."""
    localizer = Localizer(state, "cpu")
    images = localizer.as_input([Photo(photo).decode(localizer.side)[0] for photo in photos])
    with torch.inference_mode():
        features = state.network(images, maps=False).pooled(layer)
    state.discriminant = Discriminant(features.shape[1], layer=layer)
    state.discriminant.add(features, torch.arange(len(photos)) % 3)
    distances = state.discriminant.nearest_distance(features).sort().values
    middle = len(photos) // 2
    state.discriminant.set_calibration(20.0, float(distances[middle - 1 : middle + 1].mean()))
    save_bundle(state, path)


KINDS: dict[str, tuple[Layer | None, set[str]]] = {
    "baseline": (None, set()),
    "rebalancing": (None, set()),  # cosine scores
    "aanets": (None, set()),  # two branches
    "fdcnet": (None, {"drift.class_drift", "drift.loc_drift"}),
    "fdcnet drift.classes=false drift.place=after": (None, {"drift.loc_drift"}),
    "fdcnet drift.maps=false": ("both", {"drift.class_drift"}),
    "slda": ("tail", set()),
}
"""Method and settings -> the features of its closed-form classifier, and the parts besides the trunk"""


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_those_of_pytorch(kind: str, small_config: Make, photos: list[Path], tmp_path: Path) -> None:
    layer, parts = KINDS[kind]
    state = make_model(tmp_path / "model", small_config(*kind.split()))
    if layer:
        add_discriminant(tmp_path / "model", state, photos, layer)
    plain, fast = (Localizer.load(tmp_path / "model", "cpu", engine) for engine in ("torch", "onnx"))
    assert exported_parts(plain) == set() and exported_parts(fast) == TRUNK | parts
    expected = plain.predict(photos)
    assert all(map(same, fast.predict(photos), expected))
    assert all(same(fast.predict(photo), prediction) for photo, prediction in zip(photos, expected, strict=True))
    for name in plain.classes:
        assert same(fast.predict(photos[0], class_name=name), plain.predict(photos[0], class_name=name))
    assert {prediction.unfamiliar for prediction in expected} == ({True, False} if layer else {False})


def test_a_trained_model_gives_the_same_predictions(taught: Path, photos: list[Path]) -> None:
    plain, fast = (Localizer.load(taught / "run" / "model", "cpu", engine) for engine in ("torch", "onnx"))
    assert all(map(same, fast.predict_many(photos, batch_size=3), plain.predict(photos)))


def test_photos_of_other_sizes_are_computed_by_pytorch(taught: Path, photos: list[Path]) -> None:
    """`label` also looks at enlarged photos."""
    plain, fast = (Localizer.load(taught / "run" / "model", "cpu", engine) for engine in ("torch", "onnx"))
    known = [KnownPhoto(photo, f"{i}.jpg", (plain.classes[0],)) for i, photo in enumerate(photos)]
    boxes, expected = (
        [photo.annotations[0].box_xyxy for photo in box_photos(localizer, known, lambda name, reason: None)]
        for localizer in (fast, plain)
    )
    assert np.allclose(boxes, expected, atol=1)


def test_a_model_is_exported_once(cache: Path, small_config: Make, tmp_path: Path, request: Any) -> None:
    make_model(tmp_path / "model", small_config("baseline"))
    Localizer.load(tmp_path / "model", "cpu", "onnx")
    files = sorted(cache.iterdir())
    assert len(files) == len(TRUNK) and {file.suffix for file in files} == {KEPT}
    assert not [path for path in (tmp_path / "model").rglob("*") if path.suffix in (".onnx", KEPT)]

    content = files[0].read_bytes()
    middle = len(content) // 2
    files[0].write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    assert not use_onnx(load_bundle(tmp_path / "model"), export=False)
    Localizer.load(tmp_path / "model", "cpu", "onnx")  # exports the damaged one again

    request.getfixturevalue("no_export")
    assert exported_parts(Localizer.load(tmp_path / "model", "cpu", "onnx")) == TRUNK
    make_model(tmp_path / "other", small_config("baseline", "model.feature_relu=false"))  # the same weights
    with pytest.raises(AssertionError, match="exported again"):
        Localizer.load(tmp_path / "other", "cpu", "onnx")


def test_a_light_lesson_needs_no_new_export(cache: Path, small_dataset: Dataset, tmp_path: Path, request: Any) -> None:
    first, second = (
        replace(small_dataset, classes=names, train=tuple(r for r in small_dataset.train if r.label in names))
        for names in (small_dataset.classes[:2], small_dataset.classes[2:])
    )
    small = ("data.size=40", "data.crop=32", "model.head_width=16", "train.batch_size=4")
    learn(tmp_path / "model", first, full=False, epochs=1, device="cpu", backbone="tiny", overrides=small)
    Localizer.load(tmp_path / "model", "cpu", "onnx")
    request.getfixturevalue("no_export")
    learn(tmp_path / "model", second, full=False, epochs=1, device="cpu")
    plain, fast = (Localizer.load(tmp_path / "model", "cpu", engine) for engine in ("torch", "onnx"))
    assert len(fast.classes) == 4
    photos = [record.path for record in small_dataset.test]
    assert all(map(same_scores, fast.predict(photos), plain.predict(photos)))  # the masks are flat after one epoch


def test_a_cache_that_is_too_small_keeps_nothing(
    cache: Path, small_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDCNET_CACHE_GB", "0")
    make_model(tmp_path / "model", small_config("baseline"))
    assert exported_parts(Localizer.load(tmp_path / "model", "cpu", "onnx")) == TRUNK
    assert list(cache.iterdir()) == []


def test_a_graph_that_differs_is_not_used(
    cache: Path, small_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "TOLERANCE", -1.0)
    make_model(tmp_path / "model", small_config("baseline"))
    with pytest.raises(ExportDiffers, match="Use the engine torch"):
        Localizer.load(tmp_path / "model", "cpu", "onnx")
    assert not cache.exists()


def test_wrong_engines_are_refused(
    taught: Path, photos: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="There is no engine 'tensorrt'"):
        Localizer.load(taught / "run" / "model", engine="tensorrt")
    with pytest.raises(UserError, match="computes on the CPU, not on cuda"):
        check_engine("onnx", torch.device("cuda"))
    monkeypatch.setattr(onnx_graph.importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else name)
    command = ["fdcnet", "predict", str(taught / "run" / "model"), str(photos[0]), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [*command, "--engine", "onnx"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err == (
        "Error: ONNX needs the package onnxruntime, which is not installed.\nInstall it: pip install 'fdcnet[onnx]'\n"
    )
