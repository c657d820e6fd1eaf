"""Closed-form learning: pooled features of photos, added up in a `Discriminant`.

As long as the backbone and the tail stay as they are, so do the features of a photo. A lesson then only adds its photos
to the sums: lessons in any order give the same classifier as all photos at once.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fdcnet.data.batches import normalise
from fdcnet.data.cache import PixelCache
from fdcnet.data.pixels import Pixels, chunks
from fdcnet.data.records import Task
from fdcnet.evaluation.evaluator import WHOLE, View, show
from fdcnet.methods.base import State
from fdcnet.models.discriminant import Discriminant, Layer, fit_temperature
from fdcnet.runtime.distributed import joined_shares, own_share
from fdcnet.runtime.runtime import Runtime
from fdcnet.training.exemplars import keep_exemplars, labels_of
from fdcnet.training.seeding import seed_torch

MOST_JUDGED = 20_000  # photos; the distances of all of ImageNet-1k to its classes would take 10 GB, several times
VIEWS = (WHOLE, View("whole", mirrored=True))
FAMILIAR = 0.95
"""Fraction of training photos that count as one of the known classes, each judged as if it had not been added."""


def pooled_views(
    state: State,
    runtime: Runtime,
    pixels: Pixels,
    layer: Layer = "tail",
    views: Sequence[View] = VIEWS,
    stage: str = "computing features",
    average: bool = False,
) -> Tensor:
    """Pooled features of each view of each photo: (N, S, S, 3) -> (N, V, D). `average`: their mean, (N, 1, D)"""
    network, crop, pooled = state.network.eval(), state.config.data.crop, []
    for done, chunk in enumerate(chunks(pixels, state.config.train.batch_size, own_share(len(pixels)))):
        shown = torch.cat([show(chunk, view, crop) for view in views]).to(runtime.device)
        with runtime.inference():
            images = normalise(shown, network.lineage.mean, network.lineage.std)
            found = network(images, maps=False, head=layer != "tail").pooled(layer)
        found = found.unflatten(0, (len(views), len(chunk))).transpose(0, 1)
        pooled.append((found.mean(1, keepdim=True) if average else found).cpu())
        seen = min(len(pixels), (done + 1) * state.config.train.batch_size)
        runtime.listener.progress(stage, seen, len(pixels))
    return joined_shares(pooled, len(pixels))


def count_photos(discriminant: Discriminant, features: Tensor, labels: Tensor) -> None:
    """Add photos by the mean features of their views: (N, V, D), (N,)

    Temperature and threshold are averaged with those of earlier photos.
    """
    photos, before = features.mean(1), float(discriminant.counts.sum())
    discriminant.add(photos, labels)
    found = calibration(discriminant, photos, labels)
    if found is None:
        return
    temperature, farthest = found
    if before:
        share = len(labels) / (before + len(labels))
        temperature = share * temperature + (1 - share) * discriminant.temperature
        farthest = share * farthest + (1 - share) * discriminant.max_distance
    discriminant.set_calibration(temperature, farthest)


def calibration(discriminant: Discriminant, photos: Tensor, labels: Tensor) -> tuple[float, float] | None:
    """The temperature and the largest distance that fit photos which were added: (N, D), (N,)

    At most `MOST_JUDGED` of them, spread evenly, are judged, each as if it had not been added. None if each is the only
    one of its class.
    """
    some = slice(None, None, max(1, math.ceil(len(labels) / MOST_JUDGED)))
    distances, own = discriminant.distances_left_out(photos[some], labels[some]), labels[some]
    judged = distances.gather(1, own[:, None].to(distances.device))[:, 0].isfinite()
    if not judged.any():
        return None
    temperature = fit_temperature(-0.5 * distances[judged], own[judged.cpu()])
    return temperature, float(distances[judged].min(1).values.sqrt().quantile(FAMILIAR))


def count_classes(state: State, runtime: Runtime, task: Task, photos: PixelCache) -> None:
    """Add the photos of new classes, unless they have been added."""
    known = state.discriminant
    if known is not None and known.layer == "tail" and known.num_classes >= task.num_classes:
        return
    features = pooled_views(state, runtime, photos.pixels)
    if known is None or known.layer != "tail":
        known = state.discriminant = Discriminant(features.shape[2])
    count_photos(known, features, labels_of(photos, task))


def from_exemplars(state: State, runtime: Runtime) -> Discriminant | None:
    """The statistics of the photos in memory. None if some class has no photos there."""
    if not state.classes or set(state.memory.pixels) != set(range(len(state.classes))):
        return None
    features = pooled_views(state, runtime, state.memory.all_pixels(), stage="computing statistics")
    discriminant = Discriminant(features.shape[2])
    count_photos(discriminant, features, state.memory.all_labels())
    return discriminant


def add_classes(state: State, runtime: Runtime, task: Task, photos: PixelCache, features: Tensor) -> None:
    """New classes without training: the discriminant tells them apart, and their masks are the mean of the old ones.

    `features` (N, V, D): those of `pooled_views`
    """
    if task.classes:
        seed_torch(state.config.seed, "grow", task.number)
        state.network.grow(len(task.classes))
        rows = state.network.classifier.output.weight.detach()
        rows[task.num_old :] = rows[: task.num_old].mean(0)  # neutral, until a lesson trains the head
    state.classes.extend(task.classes)
    state.task_sizes.append(len(task.classes))
    known = features[:, 0] if state.config.memory.features == "tail" else None
    keep_exemplars(state, runtime, task, photos, known)
