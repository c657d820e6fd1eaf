"""Runs that differ in the seed alone are one row of a comparison: their mean, and how far they scatter."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fdcnet.errors import UserError
from fdcnet.report.comparable import differing_settings
from fdcnet.report.compare import compare, named_results, write_comparison
from fdcnet.report.curves import forgetting_curve
from fdcnet.report.runs import Run
from fdcnet.report.tables import comparison_table, narrow
from fdcnet.report.text import show
from fdcnet.store.record import read_json, write_json

Changed = Callable[[dict[str, Any]], None]


def unchanged(content: dict[str, Any]) -> None:
    pass


@pytest.fixture
def again(finished_runs: list[Path], tmp_path: Path) -> Callable[..., Path]:
    """The run of FDCNet with another seed, and what a test changes in its results and its facts."""

    def make(seed: int, results: Changed = unchanged, facts: Changed = unchanged) -> Path:
        copy = Path(shutil.copytree(finished_runs[0], tmp_path / f"s{seed}"))
        for file, change in (("results.json", results), ("run.json", facts)):
            content = read_json(copy / file)
            (content if file == "results.json" else content["config"])["seed"] = seed
            change(content)
            write_json(copy / file, content)
        return copy

    return make


@pytest.fixture
def other(finished_runs: list[Path]) -> Path:
    return finished_runs[1]


def as_file(run: Path, file: Path, **protocol: object) -> Path:
    """The results with the facts of their making, as training writes them."""
    results, facts = read_json(run / "results.json"), read_json(run / "run.json")
    results["protocol"] |= protocol
    write_json(file, results | {"made": {key: facts[key] for key in ("command", "commit", "config")}})
    return file


def labels(runs: list[Run]) -> list[str]:
    return [run.label for run in runs]


def last(value: float) -> Changed:
    def change(results: dict[str, Any]) -> None:
        results["last"]["top1_loc"] = value

    return change


def test_the_row_is_the_mean_and_the_standard_deviation(
    again: Callable[..., Path], other: Path, tmp_path: Path
) -> None:
    seeds = [again(seed, last(value)) for seed, value in ((1, 60.0), (2, 64.0), (3, 71.0))]
    runs = compare([seeds[0], other, *seeds[1:]])
    assert labels(runs) == ["fdcnet, 3 seeds", "finetune"]
    assert differing_settings(runs) == {"seed": ["1, 2, 3", "0"]}
    table = comparison_table(named_results(runs))
    assert show(table.rows[0][2], 2) == "65.00 ±\xa05.57"  # the root of (5² + 1² + 6²) / 2
    assert show(table.rows[0][4], 2).endswith(" ±\xa00.00")
    assert show(narrow(table).rows[0][2]) == "65.0"
    page = write_comparison(runs, tmp_path / "out").read_text(encoding="utf-8")
    assert "65.00 ±\xa05.57" in page
    assert "2 methods compared" in page
    assert "mean ± standard deviation" in page
    rows = list(csv.DictReader((tmp_path / "out" / "compare.csv").open()))
    spread = next(row for row in rows if row["After task"] == "standard deviation of last")
    assert float(spread["Top-1 Loc all"]) == pytest.approx(31**0.5)


def test_tasks_and_forgetting_are_means_of_the_seeds(again: Callable[..., Path], other: Path, tmp_path: Path) -> None:
    """The first seed is best after task 1, the second after task 2: no seed has lost as little as the mean of both."""
    rows = {1: [[80.0], [70.0, 60.0], [66.0, 60.0, 50.0]], 2: [[70.0], [82.0, 60.0], [68.0, 60.0, 50.0]]}

    def measured(seed: int) -> Changed:
        def change(results: dict[str, Any]) -> None:
            results["matrix"]["top1_loc"] = rows[seed]
            results["forgetting"]["top1_loc"] = 7.0  # (14 + 0) / 2, (14 + 0) / 2
            results["tasks"][0] |= {"top1_loc": rows[seed][0][0], "best_threshold": 0.1 * seed}
            results["tasks"][1]["best_threshold"] = 0.3

        return change

    runs = compare([other, *(again(seed, measured(seed)) for seed in rows)])
    assert ">7.0</text>" in forgetting_curve(runs, "top1_loc")  # of the mean matrix it would be (76 - 67 + 0) / 2
    write_comparison(runs, tmp_path / "out")
    first, second, *_ = [
        row for row in csv.DictReader((tmp_path / "out" / "compare.csv").open()) if row["Run"] == "fdcnet, 2 seeds"
    ]
    assert float(first["Top-1 Loc all"]) == 75.0
    assert float(second["Top-1 Loc old"]) == 76.0
    assert first["Best threshold"] == ""  # nobody measured at 0.15
    assert float(second["Best threshold"]) == 0.3


def test_without_boxes_only_classes_are_averaged(again: Callable[..., Path], finished_runs: list[Path]) -> None:
    def blind(results: dict[str, Any]) -> None:
        for values in (*results["tasks"], results["average"], results["last"], results["forgetting"]):
            values |= dict.fromkeys(("top1_loc", "top5_loc", "gt_known"))
        results["matrix"] = {
            metric: [[None] * len(row) for row in matrix] for metric, matrix in results["matrix"].items()
        }

    def another(facts: dict[str, Any]) -> None:
        facts["config"]["train"]["step_epochs"] = 9

    table = comparison_table(named_results(compare([again(1, blind), again(2, blind), again(3, blind, another)])))
    assert table.header == ("Method", "Top-1 Cls average", "Top-1 Cls last")
    assert len(table.rows) == 2
    assert narrow(table).header == ("Method", "Top-1 Cls avg", "Top-1 Cls last")


def test_another_setting_keeps_runs_apart_and_under_their_names(again: Callable[..., Path], other: Path) -> None:
    def longer(facts: dict[str, Any]) -> None:
        facts["config"]["train"]["step_epochs"] = 9

    runs = compare([again(1), again(2), again(3, facts=longer), other])
    assert labels(runs) == ["fdcnet (s1), 2 seeds", "fdcnet (s3)", "finetune"]


def test_another_first_task_keeps_runs_apart_and_is_told(again: Callable[..., Path], other: Path) -> None:
    def taken(seed: int, epochs: int) -> Changed:
        def change(facts: dict[str, Any]) -> None:
            train = {"base_epochs": epochs, "step_epochs": 50}
            facts |= {"base_model": "base/model", "base_config": {"seed": seed, "train": train}}
            facts["config"]["train"]["base_epochs"] = 6

        return change

    own, shared = [again(seed, facts=taken(seed, 6)) for seed in (1, 2)], again(3, facts=taken(1, 6))
    assert labels(compare([*own, shared, other])) == ["fdcnet, 3 seeds", "finetune"]  # from a common first task, too
    runs = compare([own[0], again(4, facts=taken(4, 32)), other])
    assert labels(runs) == ["fdcnet (s1)", "fdcnet (s4)", "finetune"]
    told = differing_settings(runs)
    assert told["train.base_epochs (first task)"] == ["–", "32", "–"]
    assert told["first task"] == ["base/model", "base/model", "its own"]
    assert not any("step_epochs (first" in key for key in told)


def test_other_code_is_told(again: Callable[..., Path], other: Path) -> None:
    def newer(facts: dict[str, Any]) -> None:
        facts["commit"] = "beef"

    old = read_json(other / "run.json")["commit"]
    assert differing_settings(compare([again(1), again(2, facts=newer), other]))["commit"] == [f"{old}, beef", old]


def test_a_repetition_is_no_seed_and_a_path_counts_once(
    again: Callable[..., Path], finished_runs: list[Path], tmp_path: Path
) -> None:
    first, other = finished_runs
    same = Path(shutil.copytree(first, tmp_path / "same"))
    assert labels(compare([first, same, other])) == ["fdcnet (fdcnet)", "fdcnet (same)", "finetune"]
    assert labels(compare([first, first, again(1), other])) == ["fdcnet, 2 seeds", "finetune"]
    with pytest.raises(UserError, match="nothing to compare"):
        compare([first, first])


def test_seeds_alone_stand_above_their_mean(again: Callable[..., Path], tmp_path: Path) -> None:
    runs = compare([again(1, last(60.0)), again(2, last(64.0))])
    assert labels(runs) == ["fdcnet (s1)", "fdcnet (s2)", "mean of 2 seeds"]
    assert [show(row[2]) for row in comparison_table(named_results(runs)).rows] == ["60.0", "64.0", "62.0 ±\xa02.8"]
    page = write_comparison(runs, tmp_path / "out").read_text(encoding="utf-8")
    assert "Runs of fdcnet compared" in page
    assert page.count("<img") == 14  # seven photos of each seed, and none of the mean


def test_files_and_folders_merge_wherever_the_weights_lie(
    again: Callable[..., Path], other: Path, tmp_path: Path
) -> None:
    def weights(folder: str) -> Changed:
        def change(facts: dict[str, Any]) -> None:
            facts["config"]["model"]["weights"] = f"{folder}/mobilenet_v1.safetensors"

        return change

    folder, moved = again(1, facts=weights("/a")), again(2, facts=weights("~"))
    runs = compare([folder, as_file(moved, tmp_path / "s2.json"), other])
    assert labels(runs) == ["fdcnet, 2 seeds", "finetune"]


def test_the_network_alone_is_a_mean_of_its_own(again: Callable[..., Path], tmp_path: Path) -> None:
    runs = [again(seed) for seed in (1, 2)]
    plain = [as_file(run, tmp_path / f"{run.name}.json", compensated=False) for run in runs]
    assert labels(compare([*runs, *plain])) == ["fdcnet, 2 seeds", "fdcnet, network alone, 2 seeds"]


def test_files_that_do_not_say_how_they_were_made_stay_apart(
    again: Callable[..., Path], other: Path, tmp_path: Path
) -> None:
    files = [Path(shutil.copy(again(seed) / "results.json", tmp_path / f"s{seed}.json")) for seed in (1, 2)]
    assert labels(compare([*files, other])) == ["fdcnet (s1)", "fdcnet (s2)", "finetune"]


def test_classes_drawn_by_the_seed_are_refused(again: Callable[..., Path], tmp_path: Path) -> None:
    def drawn(facts: dict[str, Any]) -> None:
        facts["config"]["data"] = {"order": "seeded", "classes": 0, "holdout": 0.0}

    files = [as_file(again(seed, facts=drawn), tmp_path / f"s{seed}.json") for seed in (1, 2)]
    with pytest.raises(UserError, match=r"different choice of classes.*\n.*s2\.json: seed 2\n.*s1\.json: seed 1"):
        compare(files)
