"""Streaming LDA with a localizer: the features are frozen, and only masks are trained, against the LDA classifier."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fdcnet.data.records import Batch, Task
from fdcnet.losses import bas
from fdcnet.methods.base import Losses, Method, Phase, State
from fdcnet.models.discriminant import Discriminant
from fdcnet.models.network import LocalizationNetwork


class StreamingLDA(Method):
    name = "slda"
    summary = "Freezes the backbone, classifies by LDA in closed form and trains only the masks. For few photos."
    reference = "Hayes and Kanan, Lifelong Machine Learning with Deep Streaming LDA, CVPR Workshops 2020 (no masks)"
    uses_memory = True
    light = True
    closed_form = True

    def phases(self, state: State, task: Task) -> list[Phase]:
        [main] = super().phases(state, task)
        network = state.network.eval()
        assert state.discriminant is not None, "counted before the phases"
        rows = evidence_rows(state.discriminant).to(next(network.parameters()))
        masks = {name: value for name, value in main.parameters.items() if name.startswith("localizer.")}
        return [
            replace(
                main,
                parameters=masks,
                losses=lambda batch: mask_losses(network, rows, batch),
                training=(),
                rate_of=lambda name: 1.0,
                weights={},
                warmup={},
            )
        ]


def evidence_rows(discriminant: Discriminant) -> Tensor:
    """What speaks for each class and against the average of all: (K, D)"""
    weight = discriminant.solve().weight
    return weight - weight[discriminant.counts > 0].mean(0)


def mask_losses(network: LocalizationNetwork, rows: Tensor, batch: Batch) -> Losses:
    """The masks should cover the evidence for the true class, but little else.

    Evidence is counted from the features of an erased photo, for which it is zero.
    """
    tail, own = network.classifier.tail, rows[batch.labels]
    with torch.no_grad():
        features = network.backbone(batch.images)
        nothing = _pooled(tail, torch.zeros_like(features[:1]))
        evidence = ((_pooled(tail, features) - nothing) * own).sum(1)
    masks = bas.shifted_masks(network.localizer.of_class(features, batch.labels), *batch.part)
    erased = _pooled(tail, features * (1 - masks).to(features.dtype))
    return {"separation": bas.separation(((erased - nothing) * own).sum(1), evidence, masks)}


def _pooled(tail: nn.Module, features: Tensor) -> Tensor:
    """The tail's pooled features. Its parameters get no gradient. -> (B, D)"""
    constants = {name: value.detach() for name, value in tail.named_parameters()}
    return functional_call(tail, constants, (features,)).float().mean((2, 3))
