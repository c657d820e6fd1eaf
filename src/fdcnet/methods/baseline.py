"""The paper's strong baseline: exemplar memory and four distillation losses (FDCNet without compensation)."""

from dataclasses import replace

import torch
from torch import Tensor

from fdcnet.data.records import Batch, Task
from fdcnet.losses import distillation as kd
from fdcnet.methods.base import Losses, Method, Phase, State, wsol_losses
from fdcnet.models.network import Outputs


class Baseline(Method):
    name = "baseline"
    summary = "Replays a fixed exemplar memory and distils class scores, masks and both feature maps."
    reference = "Park et al., FDCNet, ACM MM 2023, section 3.3"
    uses_memory = True
    keeps_previous = True

    def phases(self, state: State, task: Task) -> list[Phase]:
        [main] = super().phases(state, task)
        previous, share = state.previous, state.config.distill.average
        if previous is None or not share:
            return [main]
        return [replace(main, after=lambda: state.network.draw_to(previous, share))]

    def losses(self, state: State, outputs: Outputs, batch: Batch) -> Losses:
        losses = wsol_losses(state, outputs, batch)
        if state.previous is None:
            return losses
        weights, distill = state.config.weights, state.config.distill
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
        """The previous network's outputs, with the map of each sample's class (of new ones: any), and its mean mask."""
        assert state.previous is not None
        labels = torch.where(known, batch.labels, 0)
        if not (state.config.distill.compensated or state.config.weights.kd_mean):
            outputs = state.previous(batch.images, labels)
            return outputs, outputs.masks
        outputs = state.previous(batch.images)
        if state.config.distill.compensated:
            outputs = state.previous.compensated(outputs)
        average_masks = outputs.masks.mean(1, keepdim=True)
        rows = torch.arange(len(labels), device=labels.device)
        own_masks = outputs.masks[rows, labels][:, None]
        return replace(outputs, loc_map=own_masks.logit(1e-6), mask_change=None), average_masks
