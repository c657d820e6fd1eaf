from pathlib import Path

import pytest
import torch
from torch import Tensor

from fdcnet.config import load
from fdcnet.data.records import Batch, Record, Task
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State, excluded_old, localizer_rate, wsol_losses
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


def test_masks_learn_faster_where_there_are_few_steps_but_never_too_fast() -> None:
    # 100 classes, batch 64, learning rate of the heads 0.01: 0.2 / steps * 100 / 0.01
    assert rate(100, 6400, 10) == pytest.approx(2.0)  # 1000 steps
    assert rate(100, 6400, 100) == 1.0  # 10,000 steps would need 0.2
    assert rate(100, 64, 1) == pytest.approx(100 / 30)  # the fastest
    assert rate(20, 6400, 100) == pytest.approx(0.2)
    assert rate(20, 6400, 4) == pytest.approx(20 / 30)  # 400 steps would need 1.0


def test_later_tasks_continue_at_the_common_rate() -> None:
    assert rate(100, 64, 1, num_old=80) == 1.0
    assert rate(20, 64, 1, num_old=10) == pytest.approx(0.2)
    assert rate(20, 64, 1, train={"full_rate_classes": 0}) == 1.0


@pytest.mark.parametrize(("weakest", "strengths"), [(1.0, [1.0, 1.0]), (0.5, [0.75, 1 - 0.4571])])
def test_masks_are_erased_at_the_strengths_of_the_settings(
    weakest: float, strengths: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"backbone": "tiny", "weights": "none", "head_width": 4}
    config = load(model=model, train={"mask_shifts": False, "weakest_erasing": weakest})
    network = new_network(config.model, 0)
    network.grow(2)
    batch = Batch(torch.rand(2, 3, 32, 32), torch.tensor([0, 1]), torch.zeros(2, dtype=torch.bool))
    outputs, erased = network(batch.images, batch.labels), []

    def background_score(features: Tensor, masks: Tensor, *others: object) -> Tensor:
        erased.append(masks)
        return torch.ones(2)

    monkeypatch.setattr(network, "background_score", background_score)
    wsol_losses(State(config, network, ExemplarMemory(1)), outputs, batch)
    ratio = erased[0] / outputs.masks
    assert ratio.mean((1, 2, 3)).tolist() == pytest.approx(strengths, abs=1e-3)
