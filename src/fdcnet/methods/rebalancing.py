"""Rebalancing (LUCIR): cosine scores, features that keep their direction, and a margin between old and new classes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fdcnet.config import Section, number
from fdcnet.data.records import Batch, Task
from fdcnet.losses import peers
from fdcnet.methods.base import Losses, Method, State, wsol_losses
from fdcnet.models.heads import CosineScores
from fdcnet.models.network import Outputs


@dataclass(frozen=True)
class RebalancingSettings(Section):
    """Rebalancing (LUCIR). `aanets` has the same losses."""

    less_forget: float = number(10.0, at_least=0)  # LUCIR's code, ImageNet; CIFAR: 5
    """Weight of the less-forget loss, multiplied by the root of (old classes / new classes)."""
    margin_ranking: float = number(1.0, at_least=0)  # LUCIR
    """Weight of the margin ranking loss."""
    margin: float = number(0.5, at_least=0)  # LUCIR
    """How much an old class's own cosine should exceed those of new classes."""
    rivals: int = number(2, at_least=1)  # LUCIR
    """Number of nearest new classes that a photo of an old class is ranked against."""


class Rebalancing(Method):
    name = "rebalancing"
    summary = "Replays a memory, freezes old class weights, keeps feature directions, separates old from new classes."
    reference = "Hou et al., Learning a Unified Classifier Incrementally via Rebalancing, CVPR 2019"
    uses_memory = True
    keeps_previous = True
    imprints = True
    classifier = "cosine"
    sections: ClassVar[Mapping[str, type[Section]]] = {"rebalancing": RebalancingSettings}

    def begin_task(self, state: State, task: Task) -> None:
        super().begin_task(state, task)
        self.scores_of(state).num_fixed = task.num_old

    def losses(self, state: State, outputs: Outputs, batch: Batch) -> Losses:
        losses = wsol_losses(state, outputs, batch)
        if state.previous is None:
            return losses
        config, num_old = state.config.section(RebalancingSettings), state.previous.num_classes
        with torch.no_grad():
            before = state.previous(batch.images, maps=False).class_features
        cosines = outputs.scores / self.scores_of(state).scale
        losses["less_forget"] = peers.less_forget(outputs.class_features, before)
        if state.network.num_classes > num_old:  # more photos of known classes add no rivals
            losses["margin"] = peers.margin_ranking(cosines, batch.labels, num_old, config.rivals, config.margin)
        return losses

    def weights(self, state: State, task: Task) -> dict[str, float]:
        config, growth = state.config.section(RebalancingSettings), (task.num_old / max(1, len(task.classes))) ** 0.5
        own = {"less_forget": config.less_forget * growth, "margin": config.margin_ranking}
        return super().weights(state, task) | own

    @staticmethod
    def scores_of(state: State) -> CosineScores:
        output = state.network.classifier.output
        assert isinstance(output, CosineScores), "refused before training"
        return output
