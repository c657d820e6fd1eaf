from collections.abc import Callable

import pytest
import torch

from fdcnet.config import Config
from fdcnet.data.records import Task
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State
from fdcnet.models.heads import CosineScores
from fdcnet.models.network import new_network
from fdcnet.runtime.runtime import Runtime
from fdcnet.training.exemplars import pooled_features
from fdcnet.training.imprint import imprinted_rows


def test_rows_point_to_the_class_mean_and_are_as_long_as_the_old_ones() -> None:
    task = Task(2, ("c", "d"), 2, (), ())
    weight = torch.tensor([[3.0, 4.0], [0.0, 1.0], [9.0, 9.0], [9.0, 9.0]])  # old norms 5 and 1: mean 3
    features = torch.tensor([[2.0, 0.0], [0.0, 7.0], [0.0, -1.0]])
    rows = imprinted_rows(features, torch.tensor([2, 2, 3]), task, weight)
    half = 3 / 2**0.5
    torch.testing.assert_close(rows, torch.tensor([[half, half], [0.0, -3.0]]))


@torch.no_grad()
@pytest.mark.parametrize("name", ["rebalancing", "foster"])  # a cosine classifier and a linear one
def test_pooled_class_features_times_a_row_are_the_scores(name: str, small_config: Callable[..., Config]) -> None:
    config = small_config(name)
    network = new_network(config.model, 0).eval()
    network.grow(3)
    state, runtime = State(config, network, ExemplarMemory(9)), Runtime.of(config)
    pixels = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8)
    pooled = pooled_features(state, runtime, pixels, "class")
    mean, std = (torch.tensor(value)[:, None, None] for value in (network.lineage.mean, network.lineage.std))
    scores = network((pixels.permute(0, 3, 1, 2) - mean) / std, maps=False).scores
    output = network.classifier.output
    rows = output.scale * output.directions if isinstance(output, CosineScores) else output.weight
    torch.testing.assert_close(pooled @ rows.mT, scores, rtol=1e-3, atol=1e-4)
