"""The task loop: what it takes over, what it refuses before writing, and what a kill at a bad moment costs."""

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fdcnet.config import Config
from fdcnet.data.records import Dataset, Task
from fdcnet.errors import UserError
from fdcnet.files import is_temporary, locked
from fdcnet.methods.base import State
from fdcnet.models.network import new_network
from fdcnet.runtime.listener import Epoch, Listener
from fdcnet.store.bundle import load_bundle
from fdcnet.store.record import RunRecord, read_json
from fdcnet.training.checkpoint import FILE, read_checkpoint, save_checkpoint
from fdcnet.training.run import train
from fdcnet.training.run_folder import resume_point
from fdcnet.training.stop import Terminated

Make = Callable[..., Config]


class Notes(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.ended: list[tuple[int, dict[str, Any]]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def task_ended(self, task: Task, summary: dict[str, Any]) -> None:
        self.ended.append((task.number, summary))


class Killed(Exception):
    pass


class KillAtMeasuring(Listener):
    """Dies when a task has been learned and saved, and its measuring begins."""

    def __init__(self, number: int) -> None:
        self.left = number

    def progress(self, what: str, done: int, total: int) -> None:
        if what == "measuring":
            self.left -= 1
            if self.left == 0:
                raise Killed


class KillInTask(Listener):
    """Dies after the first epoch of this task."""

    def __init__(self, task: int) -> None:
        self.task, self.now = task, 0

    def task_started(self, task: Task, num_tasks: int) -> None:
        self.now = task.number

    def epoch_ended(self, epoch: Epoch) -> None:
        if self.now == self.task:
            raise Killed


def models_equal(first: Path, second: Path) -> bool:
    a, b = load_bundle(first / "model"), load_bundle(second / "model")
    return same_network(a, b) and a.classes == b.classes and a.memory.names == b.memory.names


def same_network(first: State, second: State) -> bool:
    a, b = first.network.state_dict(), second.network.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def metric_lines(run: Path) -> list[tuple[int, str, int]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [(line["task"], line["phase"], line["epoch"]) for line in lines]


def without_making(results: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in results.items() if key != "made"}


# Taking over a base model


@pytest.fixture
def base(small_dataset: Dataset, small_config: Make, tmp_path: Path) -> Path:
    config = small_config("finetune", "data.base_classes=0", "data.step_classes=0")
    train(config, small_dataset.first(2), tmp_path / "base")
    return tmp_path / "base" / "model"


def test_a_base_model_stands_for_the_first_task(
    base: Path, small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    """Plain fine-tuning and the baseline learn a first task alike, so the memory and all that follows must be equal."""
    listener = Notes()
    results = train(small_config("baseline"), small_dataset, tmp_path / "taken", base_model=base, listener=listener)
    whole = train(small_config("baseline"), small_dataset, tmp_path / "whole")
    assert without_making(results) == without_making(whole)
    assert models_equal(tmp_path / "taken", tmp_path / "whole")
    assert {line[0] for line in metric_lines(tmp_path / "taken")} == {2}
    assert [number for number, _ in listener.ended] == [1, 2]
    assert "memory: 8 photos, 0 MB" in listener.notes  # 9 // 2 of each of the first two classes
    assert results["made"]["base_model"] == str(base)
    assert results["made"]["base_config"] == read_json(base.parent / "run.json")["config"]
    assert "base_model" not in whole["made"]


def test_the_classifier_of_a_base_model_is_not_taken_over(
    small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    """It was fitted to the memory and the settings of another run."""
    own = ("data.tasks=1", "lda.layer=tail", "lda.old_classes=exemplars")
    train(small_config("baseline", *own, "memory.budget=4"), small_dataset, tmp_path / "base")
    photos = {"slda": [6.0, 6.0], "baseline": [4.0, 4.0], "finetune": None}  # with a memory of 9 photos
    for name, expected in photos.items():
        base = tmp_path / "base" / "model"
        train(small_config(name, *own), small_dataset, tmp_path / name, base_model=base)
        found = load_bundle(tmp_path / name / "model").discriminant
        assert (found.counts.tolist() if found else None) == expected


def test_a_run_from_a_base_model_can_be_resumed_without_it(
    small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    config, base = small_config("baseline"), tmp_path / "base" / "model"
    other_seed = small_config("finetune", "data.base_classes=0", "data.step_classes=0", "seed=5")
    train(other_seed, small_dataset.first(2), tmp_path / "base")  # so that learning it anew would give another model
    whole = train(config, small_dataset, tmp_path / "whole", base_model=base)
    with pytest.raises(Killed):
        train(config, small_dataset, tmp_path / "killed", base_model=base, listener=KillInTask(2))
    resumed = train(config, small_dataset, tmp_path / "killed", resume=True)
    assert without_making(resumed) == without_making(whole)
    assert models_equal(tmp_path / "whole", tmp_path / "killed")


def test_the_first_task_alone_makes_a_base_model(small_dataset: Dataset, small_config: Make, tmp_path: Path) -> None:
    """Also in a shuffled order, whose first classes are not the first ones of the data."""
    order = ("data.order=seeded", "data.order_seed=3")
    first = train(small_config("finetune", "data.tasks=1", *order), small_dataset, tmp_path / "base")
    assert [task["num_classes"] for task in first["tasks"]] == [2]
    base = tmp_path / "base" / "model"
    taken = train(small_config("baseline", *order), small_dataset, tmp_path / "taken", base_model=base)
    whole = train(small_config("baseline", *order), small_dataset, tmp_path / "whole")
    assert without_making(taken) == without_making(whole)


def test_joint_training_is_scored_by_the_groups_of_the_stream(
    small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    results = train(small_config("joint", "data.base_classes=1", "data.step_classes=2"), small_dataset, tmp_path / "a")
    assert [group["num_classes"] for group in results["groups"]] == [1, 2, 1]
    mean = sum(group["num_classes"] * group["top1_cls"] for group in results["groups"]) / 4
    assert mean == pytest.approx(results["last"]["top1_cls"])  # every class has as many photos
    assert "groups" not in train(small_config("joint", "data.base_classes=9"), small_dataset, tmp_path / "b")


@pytest.mark.parametrize("override", ["model.head_width=24", "data.base_classes=3"])
def test_a_base_model_of_another_kind_is_refused(
    override: str, base: Path, small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="differs from this run's first task in its 'model' settings or classes"):
        train(small_config("baseline", override), small_dataset, tmp_path / "run", base_model=base)
    assert not (tmp_path / "run").exists()


def test_a_base_model_of_several_tasks_is_refused(small_dataset: Dataset, small_config: Make, tmp_path: Path) -> None:
    """It would leave out as many of this run's tasks as it has learned."""
    train(
        small_config("finetune", "data.base_classes=2", "data.step_classes=1"), small_dataset.first(3), tmp_path / "b"
    )
    config = small_config("finetune", "data.base_classes=3", "data.step_classes=1")
    with pytest.raises(UserError, match="was trained on 2 tasks"):
        train(config, small_dataset, tmp_path / "run", base_model=tmp_path / "b" / "model")
    assert not (tmp_path / "run").exists()


def test_joint_training_takes_no_base_model(
    base: Path, small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="joint learns all classes at once"):
        train(small_config("joint"), small_dataset, tmp_path / "run", base_model=base)


# Resuming


@pytest.mark.parametrize("started_from_it", [False, True])
def test_a_first_task_is_not_exchanged_by_resuming(
    started_from_it: bool, base: Path, small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    config, first = small_config("baseline"), base if started_from_it else None
    with pytest.raises(Killed):
        train(config, small_dataset, tmp_path / "run", base_model=first, listener=KillInTask(2))
    other = Path(shutil.copytree(base, tmp_path / "other"))
    said = "started from .*model" if started_from_it else "started without a base model"
    with pytest.raises(UserError, match=said):
        train(config, small_dataset, tmp_path / "run", base_model=other, resume=True)
    train(config, small_dataset, tmp_path / "run", base_model=first, resume=True)


def test_what_has_no_part_in_the_result_may_change(small_dataset: Dataset, small_config: Make, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(small_config("finetune", "data.path=a/b"), small_dataset, tmp_path / "run", listener=KillInTask(1))
    again = small_config("finetune", "data.path=a/../a/b/", "train.checkpoint_minutes=7")
    results = train(again, small_dataset, tmp_path / "run", resume=True)
    assert [sitting["device"] for sitting in results["made"]["resumed"]] == [results["made"]["device"]]


def test_resuming_with_other_settings_is_refused(small_dataset: Dataset, small_config: Make, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(small_config("finetune"), small_dataset, tmp_path / "run", listener=KillInTask(1))
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(UserError, match=r"started with different settings: train\.optim\.lr was \S+, is 0\.1\."):
        train(small_config("finetune", "train.optim.lr=0.1"), small_dataset, tmp_path / "run", resume=True)
    with pytest.raises(UserError, match="classes of the photos have changed"):
        train(small_config("finetune"), small_dataset.first(3), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_resuming_with_other_test_photos_is_refused(small_dataset: Dataset, small_config: Make, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(small_config("finetune"), small_dataset, tmp_path / "run", listener=KillInTask(1))
    with pytest.raises(UserError, match="The test photos have changed"):
        train(
            small_config("finetune"), replace(small_dataset, test=small_dataset.test[1:]), tmp_path / "run", resume=True
        )


def test_a_run_has_one_writer(small_dataset: Dataset, small_config: Make, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(small_config("finetune"), small_dataset, tmp_path / "run", listener=KillInTask(1))
    before = (tmp_path / "run" / "run.json").read_bytes()
    with locked(tmp_path / "run"), pytest.raises(UserError, match="is being changed by process"):
        train(small_config("finetune"), small_dataset, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    train(small_config("finetune"), small_dataset, tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / "lock").exists()


def test_a_kill_at_the_very_start_does_not_occupy_the_folder(
    small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / f".{'0' * 32}.tmp").touch()
    train(small_config("joint", "train.base_epochs=1"), small_dataset, tmp_path / "run", resume=True)


def test_what_a_kill_has_left_goes_before_a_run_is_finished(
    small_dataset: Dataset, small_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(record: RunRecord, seconds: float | None = None) -> None:
        results = json.loads((record.folder / "results.json").read_text())
        assert len(results["tasks"]) == 1, "written before the run counts as finished"
        (record.folder / "model.old").mkdir()
        (record.folder / "predictions" / f".{'0' * 32}.tmp").touch()
        raise Killed

    config = small_config("joint", "train.base_epochs=1")
    with monkeypatch.context() as patch:
        patch.setattr(RunRecord, "finish", finish)
        with pytest.raises(Killed):
            train(config, small_dataset, tmp_path / "run")
    train(config, small_dataset, tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / "model.old").exists()
    assert not any(is_temporary(path) for path in (tmp_path / "run").rglob("*"))


def test_resuming_a_finished_run_says_so(small_dataset: Dataset, small_config: Make, tmp_path: Path) -> None:
    config = small_config("joint", "train.base_epochs=1")
    train(config, small_dataset, tmp_path / "run")
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="is already complete") as caught:
        train(config, small_dataset, tmp_path / "run", resume=True)
    assert f"fdcnet report {tmp_path / 'run'}" in caught.value.remedy  # killed before it was written
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("measurement", [1, 2])
def test_a_kill_before_measuring_is_made_up_for(
    measurement: int, small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    config = small_config("baseline", "train.batch_size=16")  # one call of progress for each measuring
    whole = train(config, small_dataset, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, small_dataset, tmp_path / "killed", listener=KillAtMeasuring(measurement))
    assert load_bundle(tmp_path / "killed" / "model").task_sizes == [2] * measurement
    assert not (tmp_path / "killed" / "predictions" / f"task-{measurement}.csv.gz").exists()

    listener = Notes()
    resumed = train(config, small_dataset, tmp_path / "killed", resume=True, listener=listener)
    assert [number for number, _ in listener.ended] == [1, 2][measurement - 1 :]
    assert without_making(resumed) == without_making(whole)
    assert models_equal(tmp_path / "whole", tmp_path / "killed")
    lines = metric_lines(tmp_path / "killed")
    assert len(lines) == len(set(lines))
    assert lines == metric_lines(tmp_path / "whole")


@pytest.mark.parametrize("task", [1, 2])
def test_epochs_that_are_run_again_are_recorded_once(
    task: int, small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    config = small_config("finetune", "train.checkpoint_minutes=100")
    whole = train(config, small_dataset, tmp_path / "whole")
    with pytest.raises(Killed):  # an epoch is on record, but in no checkpoint
        train(config, small_dataset, tmp_path / "killed", listener=KillInTask(task))
    assert metric_lines(tmp_path / "killed")[-1] == (task, "main", 1)
    with (tmp_path / "killed" / "metrics.jsonl").open("a") as file:
        file.write('{"task": 1, "pha')  # torn by the kill
    resumed = train(config, small_dataset, tmp_path / "killed", resume=True)
    assert metric_lines(tmp_path / "killed") == [(1, "main", 1), (1, "main", 2), (2, "main", 1), (2, "main", 2)]
    assert without_making(resumed) == without_making(whole)


class SignalAt(Listener):
    """Sends a signal to this process in the middle of an epoch: two of its three steps are done."""

    def __init__(self, task: int, number: signal.Signals) -> None:
        self.task, self.number, self.now, self.steps = task, number, 0, 0
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def task_started(self, task: Task, num_tasks: int) -> None:
        self.now = task.number

    def step(self, num_images: int) -> None:
        self.steps += self.now == self.task
        if self.steps == 2:
            signal.raise_signal(self.number)


@pytest.mark.parametrize(("task", "number"), [(1, signal.SIGINT), (2, signal.SIGTERM)])
def test_a_signal_writes_a_checkpoint_and_the_run_resumes_exactly(
    task: int, number: signal.Signals, small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    config = small_config("finetune", "train.checkpoint_minutes=100")
    whole = train(config, small_dataset, tmp_path / "whole")
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt) as stop:
        train(config, small_dataset, tmp_path / "stopped", listener=SignalAt(task, number))
    assert isinstance(stop.value, Terminated) == (number == signal.SIGTERM)
    assert signal.getsignal(number) is before
    assert resume_point(tmp_path / "stopped") == f"task {task}, phase main, epoch 1, after step 2"

    notes = Notes()
    resumed = train(config, small_dataset, tmp_path / "stopped", resume=True, listener=notes)
    assert notes.notes[0] == f"Resuming from task {task}, phase main, epoch 1, after step 2."
    assert without_making(resumed) == without_making(whole)
    assert models_equal(tmp_path / "whole", tmp_path / "stopped")


def test_resuming_says_from_where(small_dataset: Dataset, small_config: Make, tmp_path: Path) -> None:
    config, run = small_config("finetune", "train.checkpoint_minutes=100"), tmp_path / "run"
    assert resume_point(run) is None
    notes = Notes()
    train(small_config("joint", "train.base_epochs=1"), small_dataset, tmp_path / "new", resume=True, listener=notes)
    assert notes.notes[0] == f"There is no run in {tmp_path / 'new'} yet. Starting from the beginning."

    with pytest.raises(Killed):
        train(config, small_dataset, run, listener=KillInTask(1))
    assert resume_point(run) == "the start of task 1"  # an epoch is done, but the checkpoint was not due
    with pytest.raises(Killed):
        train(config, small_dataset, run, resume=True, listener=KillAtMeasuring(1))
    assert resume_point(run) == "the evaluation of task 1"
    with pytest.raises(Killed):
        train(config, small_dataset, run, resume=True, listener=KillInTask(2))
    assert resume_point(run) == "the start of task 2"


def test_a_checkpoint_that_does_not_fit_says_what_to_do(
    small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    config, run = small_config("finetune"), tmp_path / "run"
    with pytest.raises(Killed):
        train(config, small_dataset, run, listener=KillInTask(1))
    saved = read_checkpoint(run)
    assert saved is not None
    network = new_network(config.model, 0)  # without classes, as if another version had made it
    save_checkpoint(run, saved.position, network, {})
    with pytest.raises(UserError, match=r"checkpoint .* does not fit this run: .*size mismatch") as caught:
        train(config, small_dataset, run, resume=True)
    assert "starts over from the last saved model" in caught.value.remedy


def test_a_kill_after_the_last_measuring_loses_no_result(
    small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    config = small_config("joint", "train.base_epochs=1")
    whole = train(config, small_dataset, tmp_path / "run")
    RunRecord(tmp_path / "run").write_run(finished=None)  # as if killed between the table and the results
    for file in (tmp_path / "run").glob("results*.json"):
        file.unlink()
    assert without_making(train(config, small_dataset, tmp_path / "run", resume=True)) == without_making(whole)
    assert RunRecord(tmp_path / "run").run()["finished"] is not None
    assert (tmp_path / "run" / "results-topk-mean.json").exists()


def test_the_checkpoint_is_gone_after_its_task(small_dataset: Dataset, small_config: Make, tmp_path: Path) -> None:
    class Look(Listener):
        def __init__(self) -> None:
            self.seen: list[bool] = []

        def phase_ended(self) -> None:
            self.seen.append((tmp_path / "run" / FILE).exists())

        def task_ended(self, task: Task, summary: dict[str, Any]) -> None:
            self.seen.append((tmp_path / "run" / FILE).exists())

    look = Look()
    train(small_config("finetune"), small_dataset, tmp_path / "run", listener=look)
    assert look.seen == [True, False, True, False]


# Photos that cannot be read


def spoil(path: Path) -> bytes:
    content = path.read_bytes()
    path.write_bytes(b"this is no photo")
    return content


def test_a_broken_photo_is_left_out_counted_and_named(
    small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    broken = small_dataset.train[0].path
    spoil(broken)
    listener = Notes()
    train(small_config("baseline", "memory.budget=40"), small_dataset, tmp_path / "run", listener=listener)
    at = listener.notes.index("Skipped unreadable photos: 1 of 12")
    assert listener.notes[at + 1] == f"  {broken}: not an image"
    names = load_bundle(tmp_path / "run" / "model").memory.names
    assert [len(names[label]) for label in range(4)] == [5, 6, 6, 6]
    assert broken.name not in names[0]


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_class_without_a_readable_photo_is_refused_and_nothing_is_written(
    part: str, small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    config = small_config("finetune")
    records = small_dataset.train if part == "train" else small_dataset.test
    label = small_dataset.classes[0]
    contents = {record.path: spoil(record.path) for record in records if record.label == label}
    with pytest.raises(UserError, match=f"Class '{label}' has no readable photo"):
        train(config, small_dataset, tmp_path / "run")
    assert not (tmp_path / "run").exists()

    for path, content in contents.items():
        path.write_bytes(content)
    assert len(train(config, small_dataset, tmp_path / "run")["tasks"]) == 2  # the same command, after the repair


def test_a_class_of_a_later_task_can_be_repaired_and_the_run_resumed(
    small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    config = small_config("finetune")
    label = small_dataset.classes[3]
    contents = {record.path: spoil(record.path) for record in small_dataset.train if record.label == label}
    with pytest.raises(UserError, match=f"Class '{label}' has no readable photo"):
        train(config, small_dataset, tmp_path / "run")
    with pytest.raises(UserError, match="already holds an unfinished run") as error:
        train(config, small_dataset, tmp_path / "run")
    assert "resume" in error.value.remedy
    assert load_bundle(tmp_path / "run" / "model").task_sizes == [2]

    for path, content in contents.items():
        path.write_bytes(content)
    resumed = train(config, small_dataset, tmp_path / "run", resume=True)
    assert without_making(resumed) == without_making(train(config, small_dataset, tmp_path / "whole"))


# What is refused before anything is written


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("memory.budget=3", "cannot hold one of each of 4 classes"),
        ("data.crop=41", "A crop of 41 pixels does not fit into photos of 40"),
        ("train.batch_size=0", "train.batch_size cannot be 0"),
        ("train.optim.lr=0", "train.optim.lr cannot be 0"),
        ("protocols=[]", "There is no protocol"),
        ("protocols=[{}, {map: topk-mean}, {map: topk-mean, iou: 0.7}]", "Two protocols would be filed under the same"),
        ("device=tpu", "There is no device 'tpu'"),
        ("model.backbone=tiny2", "There is no backbone 'tiny2'"),
        ("model.weights=nowhere.pth", "There is no weights file"),
    ],
)
def test_what_cannot_work_is_refused_at_once(
    override: str, problem: str, small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=problem) as error:
        train(small_config("baseline", override), small_dataset, tmp_path / "run")
    assert len(str(error.value).splitlines()) == 2
    assert not (tmp_path / "run").exists()


def test_without_test_photos_there_must_be_a_holdout(
    small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    untested = replace(small_dataset, test=())
    with pytest.raises(UserError, match="no test photos") as error:
        train(small_config("finetune"), untested, tmp_path / "run")
    assert "data.holdout" in error.value.remedy
    assert not (tmp_path / "run").exists()

    train(small_config("finetune", "data.holdout=0.3"), untested, tmp_path / "run")
    facts = RunRecord(tmp_path / "run").run()["data"]
    assert (facts["num_train"], facts["num_test"]) == (16, 8)  # round(0.3 * 6) = 2 of each class's 6


# What a run writes


def test_joint_learns_all_tasks_as_one(small_dataset: Dataset, small_config: Make, tmp_path: Path) -> None:
    results = train(small_config("joint"), small_dataset, tmp_path / "run")
    assert [task["num_classes"] for task in results["tasks"]] == [4]
    assert RunRecord(tmp_path / "run").run()["tasks"] == [list(small_dataset.classes)]
    assert load_bundle(tmp_path / "run" / "model").task_sizes == [4]


def test_two_protocols_write_two_results_and_two_tables(
    small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    train(small_config("finetune"), small_dataset, tmp_path / "run")
    results = RunRecord(tmp_path / "run").results()
    assert {name: (r["protocol"]["map"], r["protocol"]["crops"]) for name, r in results.items()} == {
        "results": ("class", 2),
        "results-topk-mean": ("topk-mean", 1),
    }
    tables = sorted(path.name for path in (tmp_path / "run" / "predictions").iterdir())
    assert tables == [
        "task-1-topk-mean.csv.gz",
        "task-1.csv.gz",
        "task-2-topk-mean.csv.gz",
        "task-2.csv.gz",
    ]
    facts = RunRecord(tmp_path / "run").run()
    assert facts["class_order"] == list(small_dataset.classes)
    assert facts["finished"] is not None


def test_masks_that_lose_the_object_are_noticed_within_an_epoch(
    small_config: Callable[..., Config], small_dataset: Dataset, tmp_path: Path
) -> None:
    notes = Notes()
    heavy = ("weights.area=1000", "weights.bas=0", "train.full_rate_classes=0")
    train(small_config("finetune", *heavy), small_dataset, tmp_path / "run", listener=notes)
    assert any("masks cover almost nothing" in note for note in notes.notes)
