"""The closed-form classifier of an experiment, updated after each task to the network as it is then.

It counts all photos, also those that are gone. A later task changes their features in a way that nobody can compute.
But it can be estimated from the exemplars and the new photos, whose features are known before and after the task.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fdcnet.data.cache import PixelCache
from fdcnet.data.pixels import Pixels
from fdcnet.data.records import Task
from fdcnet.evaluation.evaluator import CENTRE, View
from fdcnet.float64 import float64_device
from fdcnet.methods.base import Method, State
from fdcnet.models.discriminant import Discriminant, affine_drift
from fdcnet.runtime.runtime import Runtime
from fdcnet.training.exemplars import labels_of
from fdcnet.training.statistics import calibration, count_classes, pooled_views

VIEWS = (CENTRE, View("centre", mirrored=True))


def can_fit(method: Method | type[Method]) -> bool:
    """Whether photos of all classes are available: exemplars of old classes, or everything at once."""
    return method.uses_memory or method.one_task


@dataclass(frozen=True)
class Before:
    """The exemplars before a task, and the features that they and the new photos had then."""

    exemplars: Pixels
    labels: Tensor  # of the exemplars
    features: Tensor  # (N, D), exemplars first


def features_before(state: State, method: Method, new: PixelCache, runtime: Runtime) -> Before | None:
    """What `update_discriminant` needs from before a task; None if it needs nothing."""
    if not _moves(state, method) or state.discriminant is None:
        return None
    exemplars, labels = state.memory.all_pixels(), state.memory.all_labels()
    return Before(exemplars, labels, _features(state, runtime, exemplars, new.pixels))


def update_discriminant(
    state: State, method: Method, task: Task, new: PixelCache, runtime: Runtime, before: Before | None = None
) -> None:
    """Fit the closed-form classifier to the network as it is after a task."""
    if method.closed_form:
        count_classes(state, runtime, task, new)
    elif before is not None:
        _move(state, runtime, before, new.pixels, labels_of(new, task))
    elif method.one_task or (_moves(state, method) and not task.num_old):
        _fit(state, runtime, new.pixels, labels_of(new, task))
    elif method.uses_memory:
        _fit(state, runtime, state.memory.all_pixels(), state.memory.all_labels())
    else:
        state.discriminant = None


def _moves(state: State, method: Method) -> bool:
    return method.uses_memory and not method.closed_form and state.config.lda.old_classes == "moved"


def _fit(state: State, runtime: Runtime, pixels: Pixels, labels: Tensor) -> None:
    """Fit it to these photos alone. (N, S, S, 3), (N,)"""
    settings, photos = state.config.lda, _features(state, runtime, pixels)
    state.discriminant = Discriminant(photos.shape[1], shrinkage=settings.shrinkage, layer=settings.layer)
    state.discriminant.to(float64_device(runtime.device))
    _add(state.discriminant, photos, labels)


def _move(state: State, runtime: Runtime, before: Before, new: Pixels, new_labels: Tensor) -> None:
    """Move the statistics of the photos that are gone, and count the others with their present features."""
    assert state.discriminant is not None
    now, device = _features(state, runtime, before.exemplars, new), float64_device(runtime.device)
    discriminant = state.discriminant.to(device)
    discriminant.remove(before.features[: len(before.labels)], before.labels)
    discriminant.transform(*affine_drift(before.features.to(device), now.to(device)))
    _add(discriminant, now, torch.cat([before.labels, new_labels]))


def _features(state: State, runtime: Runtime, *blocks: Pixels) -> Tensor:
    """The mean of both views of each photo: (N, D). Blocks stay apart, because one may be on the GPU."""
    layer, stage = state.config.lda.layer, "computing features"
    return torch.cat([pooled_views(state, runtime, block, layer, VIEWS, stage, average=True)[:, 0] for block in blocks])


def _add(discriminant: Discriminant, photos: Tensor, labels: Tensor) -> None:
    """Count photos and set the temperature by them."""
    discriminant.add(photos, labels)
    temperature, _ = calibration(discriminant, photos, labels) or (1.0, math.inf)
    # The network was trained on these photos, so they lie closer to their class mean than new photos will: the
    # temperature is at least 1, and no photo is rejected for its distance.
    discriminant.set_calibration(max(1.0, temperature), math.inf)
