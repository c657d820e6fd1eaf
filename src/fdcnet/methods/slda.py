"""Streaming LDA with a localizer: the features are frozen, and only masks are trained, against the LDA classifier."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fdcnet.data.records import Batch, Task
from fdcnet.losses import bas
from fdcnet.methods.base import Losses, Method, Phase, State, ViewMap
from fdcnet.models.discriminant import Discriminant
from fdcnet.models.network import LocalizationNetwork

SHARP = 1 / 2  # weight of the gradient; ours: results/tuning.md, evidence for every backbone


class StreamingLDA(Method):
    name = "slda"
    summary = "Freezes the backbone, classifies by LDA in closed form and trains only the masks. For few photos."
    reference = "Hayes and Kanan, Lifelong Machine Learning with Deep Streaming LDA, CVPR Workshops 2020 (no masks)"
    uses_memory = True
    light = True
    closed_form = True

    def phases(self, state: State, task: Task) -> list[Phase]:
        [main] = super().phases(state, task)
        network, view_map = state.network.eval(), self.view_map(state)

        def losses(batch: Batch) -> Losses:
            if not state.config.train.views:
                with torch.no_grad():
                    features = network.backbone(batch.images)
                evidence = view_map(features, batch.labels)
                batch = batch._replace(images=torch.cat([features, evidence[:, None]], dim=1))
            return mask_losses(network, batch)

        masks = {name: value for name, value in main.parameters.items() if name.startswith("localizer.")}
        return [
            replace(
                main,
                parameters=masks,
                losses=losses,
                training=(),
                rate_of=lambda name: 1.0,
                weights={},
                warmup={},
            )
        ]

    def view_map(self, state: State) -> ViewMap:
        tail = state.network.classifier.tail
        assert state.discriminant is not None, "counted before training"
        rows = evidence_rows(state.discriminant).float().to(next(state.network.parameters()).device)
        return lambda features, labels: evidence_map(tail, features, rows[labels])


def evidence_rows(discriminant: Discriminant) -> Tensor:
    """What speaks for each class and against the average of all: (K, D)"""
    weight = discriminant.solve().weight
    return weight - weight[discriminant.counts > 0].mean(0)


def mask_losses(network: LocalizationNetwork, batch: Batch) -> Losses:
    """The masks should cover the evidence for the true class, the last channel of `batch.images`, but little else."""
    features, evidence = batch.images[:, :-1], batch.images[:, -1]
    masks = bas.shifted_masks(network.localizer.of_class(features, batch.labels), *batch.part)
    return {"separation": bas.separation(evidence, masks)}


def evidence_map(tail: nn.Module, features: Tensor, rows: Tensor) -> Tensor:
    """What speaks for a class in each cell of the shared features: (B, C, H, W), (B, D) -> (B, H, W), not negative

    A weighted mean of two maps. The tail's features, compared with those of an erased photo, show the whole object and
    some of its surroundings, because a cell of the tail sees its neighbours. Gradient times features is sharper. Only
    the channels that speak for the class are added (LayerCAM): the others would cancel them in most cells of an object.
    """
    features = features.detach().requires_grad_()
    with torch.no_grad():
        nothing = tail(torch.zeros_like(features[:1])).float()
    with torch.enable_grad():
        found = ((tail(features).float() - nothing) * rows[:, :, None, None]).sum(1)  # (B, H2, W2)
        [gradient] = torch.autograd.grad(found.sum(), features)
    sharp = F.relu((gradient * features.detach()).float()).sum(1)
    coarse = F.interpolate(found.detach()[:, None], size=sharp.shape[1:], mode="bilinear")[:, 0]
    return _with_mean_one(coarse).lerp(_with_mean_one(sharp), SHARP)


def _with_mean_one(evidence: Tensor) -> Tensor:
    """Without negative values; zeros where there are no others: (B, H, W) -> (B, H, W)"""
    positive = F.relu(evidence)
    return positive / positive.mean((1, 2), keepdim=True).clamp(min=1e-12)
