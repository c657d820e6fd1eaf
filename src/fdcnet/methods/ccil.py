"""CCIL: each batch has new photos, which compete among new classes only, and equally many exemplars of all classes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fdcnet.config import Section, number
from fdcnet.data.records import Batch, Task
from fdcnet.losses import distillation as kd
from fdcnet.methods.base import Losses, Method, Phase, State, excluded_old, wsol_losses
from fdcnet.models.network import Outputs


@dataclass(frozen=True)
class CCILSettings(Section):
    """CCIL."""

    kd: float = number(1.0, at_least=0)  # CCIL's code, ImageNet-100: 100, of a mean over 100 old classes
    """Weight of distillation."""
    power: float = number(0.66, at_least=0)  # CCIL's code
    """The weight is multiplied by this power of (all classes / new classes)."""
    temperature: float = number(2.0, above=0)  # CCIL
    """Temperature of the distilled class probabilities."""


class CCIL(Method):
    name = "ccil"
    summary = "Pairs new photos with exemplars of all classes; only exemplars compare old with new. Distills scores."
    reference = "Mittal et al., Essentials for Class Incremental Learning, CVPR Workshops 2021"
    uses_memory = True
    keeps_previous = True
    classifier = "cosine"
    sections: ClassVar[Mapping[str, type[Section]]] = {"ccil": CCILSettings}

    def phases(self, state: State, task: Task) -> list[Phase]:
        [main] = super().phases(state, task)
        return [replace(main, data="paired") if task.num_old else main]

    def losses(self, state: State, outputs: Outputs, batch: Batch) -> Losses:
        """Means over the whole batch. The authors add up the means of its two halves, which doubles every term."""
        if state.previous is None:
            return wsol_losses(state, outputs, batch)
        config, num_old = state.config.section(CCILSettings), state.previous.num_classes
        losses = wsol_losses(state, outputs, batch, excluded=excluded_old(batch, num_old, outputs))
        with torch.no_grad():
            before = state.previous(batch.images, maps=False).scores
        losses["kd_cls"] = kd.kd_classes(outputs.scores, before, config.temperature)
        return losses

    def weights(self, state: State, task: Task) -> dict[str, float]:
        config = state.config.section(CCILSettings)
        num_new = max(1, len(task.classes))  # more photos of known classes add no class
        return super().weights(state, task) | {"kd_cls": config.kd * (task.num_classes / num_new) ** config.power}
