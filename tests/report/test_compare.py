"""A comparison shows the numbers of the results, and refuses what does not belong together."""

import csv
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from fdcnet.errors import UserError
from fdcnet.evaluation.incremental import drops
from fdcnet.inference import fonts
from fdcnet.report.comparable import differing_settings
from fdcnet.report.compare import compare, named_results, write_comparison
from fdcnet.report.photos import gallery_picture
from fdcnet.report.runs import all_results, load
from fdcnet.report.tables import comparison_table, narrow
from fdcnet.store.record import RunRecord, read_json, write_json


@pytest.fixture
def runs(finished_runs: list[Path], tmp_path: Path) -> list[Path]:
    """Copies that a test may change."""
    return [Path(shutil.copytree(run, tmp_path / run.name)) for run in finished_runs]


@pytest.fixture(scope="module")
def written(finished_runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    write_comparison(compare(finished_runs), folder)
    return folder


def change(run: Path, file: str, *keys: str, value: object) -> None:
    content = inner = read_json(run / file)
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    write_json(run / file, content)


def test_the_table_has_what_papers_print(finished_runs: list[Path]) -> None:
    table = comparison_table(named_results(compare(finished_runs)))
    assert table.header[:4] == ("Method", "Top-1 Loc average", "Top-1 Loc last", "Top-1 Loc forgetting")
    assert [row[0] for row in table.rows] == ["fdcnet", "finetune"]
    # fdcnet forgets (80 - 70.25 + 71.5 - 66) / 2 = 7.625 points of Top-1 Loc
    assert table.rows[0][3] == pytest.approx(7.625)
    assert len(narrow(table).columns) == 7
    assert "Top-1 Loc below joint" not in table.header


def test_all_files_are_written(written: Path) -> None:
    names = {path.name for path in written.iterdir()}
    assert names == {
        "compare.html", "compare.md", "compare.csv", "photos.png", "top1_loc.svg", "gt_known.svg",
        "forgetting-top1_loc.svg", "forgetting-gt_known.svg", "top1_cls.svg", "forgetting-top1_cls.svg",
    }  # fmt: skip
    rows = list(csv.DictReader((written / "compare.csv").open()))
    assert {row["Run"] for row in rows} == {"fdcnet", "finetune"}
    assert [row["After task"] for row in rows[:6]] == ["1", "2", "3", "average", "last", "forgetting"]
    assert (written / "compare.md").read_text().startswith("| Method | Top-1 Loc average |")


def test_what_was_measured_differently_is_said_of_that_run(runs: list[Path], tmp_path: Path) -> None:
    change(runs[0], "results.json", "protocol", "classifier", value="lda")
    page = ElementTree.fromstring(write_comparison(compare(runs), tmp_path / "out").read_text(encoding="utf-8"))
    told = " ".join("".join(page.find(".//section[@id='result']").itertext()).split())  # type: ignore[union-attr]
    assert told.count("It is right if its overlap") == 1
    lda = "The class is decided by a linear discriminant (LDA) on the features of the network."
    assert f"fdcnet: {lda}" in told and told.count(lda) == 1
    assert "finetune:" not in told


def test_figures_stand_alone(written: Path) -> None:
    for file in written.glob("*.svg"):
        root = ElementTree.fromstring(file.read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("width") and root.get("height")
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert {"fdcnet", "finetune", "classes learned", "7"} <= set(texts)


def test_the_page_is_well_formed_and_has_a_row_per_method(written: Path) -> None:
    page = ElementTree.fromstring((written / "compare.html").read_text(encoding="utf-8"))
    assert [found.get("id") for found in page.iter("section")] == [
        "result",
        "tasks",
        "photos",
        "forgetting",
        "settings",
    ]
    rows = page.findall(".//table[@class='gallery']/tbody/tr")
    assert len(rows) == 2
    assert len(rows[0].findall(".//img")) == len(rows[1].findall(".//img")) == 7
    with Image.open(written / "photos.png") as picture:
        assert picture.width > 7 * 200
        assert picture.height > 2 * 200


def test_names_in_any_script_are_legible_in_the_picture(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "_installed", lambda bold: (fonts.BUILT_IN,))
    pictures = []
    for name in ("翠鸟", "\\u7fe0\\u9e1f"):
        for file in (runs[0] / "examples").glob("*.json"):
            write_json(file, [example | {"label": name, "predicted": name} for example in read_json(file)])
        pictures.append(gallery_picture(load(runs[:1])))
    assert pictures[0] == pictures[1] is not None


def test_what_differs_is_listed(finished_runs: list[Path]) -> None:
    assert differing_settings(compare(finished_runs)) == {}


def test_another_setting_is_told(runs: list[Path]) -> None:
    change(runs[0], "run.json", "config", "train", "step_epochs", value=9)
    assert differing_settings(compare(runs)) == {"train.step_epochs": ["9", "4"]}


@pytest.mark.parametrize(
    ("file", "keys", "value", "said"),
    [
        ("results.json", ("dataset",), "others", "data"),
        ("results.json", ("protocol", "threshold"), 0.5, "protocol"),
        ("run.json", ("data", "fingerprint"), "sha256:0000", "photos"),
        ("run.json", ("class_order",), ["a", "b"], "classes"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    file: str, keys: tuple[str, ...], value: object, said: str, runs: list[Path]
) -> None:
    change(runs[1], file, *keys, value=value)
    with pytest.raises(UserError, match=f"finetune and fdcnet cannot be compared: different {said}"):
        compare(runs)


def test_of_two_protocols_the_difference_is_told(runs: list[Path]) -> None:
    change(runs[1], "results.json", "protocol", "threshold", value=0.4)
    with pytest.raises(UserError, match=r"finetune: threshold 0\.4\n.*fdcnet: threshold 0\.\d+$"):
        compare(runs)


def test_other_tasks_and_unfinished_runs_are_refused(runs: list[Path]) -> None:
    results = read_json(runs[1] / "results.json")
    results["tasks"][1]["num_classes"] = 4
    write_json(runs[1] / "results.json", results)
    with pytest.raises(UserError, match="different tasks"):
        compare(runs)
    change(runs[1], "results.json", "tasks", value=results["tasks"][:2])
    with pytest.raises(UserError, match="has evaluated 2 of 3 tasks"):
        compare(runs)


def test_one_run_is_no_comparison(finished_runs: list[Path]) -> None:
    with pytest.raises(UserError, match="nothing to compare"):
        compare(finished_runs[:1])


def test_what_the_network_says_alone_has_its_own_name_and_no_row_of_a_comparison(runs: list[Path]) -> None:
    record = RunRecord.open(runs[-1])
    plain = {**record.results()["results"], "seed": 7}
    plain["protocol"] = plain["protocol"] | {"compensated": False}
    record.write_results(plain, "results-class-plain")
    names = list(all_results(load(runs[-1:])))
    assert names == [f"{names[0].split(',')[0]}, {kind}" for kind in ("class map", "class map, network alone")]
    assert [run.main["seed"] for run in compare(runs, "class")] == [0] * len(runs)


def test_a_results_file_of_the_network_alone_is_a_row_of_its_own(finished_runs: list[Path], tmp_path: Path) -> None:
    plain = read_json(finished_runs[0] / "results.json")
    plain["protocol"] |= {"compensated": False}
    write_json(tmp_path / "plain.json", plain)
    runs = compare([*finished_runs, tmp_path / "plain.json"], "class")
    assert [run.label for run in runs] == ["fdcnet", "finetune", "fdcnet, network alone"]


def test_the_network_alone_does_not_stand_for_the_method(runs: list[Path]) -> None:
    for record in map(RunRecord.open, runs):
        plain = record.results()["results"]
        plain["protocol"] |= {"map": "topk-mean", "compensated": False}
        record.write_results(plain, "results-topk-mean-plain")
    with pytest.raises(UserError, match=r"not evaluated with the topk-mean map.*\nAvailable maps: class\."):
        compare(runs, "topk-mean")


def test_a_map_must_have_been_measured(finished_runs: list[Path]) -> None:
    assert len(compare(finished_runs, "class")) == 2
    with pytest.raises(UserError, match=r"not evaluated with the topk-mean map.*\nAvailable maps: class"):
        compare(finished_runs, "topk-mean")


def test_results_files_are_enough_for_table_and_curves(finished_runs: list[Path], tmp_path: Path) -> None:
    """And training on all classes at once stands beside them as a single point."""
    files = [run / "results.json" for run in finished_runs]
    joint = read_json(files[0]) | {"method": "joint"}
    joint["tasks"] = joint["tasks"][-1:]
    joint["matrix"] = {metric: [[rows[-1][0]]] for metric, rows in joint["matrix"].items()}
    joint["forgetting"] = dict.fromkeys(joint["forgetting"])
    write_json(tmp_path / "joint.json", joint)
    runs = compare([*files, tmp_path / "joint.json"])
    assert [run.label for run in runs] == ["fdcnet", "finetune", "joint"]
    table = comparison_table(named_results(runs))
    below = table.header.index("Top-1 Loc below joint")
    ended = [read_json(file)["last"]["top1_loc"] for file in files]
    assert [row[below] for row in table.rows] == [
        0,
        pytest.approx(ended[0] - ended[1]),
        None,
    ]  # joint: FDCNet's numbers
    page = write_comparison(runs, tmp_path / "out").read_text(encoding="utf-8")
    assert "joint learned all classes at once" in page
    assert not (tmp_path / "out" / "photos.png").exists()
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UserError, match="is not a results file"):
        compare([files[0], tmp_path / "other.json"])


def test_points_lost_are_measured_from_the_best() -> None:
    assert drops([[80.0], [85.0, 60.0], [70.0, 65.0, 90.0]]) == [15.0, -5.0]
    assert drops([[80.0]]) == []
    assert drops([]) == []
    assert drops([[None], [70.0, 1.0]]) == [None]
