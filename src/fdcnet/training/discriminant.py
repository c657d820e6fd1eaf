"""The closed-form classifier of an experiment, fitted after each task under the network as it is then."""

import torch
from torch import Tensor

from fdcnet.data.batches import normalise
from fdcnet.methods.base import Method, State
from fdcnet.models.discriminant import Discriminant, fit_temperature
from fdcnet.runtime.runtime import Runtime

BATCH = 128


def can_fit(method: Method | type[Method]) -> bool:
    """Photos of all classes are at hand: exemplars of old ones, or everything at once."""
    return method.uses_memory or method.one_task


def fit_discriminant(state: State, runtime: Runtime, pixels: Tensor, labels: Tensor) -> None:
    """From the exemplars of all classes, or from all photos where none are old. (N, S, S, 3), (N,)"""
    settings = state.config.lda
    features = _features(state, runtime, pixels)
    labels = labels.to(features.device)
    discriminant = Discriminant(features.shape[1], shrinkage=settings.shrinkage, layer=settings.layer)
    discriminant.to(features.device).add(features, labels)
    # A photo's own score would be too good: the temperature is fitted with each photo left out in turn.
    left_out = -0.5 * discriminant.distances_left_out(features, labels)
    certain = left_out.isfinite().gather(1, labels[:, None])[:, 0]  # a class of one photo is left without any
    if certain.any():
        # Never below 1: the network has trained on these photos, so they lie closer to their mean than new ones will.
        discriminant.temperature = max(1.0, fit_temperature(left_out[certain], labels[certain]))
    state.discriminant = discriminant.to("cpu")


@torch.inference_mode()
def _features(state: State, runtime: Runtime, pixels: Tensor) -> Tensor:
    """Mean over the centre crop and its mirror image: (N, D)"""
    crop, network = state.config.data.crop, state.network.eval()
    start = (pixels.shape[1] - crop) // 2
    pooled = []
    for chunk in pixels.split(BATCH):
        centre = chunk[:, start : start + crop, start : start + crop].to(runtime.device)
        with runtime.autocast:
            views = [
                network(normalise(view, network.lineage.mean, network.lineage.std), maps=False)
                for view in (centre, centre.flip(2))
            ]
        pooled.append(torch.stack([view.pooled(state.config.lda.layer) for view in views]).mean(0))
    return torch.cat(pooled)
