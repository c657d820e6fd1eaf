"""Rebalancing (LUCIR): cosine scores, features that keep their direction, and a margin between old and new classes."""

import torch

from fdcnet.data.records import Batch, Task
from fdcnet.losses import peers
from fdcnet.methods.base import Losses, Method, State, wsol_losses
from fdcnet.models.heads import CosineScores
from fdcnet.models.network import Outputs


class Rebalancing(Method):
    name = "rebalancing"
    summary = (
        "Replays a memory; old class weights stay, features keep their direction, new classes keep their distance."
    )
    reference = "Hou et al., Learning a Unified Classifier Incrementally via Rebalancing, CVPR 2019"
    uses_memory = True
    keeps_previous = True
    imprints = True
    classifier = "cosine"

    def begin_task(self, state: State, task: Task) -> None:
        super().begin_task(state, task)
        self.scores_of(state).num_fixed = task.num_old

    def losses(self, state: State, outputs: Outputs, batch: Batch) -> Losses:
        losses = wsol_losses(state, outputs, batch)
        if state.previous is None:
            return losses
        config, num_old = state.config.rebalancing, state.previous.num_classes
        with torch.no_grad():
            before = state.previous(batch.images, maps=False).class_features
        cosines = outputs.scores / self.scores_of(state).scale
        losses["less_forget"] = peers.less_forget(outputs.class_features, before)
        if state.network.num_classes > num_old:  # more photos of known classes add no rivals
            losses["margin"] = peers.margin_ranking(cosines, batch.labels, num_old, config.rivals, config.margin)
        return losses

    def weights(self, state: State, task: Task) -> dict[str, float]:
        config, growth = state.config.rebalancing, (task.num_old / max(1, len(task.classes))) ** 0.5
        own = {"less_forget": config.less_forget * growth, "margin": config.margin_ranking}
        return super().weights(state, task) | own

    @staticmethod
    def scores_of(state: State) -> CosineScores:
        output = state.network.classifier.output
        assert isinstance(output, CosineScores), "refused before training"
        return output
