from pathlib import Path

import pytest
import torch
from torch import Tensor

from fdcnet.config import load
from fdcnet.data.records import Batch, Record, Task
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State, excluded_old, localizer_rate
from fdcnet.models.network import Outputs, new_network


def outputs_for(num_photos: int, num_classes: int) -> Outputs:
    maps = torch.zeros(num_photos, num_classes, 1, 1)
    return Outputs(maps, maps, maps, maps, maps, maps)


def test_only_new_photos_of_new_classes_leave_old_classes_alone() -> None:
    labels, from_memory = torch.tensor([0, 0, 2, 2]), torch.tensor([True, False, True, False])
    batch = Batch(torch.zeros(4, 3, 8, 8), labels, from_memory)
    apart: Tensor = excluded_old(batch, 2, outputs_for(4, 3))
    # More photos of class 0 (the second) must compete with it: it is their own.
    assert apart.tolist() == [[False] * 3, [False] * 3, [False] * 3, [True, True, False]]


def rate(num_classes: int, num_photos: int, epochs: int, *, num_old: int = 0, **settings: object) -> float:
    config = load(None, **settings)
    network = new_network(load(None, ["model.backbone=tiny", "model.weights=none", "model.head_width=4"]).model, 0)
    network.grow(num_classes)
    task = Task(1, ("a",), num_old, (Record(Path("a.jpg"), "a"),) * num_photos, ())
    return localizer_rate(State(config, network, ExemplarMemory(1)), task, epochs)


def test_masks_learn_faster_where_there_are_few_steps() -> None:
    # 100 classes, batch 64, learning rate of the heads 0.01: 0.2 / steps * 100 / 0.01
    assert rate(100, 6400, 10) == pytest.approx(2.0)  # 1000 steps
    assert rate(100, 6400, 100) == 1.0  # 10,000 steps would need 0.2
    assert rate(20, 6400, 100) == pytest.approx(0.2)
    assert rate(20, 6400, 4) == pytest.approx(1.0)  # 400 steps


@pytest.mark.parametrize(("foreground", "fastest"), [("recognized", 0.2), ("all", 1 / 30)])
def test_masks_never_learn_too_fast(foreground: str, fastest: float) -> None:
    # per class, at a learning rate of the heads of 0.01
    for num_classes in (20, 100):
        assert rate(num_classes, 64, 1, train={"foreground": foreground}) == pytest.approx(num_classes * fastest)


def test_later_tasks_continue_at_the_common_rate() -> None:
    assert rate(100, 64, 1, num_old=80) == 1.0
    assert rate(20, 64, 1, num_old=10) == pytest.approx(0.2)
    assert rate(20, 64, 1, train={"full_rate_classes": 0}) == 1.0
