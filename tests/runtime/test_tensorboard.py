"""What a real run writes, read back with TensorBoard's own reader."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fdcnet.config import Config
from fdcnet.data.records import Dataset
from fdcnet.runtime.listener import Epoch, Listener
from fdcnet.runtime.tensorboard import TensorBoard
from fdcnet.training.run import train


class Recorder(Listener):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def task_started(self, *arguments: object) -> None:
        self.heard.append("task")

    def step(self, num_images: int) -> None:
        self.heard.append("step")

    def close(self) -> None:
        self.heard.append("close")


def test_the_curves_are_those_of_the_run(
    tmp_path: Path, small_dataset: Dataset, small_config: Callable[..., Config]
) -> None:
    run, inner = tmp_path / "run", Recorder()
    results = train(small_config("finetune"), small_dataset, run, listener=TensorBoard(run / "tensorboard", inner))
    events = EventAccumulator(str(run / "tensorboard"))  # where --log puts it
    events.Reload()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    area = [event.value for event in events.Scalars("loss/main/area")]
    assert len(area) == 4 and area == pytest.approx([line["losses"]["area"] for line in lines], rel=1e-6)
    assert [event.step for event in events.Scalars("task/top1_cls")] == [1, 2]
    last = events.Scalars("task/top1_cls")[-1].value
    assert last == pytest.approx(results["tasks"][-1]["top1_cls"], rel=1e-6)
    assert inner.heard[0] == "task" and inner.heard[-1] == "close" and "step" in inner.heard


class Killed(Exception):
    pass


class KillAfter(Listener):
    """Dies after N epochs, counted over all tasks, in the next training step or while the model is evaluated."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def epoch_ended(self, epoch: Epoch) -> None:
        self.left -= 1

    def step(self, num_images: int) -> None:
        self.progress("", 0, 0)

    def progress(self, what: str, done: int, total: int) -> None:
        if not self.left:
            raise Killed


@pytest.mark.parametrize("epochs", [3, 4])  # of the second task one, which is then repeated, or both
def test_a_resumed_run_continues_its_curves(
    epochs: int, tmp_path: Path, small_dataset: Dataset, small_config: Callable[..., Config]
) -> None:
    run, config = tmp_path / "run", small_config("finetune", "train.checkpoint_minutes=60")
    with pytest.raises(Killed):
        train(config, small_dataset, run, listener=TensorBoard(run / "tensorboard", KillAfter(epochs)))
    train(config, small_dataset, run, resume=True, listener=TensorBoard(run / "tensorboard"))
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    area = events.Scalars("loss/main/area")
    assert [event.step for event in area] == [1, 2, 3, 4]
    assert [event.value for event in area] == pytest.approx([line["losses"]["area"] for line in lines], rel=1e-6)
    assert [event.step for event in events.Scalars("task/top1_cls")] == [1, 2]
