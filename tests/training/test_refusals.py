"""What a run must not silently get wrong: leaked test photos, photos that changed, names that are no text."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fdcnet.config import Config
from fdcnet.data.records import Dataset
from fdcnet.data.synthetic import make_synthetic
from fdcnet.errors import UserError
from fdcnet.runtime.listener import Listener
from fdcnet.training.run import train

Make = Callable[..., Config]


@pytest.mark.parametrize("change", ["seed=1", "data.holdout=0.4", "data.size=48"])
def test_a_base_model_that_may_have_seen_the_test_photos_is_refused(
    change: str, small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    alone = ("data.holdout=0.2", "data.base_classes=0", "data.step_classes=0")
    train(small_config("finetune", *alone), small_dataset.first(2), tmp_path / "base")
    base = tmp_path / "base" / "model"
    train(small_config("baseline", "data.holdout=0.2"), small_dataset, tmp_path / "same", base_model=base)
    with pytest.raises(UserError, match="other photos"):
        train(small_config("baseline", "data.holdout=0.2", change), small_dataset, tmp_path / "other", base_model=base)
    assert not (tmp_path / "other").exists()


class Stop(Listener):
    def epoch_ended(self, epoch: object) -> None:
        self.seen = getattr(self, "seen", 0) + 1

    def step(self, num_images: int) -> None:
        if getattr(self, "seen", 0):
            raise KeyboardInterrupt


def test_photos_that_changed_in_the_middle_of_a_task_are_noticed(
    small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(small_config("finetune"), small_dataset, tmp_path / "run", listener=Stop())
    fewer = replace(small_dataset, train=small_dataset.train[1:])
    with pytest.raises(UserError, match="photos of task 1 have changed"):
        train(small_config("finetune"), fewer, tmp_path / "run", resume=True)


def test_a_file_name_that_is_no_text_does_no_harm(small_config: Make, tmp_path: Path) -> None:
    dataset = make_synthetic(tmp_path / "photos", num_classes=4, train_per_class=6, test_per_class=2, size=40)
    odd = dataset.train[0].path.with_name(os.fsdecode(b"caf\xe9.png"))
    dataset.train[0].path.rename(odd)
    records = (replace(dataset.train[0], path=odd), *dataset.train[1:])
    results = train(small_config("baseline"), replace(dataset, train=records), tmp_path / "run")
    assert len(results["tasks"]) == 2


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("data.crop=36", "cannot use crops of 36 pixels"),
        ("data.zoom=0", "data.zoom cannot be 0"),
        ("train.base_epochs=-1", "train.base_epochs cannot be -1"),
        ("distill.temperature=0", "distill.temperature cannot be 0"),
        ("aanets.outer_every=1", "aanets.outer_every cannot be 1"),
        ("drift.optim.lr=-1", "drift.optim.lr cannot be -1"),
        ("train.optim.momentum=2", "train.optim.momentum cannot be 2"),
        ("weights.kd_cls=-1", "weights.kd_cls cannot be -1"),
        ("protocols.0.threshold=3", "threshold cannot be 3"),
        ("protocols.0.iou=5", "iou cannot be 5"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_written(
    override: str, problem: str, small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        train(small_config("fdcnet", override), small_dataset, tmp_path / "run")
    assert problem in caught.value.problem
    assert not (tmp_path / "run").exists()


def test_without_either_module_there_is_no_drift_phase(
    small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    settings = small_config("fdcnet", "drift.classes=false", "drift.maps=false")
    train(settings, small_dataset, tmp_path / "run")
    assert '"drift"' not in (tmp_path / "run" / "metrics.jsonl").read_text()
