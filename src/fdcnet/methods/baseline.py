"""The paper's strong baseline: exemplar memory and four distillation losses (FDCNet without compensation)."""

import torch

from fdcnet.data.records import Batch, Task
from fdcnet.losses import distillation as kd
from fdcnet.methods.base import Losses, Method, State, wsol_losses
from fdcnet.models.network import Outputs


class Baseline(Method):
    name = "baseline"
    summary = "Replays a fixed exemplar memory and distils class scores, masks and both feature maps."
    reference = "Park et al., FDCNet, ACM MM 2023, section 3.3"
    uses_memory = True

    def begin_task(self, state: State, task: Task) -> None:
        if task.num_old:
            state.previous = state.network.frozen_copy()
        super().begin_task(state, task)

    def losses(self, state: State, outputs: Outputs, batch: Batch) -> Losses:
        losses = wsol_losses(state, outputs, batch)
        if state.previous is None:
            return losses
        weights = state.config.weights
        known = batch.labels < state.previous.num_classes
        with torch.no_grad():
            old = state.previous(batch.images, torch.where(known, batch.labels, 0))
        return losses | {
            "kd_cls": weights.kd_cls * kd.kd_classes(outputs.scores, old.scores),
            "kd_loc": weights.kd_loc * kd.kd_masks(outputs.masks, old.masks, known),
            "kd_feat_cls": weights.kd_feat_cls * kd.kd_features(outputs.class_features, old.class_features),
            "kd_feat_loc": weights.kd_feat_loc * kd.kd_features(outputs.features, old.features),
        }
