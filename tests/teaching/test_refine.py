"""Refining trains the boxes on the photos that a model keeps. How it names photos does not change."""

import shutil
from pathlib import Path

import pytest
import torch

from fdcnet.data.records import Dataset
from fdcnet.data.synthetic import make_synthetic
from fdcnet.errors import UserError
from fdcnet.inference.export import export_without_memory
from fdcnet.inference.localizer import Localizer
from fdcnet.store.bundle import load_bundle
from fdcnet.store.versions import rollback, versions
from fdcnet.teaching.cancel import Cancelled
from fdcnet.teaching.learn import learn
from fdcnet.teaching.refine import refine

SMALL = ("data.size=40", "data.crop=32", "model.head_width=16", "train.batch_size=4")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Dataset]:
    """A model that learned two classes, then a third one in one pass."""
    root = tmp_path_factory.mktemp("refine")
    photos = make_synthetic(root / "photos", num_classes=3, train_per_class=10, test_per_class=2, size=40)
    for names, options in (
        (photos.classes[:2], {"full": False, "backbone": "tiny", "epochs": 1, "overrides": SMALL}),
        (photos.classes[2:], {}),
    ):
        part = Dataset("part", names, tuple(record for record in photos.train if record.label in names))
        learn(root / "model", part, device="cpu", **options)  # type: ignore[arg-type]
    return root / "model", photos


@pytest.fixture
def model(made: tuple[Path, Dataset], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[0], tmp_path / "model"))


def test_boxes_change_and_classes_do_not(model: Path, made: tuple[Path, Dataset]) -> None:
    before, old = load_bundle(model), Localizer.load(model, "cpu")
    average = before.network.localizer.weight[:2].mean(0)
    torch.testing.assert_close(before.network.localizer.weight[2], average)
    report = refine(model, epochs=2, device="cpu")
    assert (report.version, report.added, report.num_classes, report.trained) == (3, (), 3, True)
    assert report.old_before is not None and report.old_before == report.old_after  # class accuracy

    after, new = load_bundle(model), Localizer.load(model, "cpu")
    assert not torch.equal(after.network.localizer.weight[2], after.network.localizer.weight[:2].mean(0))
    for record in made[1].test:
        one, other = old.predict(record.path), new.predict(record.path)
        assert (one.class_name, one.score) == (other.class_name, pytest.approx(other.score, abs=1e-6))
    assert after.task_sizes == before.task_sizes and after.config == before.config
    assert after.memory.names == before.memory.names
    assert [version.box_training for version in versions(model)] == ["", "", "boxes refined"]
    rollback(model)
    assert torch.equal(load_bundle(model).network.localizer.weight, before.network.localizer.weight)


def test_cancelling_leaves_the_model_unchanged(model: Path) -> None:
    with pytest.raises(Cancelled):
        refine(model, epochs=1, device="cpu", cancel=lambda: True)
    assert len(versions(model)) == 2


def test_what_cannot_be_refined(model: Path, taught: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not made by light lessons"):
        refine(taught / "run" / "model", device="cpu")
    export_without_memory(model, tmp_path / "shared")
    with pytest.raises(UserError, match="does not keep photos of all its classes"):
        refine(tmp_path / "shared", device="cpu")
