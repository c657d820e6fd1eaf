"""Lessons in closed form: nothing is trained or forgotten, and the order of lessons does not matter."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fdcnet.data.synthetic import make_synthetic
from fdcnet.errors import UserError
from fdcnet.inference.export import export_onnx, export_without_memory
from fdcnet.inference.localizer import Localizer
from fdcnet.methods.base import State
from fdcnet.models.discriminant import Discriminant
from fdcnet.runtime.listener import Listener
from fdcnet.store.bundle import load_bundle, save_bundle
from fdcnet.store.versions import rollback
from fdcnet.teaching.learn import LearnReport, learn

SMALL = ("data.size=40", "data.crop=32", "model.head_width=16", "train.batch_size=4")


class Notes(Listener):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of classes, eight photos each: first/ has two, one/ and two/ one each, both/ these two, all/ all four."""
    root = tmp_path_factory.mktemp("photos")
    dataset = make_synthetic(root / "made", num_classes=4, train_per_class=8, test_per_class=4, size=40)
    parts = {"first": {0, 1}, "one": {2}, "two": {3}, "both": {2, 3}, "all": {0, 1, 2, 3}}
    for part, numbers in parts.items():
        for number in numbers:
            shutil.copytree(root / "made" / "train" / dataset.classes[number], root / part / dataset.classes[number])
    return root


@pytest.fixture(scope="module")
def made(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "model"
    first_lesson(path, photos / "first")
    return path


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "model"))


def first_lesson(path: Path, source: Path) -> LearnReport:
    return learn(path, source, full=False, backbone="tiny", epochs=1, holdout=0, overrides=SMALL, device="cpu")


def lesson(path: Path, source: Path, **options: object) -> LearnReport:
    return learn(path, source, **({"holdout": 0, "device": "cpu"} | options))  # type: ignore[arg-type]


def without_statistics(model: Path, target: Path) -> Path:
    """As an earlier version of the program wrote it."""
    state = load_bundle(model)
    state.discriminant = None
    save_bundle(state, target)
    return target


def statistics(path: Path) -> tuple[State, Discriminant]:
    state = load_bundle(path)
    assert state.discriminant is not None
    return state, state.discriminant


def assert_same(first: Path, second: Path, photos: Path) -> None:
    """Equal means, covariance and predictions, whatever the order of the classes."""
    (state, found), (other, expected) = statistics(first), statistics(second)
    order = [other.classes.index(name) for name in state.classes]
    torch.testing.assert_close(found.counts, expected.counts[order])
    torch.testing.assert_close(found.solve().means, expected.solve().means[order])
    torch.testing.assert_close(found.covariance(), expected.covariance())
    files = sorted((photos / "made" / "test").rglob("*.jpg"))
    for one, same in zip(*(Localizer.load(path, "cpu").predict(files) for path in (first, second)), strict=True):
        assert one.class_name == same.class_name
        assert one.top[0].class_name == same.top[0].class_name


# The promise


def test_lessons_in_any_order_equal_everything_at_once(model: Path, photos: Path, tmp_path: Path) -> None:
    turned, together = (Path(shutil.copytree(model, tmp_path / name)) for name in ("turned", "together"))
    for path, parts in ((model, ("one", "two")), (turned, ("two", "one")), (together, ("both",))):
        for part in parts:
            assert not lesson(path, photos / part).trained
    assert_same(model, turned, photos)
    assert_same(model, together, photos)
    first_lesson(tmp_path / "at once", photos / "all")
    assert_same(model, tmp_path / "at once", photos)


def test_further_photos_in_a_later_lesson_equal_everything_at_once(model: Path, photos: Path, tmp_path: Path) -> None:
    for start, stop in ((0, 4), (4, 8)):
        for folder in (photos / "one").iterdir():
            (tmp_path / str(start) / folder.name).mkdir(parents=True)
            for file in sorted(folder.iterdir())[start:stop]:
                shutil.copy(file, tmp_path / str(start) / folder.name)
    whole = Path(shutil.copytree(model, tmp_path / "whole"))
    lesson(whole, photos / "one")
    lesson(model, tmp_path / "0")
    report = lesson(model, tmp_path / "4", more=True)
    assert not report.trained and report.added == () and load_bundle(model).task_sizes == [2, 1]
    assert_same(model, whole, photos)
    names = [sorted(load_bundle(path).memory.names[2]) for path in (model, whole)]
    assert len(names[0]) == 8 and names[0] == names[1]


def test_nothing_old_changes(model: Path, photos: Path) -> None:
    before = load_bundle(model).network.state_dict()
    report = lesson(model, photos / "both")
    state = load_bundle(model)
    assert not report.trained and report.light and report.num_classes == 4
    after = state.network.state_dict()
    for name, value in before.items():
        assert torch.equal(after[name][: len(value)] if value.dim() else after[name], value), name
    torch.testing.assert_close(after["localizer.weight"][3], before["localizer.weight"].mean(0))
    assert {label: len(names) for label, names in state.memory.names.items()} == {0: 8, 1: 8, 2: 8, 3: 8}


def test_the_statistics_decide_the_class(model: Path, photos: Path) -> None:
    """In predict and in ONNX; the head has never seen the new classes."""
    lesson(model, photos / "both")
    localizer, (state, found) = Localizer.load(model, "cpu"), statistics(model)
    file = sorted((photos / "made" / "test").rglob("*.jpg"))[-1]
    prediction = localizer.predict(file)
    pixels = torch.from_numpy(prediction.photo.decode(32)[0].copy())[None]
    lineage = state.network.lineage
    images = (pixels.permute(0, 3, 1, 2) - torch.tensor(lineage.mean).view(3, 1, 1)) / torch.tensor(lineage.std).view(
        3, 1, 1
    )
    with torch.no_grad():
        features = state.network.classifier.tail(state.network.backbone(images)).mean((2, 3))
    probabilities = found.scores(features).softmax(1)[0]
    assert prediction.class_name == state.classes[int(probabilities.argmax())]
    assert prediction.score == pytest.approx(float(probabilities.max()), abs=1e-4)
    pytest.importorskip("onnxscript", reason="needs the extra `onnx`")
    assert export_onnx(model, model.parent / "model.onnx").scores < 1e-3


# Models of all kinds


def test_without_its_photos_a_model_learns_on_and_forgets_nothing(model: Path, photos: Path, tmp_path: Path) -> None:
    export_without_memory(model, tmp_path / "shared")
    for path in (model, tmp_path / "shared"):
        assert not lesson(path, photos / "both").trained
    assert set(load_bundle(tmp_path / "shared").memory.pixels) == {2, 3}
    assert_same(tmp_path / "shared", model, photos)


def test_rollback_takes_the_statistics_back(model: Path, photos: Path) -> None:
    before = statistics(model)[1]
    lesson(model, photos / "both")
    rollback(model)
    assert torch.equal(statistics(model)[1].scatter, before.scatter)
    lesson(model, photos / "one")
    assert statistics(model)[1].counts.tolist() == [8, 8, 8]


def test_an_older_model_gets_statistics_from_its_exemplars(made: Path, photos: Path, tmp_path: Path) -> None:
    model, notes = without_statistics(made, tmp_path / "older"), Notes()
    assert load_bundle(model).discriminant is None
    assert not lesson(model, photos / "one", listener=notes).trained
    assert any("computed from 16 kept photos" in note for note in notes.texts)
    assert statistics(model)[1].counts.tolist() == [8, 8, 8]


def test_without_statistics_and_photos_it_trains(made: Path, photos: Path, tmp_path: Path) -> None:
    export_without_memory(without_statistics(made, tmp_path / "older"), tmp_path / "shared")
    notes = Notes()
    report = lesson(tmp_path / "shared", photos / "one", listener=notes, overrides=["train.step_epochs=1"])
    assert report.trained and load_bundle(tmp_path / "shared").discriminant is None
    assert any("expect it to forget" in note for note in notes.texts)


def test_refining_trains_the_heads_and_counts_the_photos(model: Path, photos: Path, tmp_path: Path) -> None:
    before, plain = load_bundle(model).network.localizer.weight, Path(shutil.copytree(model, tmp_path / "plain"))
    assert lesson(model, photos / "one", refine=True, overrides=["train.step_epochs=1"]).trained
    lesson(plain, photos / "one")
    assert not torch.equal(load_bundle(model).network.localizer.weight[:2], before)
    assert_same(model, plain, photos)


def test_full_training_withdraws_the_promise(model: Path, photos: Path) -> None:
    notes = Notes()
    report = lesson(model, photos / "one", full=True, epochs=1, memory=5, listener=notes)
    assert report.trained and not report.light
    assert any("from the kept photos alone" in note for note in notes.texts)
    assert statistics(model)[1].counts.tolist() == [5, 5, 5]


# Photos and damage


def test_a_photo_is_counted_once(photos: Path, tmp_path: Path) -> None:
    """Even if the memory has dropped it."""
    path = tmp_path / "model"
    first_lesson(path, photos / "first")
    lesson(path, photos / "one", memory=2)
    with pytest.raises(UserError, match="None of the 16 photos is new"):
        lesson(path, photos / "first", more=True)


def test_a_white_picture_is_unfamiliar(model: Path, photos: Path) -> None:
    localizer = Localizer.load(model, "cpu")
    known = localizer.predict(sorted((photos / "first").rglob("*.jpg")))
    white = localizer.predict(np.full((40, 40, 3), 255, np.uint8))
    assert white.unfamiliar and white.to_dict()["unfamiliar"]
    assert sum(prediction.unfamiliar for prediction in known) <= 2


@pytest.mark.parametrize("damage", ["classes", "nan"])
def test_statistics_that_do_not_fit_are_refused(made: Path, damage: str, tmp_path: Path) -> None:
    state, found = statistics(made)
    if damage == "classes":
        found.add(found.sums[:1], torch.tensor([2]))
    else:
        found.sums[0, 0] = torch.nan
    save_bundle(state, tmp_path / "model")
    with pytest.raises(UserError, match=r"discriminant\.safetensors is damaged"):
        load_bundle(tmp_path / "model")
