"""Which photos stay in memory: the most representative of each class, by their features without augmentation."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from fdcnet.data.batches import normalise
from fdcnet.data.cache import PixelCache
from fdcnet.data.pixels import Pixels, chunks
from fdcnet.data.records import Task
from fdcnet.errors import count
from fdcnet.evaluation.evaluator import CENTRE, show
from fdcnet.memory import herd, rank_by_distance
from fdcnet.methods.base import State
from fdcnet.runtime.distributed import joined_shares, own_share
from fdcnet.runtime.runtime import Runtime

PooledLayer = Literal["shared", "tail", "class"]
SELECTIONS: dict[str, Callable[[Tensor, int], list[int]]] = {"herding": herd, "ranked": rank_by_distance}


def keep_exemplars(
    state: State, runtime: Runtime, task: Task, photos: PixelCache, features: Tensor | None = None
) -> None:
    """Trim the old classes, then add the new ones: the memory never exceeds its budget.

    `features` (N, D): pooled features of the photos, where they are already known.
    """
    select = SELECTIONS[state.config.memory.selection]
    if features is None:
        features = pooled_features(state, runtime, photos.pixels, state.config.memory.features)
    labels, quota = labels_of(photos, task), state.memory.quota(task.num_classes)
    state.memory.trim(task.num_classes)
    for label in range(task.num_old, task.num_classes):
        rows = (labels == label).nonzero().squeeze(1)
        kept = rows[select(features[rows], quota)]
        state.memory.add(label, photos.gather(kept), [photos.records[row].path.name for row in kept.tolist()])
    runtime.listener.note(f"memory: {count(len(state.memory), 'photo')}, {state.memory.megabytes:.0f} MB")


def add_exemplars(state: State, runtime: Runtime, label: int, photos: PixelCache) -> None:
    """Further photos of a known class join its exemplars. All are ranked again, so that trimming keeps the best."""
    memory, pixels, names = state.memory, photos.pixels[:].cpu(), [record.path.name for record in photos.records]
    if label in memory.pixels:
        pixels, names = torch.cat([memory.pixels[label], pixels]), memory.names[label] + names
    features = pooled_features(state, runtime, pixels, state.config.memory.features)
    order = SELECTIONS[state.config.memory.selection](features, len(names))
    memory.pixels[label], memory.names[label] = pixels[order], [names[row] for row in order]


def labels_of(photos: PixelCache, task: Task) -> Tensor:
    """(N,)"""
    label_of = {name: task.first_label + i for i, name in enumerate(task.classes)}
    return torch.tensor([label_of[record.label] for record in photos.records], dtype=torch.int64)


@torch.inference_mode()
def pooled_features(state: State, runtime: Runtime, pixels: Pixels, layer: PooledLayer) -> Tensor:
    """Mean features of the center crop of each photo; those of the class as the score layer reads them: (N, C)"""
    if not len(pixels):
        return torch.empty((0, 0))
    network, pooled = state.network.eval(), []
    for chunk in chunks(pixels, state.config.train.batch_size, own_share(len(pixels))):
        images = show(chunk, CENTRE, state.config.data.crop).to(runtime.device)
        with runtime.inference():
            features = network.backbone(normalise(images, network.lineage.mean, network.lineage.std))
            if layer != "shared":
                features = network.classifier.tail(features)
            if layer == "class":
                features = network.classifier.output.read(network.classifier.hidden(features))
        pooled.append(features.float().mean((2, 3)).cpu())
    return joined_shares(pooled, len(pixels))
