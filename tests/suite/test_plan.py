"""From a suite file to runs: which, in what order, and what they share."""

from pathlib import Path

import pytest

from fdcnet.errors import UserError
from fdcnet.suite.export import differences, exported_config, is_exported
from fdcnet.suite.plan import Suite, read_suite

ROOT = Path(__file__).parents[2]
SUITES = ROOT / "suites"


def planned(folder: Path, text: str, *overrides: str) -> Suite:
    (folder / "other.yaml").write_text(text)
    return read_suite(folder / "other.yaml", overrides)


def one_table(runs: str) -> str:
    return f"tables: [{{name: main, runs: [{runs}]}}]"


def test_seeds_change_slowest_so_that_what_is_done_can_be_compared(folder: Path) -> None:
    suite = planned(folder, one_table("{recipes: [tiny-fdcnet.yaml, tiny-joint.yaml], seeds: [0, 3]}"))
    assert list(suite.runs) == ["tiny-fdcnet-s0", "tiny-joint-s0", "tiny-fdcnet-s3", "tiny-joint-s3"]
    assert [run.config.seed for run in suite.runs.values()] == [0, 0, 3, 3]
    assert suite.rows == {"main": list(suite.runs)}


def test_a_list_stands_for_a_run_per_value(folder: Path) -> None:
    entry = (
        "{recipes: [tiny-fdcnet.yaml], set: {memory.budget: [4, 6], memory.selection: ranked, train.optim.lr: 0.001}}"
    )
    suite = planned(folder, one_table(entry))
    assert list(suite.runs) == [f"tiny-fdcnet-budget{budget}-selection=ranked-lr0.001-s0" for budget in (4, 6)]
    assert [run.config.memory.budget for run in suite.runs.values()] == [4, 6]
    assert [run.config.train.optim.lr for run in suite.runs.values()] == [0.001, 0.001]


def test_an_order_is_the_same_for_all_seeds(folder: Path) -> None:
    suite = planned(folder, one_table("{recipes: [tiny-fdcnet.yaml], seeds: [0, 1], orders: [2]}"))
    data = [run.config.data for run in suite.runs.values()]
    assert list(suite.runs) == ["tiny-fdcnet-o2-s0", "tiny-fdcnet-o2-s1"]
    assert [(own.order, own.order_seed) for own in data] == [("seeded", 2)] * 2


def test_the_command_gives_the_planned_settings(folder: Path) -> None:
    from fdcnet import config

    run = read_suite(folder / "small.yaml", ["train.step_epochs=3"], "elsewhere").runs["tiny-fdcnet-s0"]
    data, _, recipe, _, seed, *sets = run.arguments
    assert (data, recipe, seed) == ("elsewhere", "tiny-fdcnet.yaml", "0")
    assert set(sets[::2]) == {"--set"}
    assert config.load(recipe, sets[1::2], seed=0, data={"path": data}) == run.config
    assert run.config.train.step_epochs == 3


def test_runs_share_a_first_task_whatever_only_matters_later(folder: Path) -> None:
    entries = (
        "{recipes: [tiny-fdcnet.yaml, tiny-baseline.yaml, tiny-joint.yaml, tiny-slda.yaml]},"
        "{recipes: [tiny-fdcnet.yaml], set: {memory.budget: 4, train.step_epochs: 9, weights.kd_loc: 3.0}},"
        "{recipes: [tiny-fdcnet.yaml, tiny-baseline.yaml], set: {weights.area: 3.0}},"
        "{recipes: [tiny-finetune.yaml], seeds: [1]}"
    )
    suite = planned(folder, one_table(entries))
    first, other = "first-task-tiny-linear-s0", "first-task-tiny-linear-s0-2"
    assert [run.first_task for run in suite.runs.values()] == [first, first, None, None, first, other, other, None]
    assert list(suite.first_tasks) == [first, other]
    config = suite.first_tasks[other].config
    assert (config.method, config.data.tasks, config.weights.area) == ("finetune", 1, 3.0)
    assert [protocol.crops for protocol in config.protocols] == [1]


def test_first_tasks_need_not_be_shared(folder: Path) -> None:
    entry = "{recipes: [tiny-fdcnet.yaml, tiny-baseline.yaml]}"
    assert planned(folder, f"share_first_task: false\n{one_table(entry)}").first_tasks == {}


def test_only_a_method_that_compensates_is_evaluated_without_it(folder: Path) -> None:
    runs = read_suite(folder / "small.yaml").runs
    assert [p.compensated for p in runs["tiny-fdcnet-s0"].config.protocols] == [True, False]
    assert [p.compensated for p in runs["tiny-baseline-s0"].config.protocols] == [True]


@pytest.mark.parametrize("path", sorted(SUITES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_suites_of_the_project_can_be_planned_and_have_the_settings_of_their_results(path: Path) -> None:
    suite = read_suite(path)
    for table in suite.tables:
        assert table.title and suite.rows[table.name]
        assert not table.compare or any(name.startswith(f"{table.compare}-") for name in suite.rows[table.name])
    for name, run in suite.runs.items():
        measured = ROOT / "results" / suite.name / name
        assert not is_exported(measured) or not differences(exported_config(measured), run.config), name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tables: []", "has no runs"),
        ("- a list", "does not hold a suite"),
        ("tables: [{nam: main}]", "There is no setting 'tables.0.nam'"),
        (one_table("{recipes: [nothing]}"), "There is no recipe 'nothing'"),
        (one_table("{recipes: [tiny-fdcnet.yaml], set: {memory.bugdet: 1}}"), "There is no setting 'memory.bugdet'"),
    ],
)
def test_a_mistake_is_named(folder: Path, text: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        planned(folder, text)
