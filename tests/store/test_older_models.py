"""Models and a run folder that commit 1ac9fca wrote, before there were checksums and closed-form classifiers.

The archive was made with the tiny backbone on generated photos. Small weights are set to zero so that it compresses;
predictions.json is what that commit predicts with them.
"""

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fdcnet.cli import app
from fdcnet.config import Config
from fdcnet.data.records import Dataset
from fdcnet.data.synthetic import make_synthetic
from fdcnet.errors import UserError
from fdcnet.inference.localizer import Localizer
from fdcnet.runtime.listener import Listener
from fdcnet.store.bundle import load_bundle
from fdcnet.store.verify import verify
from fdcnet.store.versions import rollback, versions
from fdcnet.teaching.learn import learn
from fdcnet.training.run import train

ARCHIVE = Path(__file__).parent / "models-1ac9fca.tar.xz"
MODELS = ("run/model", "aanets", "foster", "taught")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """run/: a run of fdcnet. aanets/ and foster/: models of such runs. taught/: made by `fdcnet learn`."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path / "old", filter="data")
    return tmp_path / "old"


@pytest.fixture
def new_photos(tmp_path: Path) -> Path:
    """A class that the models do not know."""
    make_synthetic(tmp_path / "six", num_classes=6, train_per_class=4, test_per_class=1, size=40)
    shutil.copytree(tmp_path / "six" / "train" / "checked square", tmp_path / "new" / "checked square")
    return tmp_path / "new"


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_what_they_were(name: str, old: Path) -> None:
    photos = sorted((old / "taught/versions/1/memory/images").iterdir())[::6]
    expected = json.loads((old / "predictions.json").read_text())[name]
    found = [prediction.to_dict() for prediction in Localizer.load(old / name, "cpu").predict(photos)]
    assert [facts["class"] for facts in found] == [facts["class"] for facts in expected]
    assert [facts["score"] for facts in found] == pytest.approx([facts["score"] for facts in expected], abs=2e-4)
    assert [facts["box"] for facts in found] == [facts["box"] for facts in expected]


@pytest.mark.parametrize("name", MODELS)
def test_older_models_are_verified_and_learn_on(name: str, old: Path, new_photos: Path) -> None:
    model = old / name
    before = load_bundle(model)
    report = learn(model, new_photos, epochs=1, device="cpu", listener=Listener())
    after = load_bundle(model)
    assert report.added == ("checked square",) and after.classes == [*before.classes, "checked square"]
    assert [version.has_checksums for version in verify(model)] == [False, True]
    assert [version.added for version in versions(model)][1] == ("checked square",)
    assert "checked square" in run("history", model)
    assert rollback(model).classes == tuple(before.classes)


def test_an_older_model_can_be_evaluated(old: Path, small_dataset: Dataset, tmp_path: Path) -> None:
    assert set(small_dataset.classes) == set(load_bundle(old / "run" / "model").classes)
    shown = run("evaluate", old / "run" / "model", tmp_path / "photos", "--device", "cpu")
    assert "classifier head" in shown


def test_an_older_run_can_be_reported_and_compared(old: Path, tmp_path: Path) -> None:
    run("report", old / "run", "-o", tmp_path / "page.html")
    shutil.copytree(old / "run", old / "again")
    run("compare", old / "run", old / "again", "-o", tmp_path / "comparison")
    average = json.loads((old / "run" / "results.json").read_text())["average"]["top1_loc"]
    assert average == 31.25
    assert "31.2" in (tmp_path / "page.html").read_text()
    assert "31.2" in (tmp_path / "comparison" / "compare.html").read_text()


def test_settings_that_did_not_exist_do_not_prevent_resuming(
    small_dataset: Dataset, small_config: Callable[..., Config], tmp_path: Path
) -> None:
    """A stopped run, with the settings in run.json as the older version wrote them."""

    class Stop(Listener):
        def task_ended(self, task: Any, summary: dict[str, Any]) -> None:
            raise KeyboardInterrupt

    older = (
        "train.allowed_background=1",
        "model.sharing=0",
        "model.localizer_start=random",
        "lda.old_classes=exemplars",
    )
    settings = small_config("finetune", *older, "protocols.0.classifier=head", "protocols.1.classifier=head")
    with pytest.raises(KeyboardInterrupt):
        train(settings, small_dataset, tmp_path / "run", listener=Stop())
    file = tmp_path / "run" / "run.json"
    facts = json.loads(file.read_text())
    for section, key in (("train", "allowed_background"), ("model", "sharing"), ("model", "localizer_start")):
        del facts["config"][section][key]
    for protocol in facts["config"]["protocols"]:
        del protocol["classifier"]
    del facts["config"]["lda"]
    file.write_text(json.dumps(facts))
    with pytest.raises(UserError, match=r"different settings: train\.allowed_background was 1\.0, is 0\.5\."):
        train(small_config("finetune", *older[1:]), small_dataset, tmp_path / "run", resume=True)
    assert len(train(settings, small_dataset, tmp_path / "run", resume=True)["tasks"]) == 2
