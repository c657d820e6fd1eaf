"""Streaming LDA with a localizer: the features are frozen, and only masks are trained, against the LDA classifier."""

from dataclasses import replace

import torch
from torch import Tensor

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

    Evidence is counted cell by cell, compared with an erased photo, for which it is zero.
    """
    tail, own = network.classifier.tail, rows[batch.labels][:, :, None, None]
    with torch.no_grad():
        features = network.backbone(batch.images)
        difference = tail(features).float() - tail(torch.zeros_like(features[:1])).float()
        evidence = (difference * own).sum(1)  # (B, H2, W2)
    masks = bas.shifted_masks(network.localizer.of_class(features, batch.labels), *batch.part)
    return {"separation": bas.separation(evidence, masks)}
