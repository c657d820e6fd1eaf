"""Which photos of a task stay in memory: the most representative of each class, by un-augmented features."""

from typing import Literal

import torch
from torch import Tensor

from fdcnet.data.batches import normalise
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Task
from fdcnet.errors import count
from fdcnet.memory import herd, rank_by_distance
from fdcnet.methods.base import State
from fdcnet.runtime.runtime import Runtime

Layer = Literal["shared", "tail", "class"]


def keep_exemplars(state: State, runtime: Runtime, task: Task, photos: PixelCache) -> None:
    """First trim the old classes, then add the new ones: the budget holds at every moment."""
    rank = {"herding": herd, "ranked": rank_by_distance}[state.config.memory.selection]
    labels, features = (
        labels_of(photos, task),
        pooled_features(state, runtime, photos.pixels, state.config.memory.features),
    )
    quota = state.memory.quota(task.num_classes)
    state.memory.trim(task.num_classes)
    for label in range(task.num_old, task.num_classes):
        rows = (labels == label).nonzero().squeeze(1)
        kept = rows[rank(features[rows], quota)]
        state.memory.add(label, photos.gather(kept), [photos.records[row].path.name for row in kept.tolist()])
    runtime.listener.note(f"memory: {count(len(state.memory), 'photo')}, {state.memory.megabytes:.0f} MB")


def labels_of(photos: PixelCache, task: Task) -> Tensor:
    """(N,)"""
    label_of = {name: task.first_label + i for i, name in enumerate(task.classes)}
    return torch.tensor([label_of[record.label] for record in photos.records], dtype=torch.int64)


@torch.inference_mode()
def pooled_features(state: State, runtime: Runtime, pixels: Tensor, layer: Layer) -> Tensor:
    """Mean features of the plain centre crop, those of the class as the score layer reads them: (N, C)"""
    if not len(pixels):
        return torch.empty((0, 0))
    crop, network = state.config.data.crop, state.network.eval()
    start = (pixels.shape[1] - crop) // 2
    pooled = []
    for chunk in pixels.split(state.config.train.batch_size):
        centre = chunk[:, start : start + crop, start : start + crop].to(runtime.device)
        with runtime.autocast:
            features = network.backbone(normalise(centre, network.lineage.mean, network.lineage.std))
            if layer != "shared":
                features = network.classifier.tail(features)
            if layer == "class":
                features = network.classifier.output.read(network.classifier.hidden(features))
        pooled.append(features.float().mean((2, 3)).cpu())
    return torch.cat(pooled)
