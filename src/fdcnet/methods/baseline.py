"""The paper's strong baseline: exemplar memory and four distillation losses (FDCNet without compensation)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fdcnet.config import Section, number
from fdcnet.data.records import Batch, Task
from fdcnet.losses import distillation as kd
from fdcnet.methods.base import Losses, Method, Phase, State, wsol_losses
from fdcnet.models.drift import scaled_compensation
from fdcnet.models.network import LocalizationNetwork, Outputs


@dataclass(frozen=True)
class DistillSettings(Section):
    """Distillation from the previous network. The weights of the terms are under `weights`."""

    temperature: float = number(1.0, above=0)  # ours; the paper's public code: 2
    """Temperature of the class probabilities."""
    softmax: Literal["old", "all"] = "old"
    """Class probabilities among the old classes (public code), or among all, then sliced (equation 7 as written)."""
    masks: Literal["mean_square", "norm"] = "mean_square"
    """Distance of masks: mean square (public code), or L2 norm (equation 8 as written)."""
    compensated: bool = False
    """Distill the previous network's compensated outputs instead of its plain ones."""
    average: float = number(0.0, at_least=0, at_most=1)  # ours: results/tuning.md, averaged weights
    """After each later task, average the weights with the previous network's; this is the previous network's share."""


class Baseline(Method):
    name = "baseline"
    summary = "Replays an exemplar memory and distills class scores, masks and both feature maps."
    reference = "Park et al., FDCNet, ACM MM 2023, section 3.3"
    uses_memory = True
    keeps_previous = True
    light = True
    sections: ClassVar[Mapping[str, type[Section]]] = {"distill": DistillSettings}

    def phases(self, state: State, task: Task) -> list[Phase]:
        [main] = super().phases(state, task)
        previous, share = state.previous, state.config.section(DistillSettings).average
        if previous is None or not share:
            return [main]
        return [replace(main, after=lambda: average_with(state.network, previous, share))]

    def losses(self, state: State, outputs: Outputs, batch: Batch) -> Losses:
        losses = wsol_losses(state, outputs, batch)
        if state.previous is None:
            return losses
        weights, distill = state.config.weights, state.config.section(DistillSettings)
        known = batch.labels < state.previous.num_classes
        old, average_masks = self.remembered(state, batch, known)
        if weights.kd_cls:
            losses["kd_cls"] = kd.kd_classes(outputs.scores, old.scores, distill.temperature, distill.softmax)
        if weights.kd_loc:
            losses["kd_loc"] = kd.kd_masks(outputs.masks, old.masks, known, distill.masks)
        if weights.kd_feat_cls:
            losses["kd_feat_cls"] = kd.kd_features(outputs.class_features, old.class_features)
        if weights.kd_feat_loc:
            losses["kd_feat_loc"] = kd.kd_features(outputs.features, old.features)
        if weights.kd_mean:
            losses["kd_mean"] = kd.kd_masks(outputs.masks, average_masks, ~known, distill.masks)
        return losses

    def weights(self, state: State, task: Task) -> dict[str, float]:
        names = ("kd_cls", "kd_loc", "kd_feat_cls", "kd_feat_loc", "kd_mean")
        return super().weights(state, task) | {name: getattr(state.config.weights, name) for name in names}

    @staticmethod
    @torch.no_grad()
    def remembered(state: State, batch: Batch, known: Tensor) -> tuple[Outputs, Tensor]:
        """The previous network's outputs with one map per photo, and its mean mask.

        The map is that of the photo's class; for new classes, whose loss is not counted, that of any class.
        """
        assert state.previous is not None
        labels, distill = torch.where(known, batch.labels, 0), state.config.section(DistillSettings)
        if not (distill.compensated or state.config.weights.kd_mean):
            outputs = state.previous(batch.images, labels)
            return outputs, outputs.masks
        outputs = state.previous(batch.images)
        if distill.compensated:
            outputs = scaled_compensation(state.previous, outputs)
        average_masks = outputs.masks.mean(1, keepdim=True)
        rows = torch.arange(len(labels), device=labels.device)
        own_masks = outputs.masks[rows, labels][:, None]
        return replace(outputs, loc_map=own_masks.logit(1e-6), mask_change=None), average_masks


@torch.no_grad()
def average_with(network: LocalizationNetwork, earlier: LocalizationNetwork, share: float) -> None:
    """Average parameters and statistics with an earlier network's. Classes that it lacks do not change."""
    then = earlier.state_dict()
    for name, value in network.state_dict().items():
        if name in then and value.is_floating_point() and not name.startswith("drift."):
            known = value[: len(then[name])] if value.dim() else value
            known.lerp_(then[name], share)
