"""A report about a model of `fdcnet learn`: evaluated on its held-out photos after each lesson that is kept."""

import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fdcnet.data.records import Dataset
from fdcnet.data.synthetic import make_synthetic
from fdcnet.errors import UserError
from fdcnet.report import write_report
from fdcnet.report.learned import as_run_folders
from fdcnet.report.runs import load
from fdcnet.store.bundle import load_bundle, save_bundle
from fdcnet.store.record import RunRecord
from fdcnet.teaching.learn import learn

TINY = (
    *("data.size=36", "data.crop=32", "model.weights=none", "model.head_width=16", "train.batch_size=16"),
    *("train.loc_warmup=0", "protocols.0.crops=1"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two lessons, of two classes and one class."""
    folder = tmp_path_factory.mktemp("learned")
    photos = make_synthetic(folder / "photos", 3, train_per_class=10, test_per_class=1, size=36)
    for names in (photos.classes[:2], photos.classes[2:]):
        own = tuple(record for record in photos.train if record.label in names)
        learn(
            folder / "shapes", Dataset("shapes", names, own), full=True, backbone=None if names[1:] == () else "tiny",
            epochs=1, holdout=0.4, device="cpu", overrides=TINY if names[1:] else (),
        )  # fmt: skip
    return folder / "shapes"


def words(element: ElementTree.Element | None) -> str:
    assert element is not None
    return " ".join("".join(element.itertext()).split())


def test_the_page_shows_lessons_tasks_and_photos(model: Path, tmp_path: Path) -> None:
    page = ElementTree.fromstring(write_report([model], tmp_path / "report.html").read_text(encoding="utf-8"))
    sections = [found.get("id") for found in page.iter("section")]
    assert sections == ["result", "lessons", "tasks", "photos", "classes", "boxes", "numbers", "making"]
    assert words(page.find(".//h1")) == "3 classes learned in 2 tasks"
    assert words(page.find(".//article[@class='card']/h3")) == "shapes"
    versions = [words(row.find("th")) for row in page.findall(".//section[@id='lessons']//tbody/tr")]
    assert versions == ["1", "2 (current)"]
    assert len(page.findall(".//section[@id='classes']//table/tbody/tr")) == 3
    making = [words(name) for name in page.findall(".//section[@id='making']//dt")]
    assert "Evaluated" in making and "Time of all lessons" in making and "Started" not in making


def test_every_kept_version_is_evaluated_on_the_held_out_photos(model: Path) -> None:
    with as_run_folders([model], "cpu") as [folder]:
        [run] = load([folder])
        assert [task["num_classes"] for task in run.measured_tasks] == [2, 3]
        assert run.main["protocol"]["classifier"] == "head"  # which `auto` stands for here
        assert [len(row) for row in run.main["matrix"]["top1_cls"]] == [1, 2]
        assert run.table is not None and len(run.table) == 3 * 4  # 40 % of 10 photos of each class
        assert sorted(run.examples) == [1, 2]
        assert len(run.last_examples) == 12
    assert not folder.exists()


def test_without_earlier_versions_the_current_one_is_evaluated(model: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(model, tmp_path / "shapes"))
    shutil.rmtree(copy / "versions" / "1")
    with as_run_folders([copy], "cpu") as [folder]:
        [run] = load([folder])
        assert [task["num_classes"] for task in run.measured_tasks] == [3]
        assert run.main["learned_in"] == 2
        assert run.is_complete
    page = ElementTree.fromstring(write_report([copy], tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "unfinished" not in words(page.find(".//article[@class='card']"))


def test_models_of_the_same_name_are_told_apart_by_their_folders(model: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(model, tmp_path / "copies" / "shapes"))
    with as_run_folders([model, copy], "cpu") as folders:
        assert [run.label for run in load(folders)] == [f"shapes ({model.parent.name})", "shapes (copies)"]


def test_a_model_that_holds_out_no_photos(model: Path, tmp_path: Path) -> None:
    save_bundle(replace(load_bundle(model), held_out=None), tmp_path / "shapes")
    page = ElementTree.fromstring(write_report([tmp_path / "shapes"], tmp_path / "report.html").read_text("utf-8"))
    assert "holds out no photos, so it was not evaluated" in words(page.find(".//article[@class='card']"))


def test_other_folders_are_refused_with_what_can_be_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is neither a run nor a model") as raised:
        write_report([tmp_path], tmp_path / "report.html")
    assert "'fdcnet train'" in raised.value.remedy and "'fdcnet learn'" in raised.value.remedy
    with pytest.raises(UserError, match="nothing does not exist"):
        write_report([tmp_path / "nothing"], tmp_path / "report.html")


def test_a_model_in_a_run_folder_stands_for_its_run(model: Path, tmp_path: Path) -> None:
    RunRecord.create(tmp_path / "run", {})
    trained = tmp_path / "run" / "model"
    save_bundle(load_bundle(model), trained)
    with as_run_folders([trained, tmp_path / "run"]) as folders:
        assert folders == [tmp_path / "run"] * 2
