"""The closed-form classifier of an experiment, fitted after each task to the network as it is then."""

import math

from torch import Tensor

from fdcnet.data.pixels import Pixels
from fdcnet.evaluation.evaluator import CENTRE, View
from fdcnet.float64 import float64_device
from fdcnet.methods.base import Method, State
from fdcnet.models.discriminant import Discriminant
from fdcnet.runtime.runtime import Runtime
from fdcnet.training.statistics import count_photos, pooled_views

VIEWS = (CENTRE, View("centre", mirrored=True))


def can_fit(method: Method | type[Method]) -> bool:
    """Whether photos of all classes are available: exemplars of old classes, or everything at once."""
    return method.uses_memory or method.one_task


def fit_discriminant(state: State, runtime: Runtime, pixels: Pixels, labels: Tensor) -> None:
    """Fit it to the exemplars of all classes, or to all photos if there are no old classes. (N, S, S, 3), (N,)"""
    settings = state.config.lda
    features = pooled_views(state, runtime, pixels, settings.layer, VIEWS, stage="fitting the classifier")
    discriminant = Discriminant(features.shape[2], shrinkage=settings.shrinkage, layer=settings.layer)
    discriminant.to(float64_device(runtime.device))
    count_photos(discriminant, features, labels)
    # The network was trained on these photos, so they lie closer to their class mean than new photos will: the
    # temperature is at least 1, and no photo is rejected for its distance.
    discriminant.set_calibration(max(1.0, discriminant.temperature), math.inf)
    state.discriminant = discriminant
