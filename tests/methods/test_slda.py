"""What the masks of `slda` are trained against, and how fast."""

from pathlib import Path

import pytest
import torch
from torch import nn

from fdcnet.config import load
from fdcnet.data.records import Record, Task
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State
from fdcnet.methods.slda import evidence_map, mask_rate
from fdcnet.models.network import new_network


def test_evidence_lies_where_the_class_is() -> None:
    features = torch.zeros(2, 3, 4, 4)
    features[0, 0, :2, :2] = 1.0  # what speaks for the class
    features[0, 1, 2:] = 1.0  # what speaks against it
    tail = nn.Conv2d(3, 3, 1)
    nn.init.eye_(tail.weight[:, :, 0, 0])
    rows = torch.tensor([[1.0, -1.0, 0.0]]).repeat(2, 1)

    evidence = evidence_map(tail, features, rows)

    assert evidence.shape == (2, 4, 4)
    expected = torch.zeros(4, 4)
    expected[:2, :2] = 4.0  # a quarter of the cells, and a mean of one
    torch.testing.assert_close(evidence[0], expected)
    assert not evidence[1].any(), "an erased photo has none"
    assert tail.weight.grad is None, "the tail is not trained"


def rate(num_classes: int, num_photos: int, epochs: int) -> float:
    config = load(None, ["method=slda", "model.backbone=tiny", "model.weights=none", "train.batch_size=16"])
    network = new_network(config.model, 0)
    network.grow(num_classes)
    task = Task(1, ("a",), 0, (Record(Path("a.jpg"), "a"),) * num_photos, ())
    return mask_rate(State(config, network, ExemplarMemory(1)), task, epochs)


def test_masks_learn_as_far_with_any_number_of_classes_and_steps() -> None:
    assert rate(10, 320, 10) == pytest.approx(0.25 / 200 * 10)
    assert rate(100, 320, 10) == pytest.approx(0.25 / 200 * 100)
    assert rate(10, 321, 20) == pytest.approx(0.25 / 420 * 10)  # 21 batches, the last with one photo
    assert rate(10, 8, 1) == pytest.approx(0.02 * 10), "the fastest"
