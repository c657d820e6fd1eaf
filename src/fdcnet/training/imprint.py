"""Imprinting: initialize the weights of a new class with the mean features of its photos."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Task
from fdcnet.methods.base import State
from fdcnet.runtime.runtime import Runtime
from fdcnet.training.exemplars import labels_of, pooled_features


@torch.no_grad()
def imprint(state: State, runtime: Runtime, task: Task, photos: PixelCache) -> None:
    """Overwrite the new rows of the score layer: direction of the class mean, average length of the old rows."""
    output = state.network.classifier.output
    features = pooled_features(state, runtime, photos.pixels, "class")
    rows = imprinted_rows(features, labels_of(photos, task), task, output.weight)
    output.weight[task.num_old :] = rows.to(output.weight)


def imprinted_rows(features: Tensor, labels: Tensor, task: Task, weight: Tensor) -> Tensor:
    """(N, D), (N,), (K, D) -> (K_new, D)"""
    directions = F.normalize(features, dim=1)
    means = torch.stack([directions[labels == label].mean(0) for label in range(task.num_old, task.num_classes)])
    return F.normalize(means, dim=1) * weight[: task.num_old].norm(dim=1).mean().cpu()
