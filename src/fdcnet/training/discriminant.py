"""The closed-form classifier of an experiment, updated after each task to the network as it is then.

It counts every photo, also those that are gone. Later tasks change their features. Those of the exemplars and of the
new photos are known before and after a task, and the statistics of the photos that are gone are moved as these have
moved.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from fdcnet.data.cache import PixelCache
from fdcnet.data.pixels import Pixels, join
from fdcnet.data.records import Task
from fdcnet.evaluation.evaluator import CENTRE, View
from fdcnet.float64 import float64_device
from fdcnet.methods.base import Method, State
from fdcnet.models.discriminant import Discriminant, affine_drift
from fdcnet.runtime.runtime import Runtime
from fdcnet.training.exemplars import labels_of
from fdcnet.training.statistics import count_classes, count_photos, pooled_views

VIEWS = (CENTRE, View("centre", mirrored=True))


def can_fit(method: Method | type[Method]) -> bool:
    """Whether photos of all classes are available: exemplars of old classes, or everything at once."""
    return method.uses_memory or method.one_task


@dataclass(frozen=True)
class Before:
    """Photos with their features before a task, which show how features drift while it is learned."""

    pixels: Pixels  # the exemplars, then the new photos
    features: Tensor  # (N, D)
    old_labels: Tensor  # of the exemplars


def features_before(state: State, method: Method, new: PixelCache, runtime: Runtime) -> Before | None:
    """To be called before a later task, if the statistics of old classes will be moved."""
    moves = method.uses_memory and not method.closed_form and state.config.lda.old_classes == "moved"
    if not moves or state.discriminant is None:
        return None
    pixels = join([state.memory.all_pixels(), new.pixels])
    return Before(pixels, _features(state, runtime, pixels).mean(1), state.memory.all_labels())


def refit_discriminant(
    state: State, method: Method, task: Task, new: PixelCache, runtime: Runtime, before: Before | None = None
) -> None:
    """Bring it up to date, if the network has changed. `before`: what `features_before` returned."""
    if method.closed_form:
        count_classes(state, runtime, task, new)
    elif before is not None:
        _move(state, runtime, before, labels_of(new, task))
    elif method.one_task or (method.uses_memory and not task.num_old and state.config.lda.old_classes == "moved"):
        _fit(state, runtime, new.pixels, labels_of(new, task))
    elif method.uses_memory:
        _fit(state, runtime, state.memory.all_pixels(), state.memory.all_labels())
    else:
        state.discriminant = None


def _fit(state: State, runtime: Runtime, pixels: Pixels, labels: Tensor) -> None:
    """Fit it to these photos alone. (N, S, S, 3), (N,)"""
    settings, features = state.config.lda, _features(state, runtime, pixels)
    state.discriminant = Discriminant(features.shape[2], shrinkage=settings.shrinkage, layer=settings.layer)
    _count(state.discriminant, runtime, features, labels)


def _move(state: State, runtime: Runtime, before: Before, new_labels: Tensor) -> None:
    """Move the statistics of the photos that are gone, and count the others as they are now."""
    assert state.discriminant is not None
    num_old, device = len(before.old_labels), float64_device(runtime.device)
    views = _features(state, runtime, before.pixels)
    then, now = before.features.to(device), views.mean(1).to(device)
    discriminant = state.discriminant.to(device)
    discriminant.remove(then[:num_old], before.old_labels)
    discriminant.move(*affine_drift(then, now))
    discriminant.add(now[:num_old], before.old_labels)
    _count(discriminant, runtime, views[num_old:], new_labels)


def _features(state: State, runtime: Runtime, pixels: Pixels) -> Tensor:
    return pooled_views(state, runtime, pixels, state.config.lda.layer, VIEWS, stage="fitting the classifier")


def _count(discriminant: Discriminant, runtime: Runtime, features: Tensor, labels: Tensor) -> None:
    count_photos(discriminant.to(float64_device(runtime.device)), features, labels)
    # The network was trained on these photos, so they lie closer to their class mean than new photos will: the
    # temperature is at least 1, and no photo is rejected for its distance.
    discriminant.set_calibration(max(1.0, discriminant.temperature), math.inf)
