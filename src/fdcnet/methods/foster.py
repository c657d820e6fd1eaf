"""FOSTER: a second network learns what the frozen one lacks; then a single student learns from both."""

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fdcnet.config import Section, number
from fdcnet.data.records import Batch, Task
from fdcnet.losses import bas, peers
from fdcnet.methods.base import Losses, Method, Phase, State, wsol_losses
from fdcnet.models.boosted import boosted, learning_parts
from fdcnet.models.heads import LinearScores
from fdcnet.models.network import LocalizationNetwork


@dataclass(frozen=True)
class FosterSettings(Section):
    """FOSTER: boosting, then compression."""

    boost_share: float = number(0.57, above=0, below=1)  # FOSTER's code: 170 epochs and 130
    """Fraction of a later task's epochs used for boosting. The rest is compression."""
    boost_beta: float = number(0.97, above=0, below=1)  # FOSTER's code, ImageNet-100
    """Logit alignment while boosting: how quickly additional photos of a class count less."""
    compress_beta: float = number(0.97, above=0, below=1)  # FOSTER's code, ImageNet-100
    """The same for the balanced distillation."""
    kd: float = number(1.0, at_least=0)  # FOSTER's code
    """Weight of distillation while boosting."""
    temperature: float = number(2.0, above=0)  # FOSTER
    """Temperature of the distilled class probabilities."""
    compress_weight_decay: float = number(0.0, at_least=0)  # FOSTER's code
    """Weight decay while compressing."""


class FOSTER(Method):
    name = "foster"
    summary = "Replays a memory; boosts the frozen network with a second one, then distills both into one student."
    reference = "Wang et al., FOSTER: Feature Boosting and Compression, ECCV 2022"
    uses_memory = True
    keeps_previous = True
    classifier = "linear"
    sections: ClassVar[Mapping[str, type[Section]]] = {"foster": FosterSettings}

    def begin_task(self, state: State, task: Task) -> None:
        """The student is the network itself, grown from the old one."""
        super().begin_task(state, task)
        if state.previous:
            state.task_modules["teacher"] = boosted(state.previous, len(task.classes))
            state.task_modules["expert"] = copy.deepcopy(state.network.classifier.output)

    def phases(self, state: State, task: Task) -> list[Phase]:
        [main] = super().phases(state, task)
        if not task.num_old:
            return [main]
        config, teacher = state.config.section(FosterSettings), self.teacher_of(state)
        learned = {name: value for name, value in state.task_modules.named_parameters() if value.requires_grad}
        boost_epochs = max(1, round(config.boost_share * main.epochs))
        counts = photos_per_class(state, task)
        boost_rarity = peers.rarity(counts, config.boost_beta)
        compress_rarity = peers.rarity(counts, config.compress_beta)
        boost = replace(
            main,
            name="boost",
            epochs=boost_epochs,
            parameters=learned,
            losses=lambda batch: self.boost_losses(state, batch, boost_rarity),
            training=learning_parts(teacher),
            weights=main.weights | {"kd_cls": config.kd},
            is_head=lambda name: name.startswith("expert.") or teacher.is_head(name.removeprefix("teacher.")),
            rate_of=lambda name: main.rate_of(name.removeprefix("teacher.")),
        )
        compress = replace(
            main,
            name="compress",
            epochs=max(1, main.epochs - boost_epochs),
            losses=lambda batch: self.compress_losses(state, batch, compress_rarity),
            optim=replace(main.optim, weight_decay=config.compress_weight_decay),
        )
        return [boost, compress]

    def boost_losses(self, state: State, batch: Batch, rarity: Tensor) -> Losses:
        assert state.previous is not None
        config, teacher = state.config.section(FosterSettings), self.teacher_of(state)
        expert = state.task_modules["expert"]
        assert isinstance(expert, LinearScores)
        outputs = teacher(batch.images, batch.labels)
        old_features, new_features = outputs.class_features.chunk(2, dim=1)
        with torch.no_grad():
            old = state.previous.classifier
            before = old.rectified(old.output(old_features)).float().mean((2, 3))
        losses = wsol_losses(state, outputs, batch, network=teacher, divisor=rarity)
        losses["expert"] = bas.classification(expert(new_features).float().mean((2, 3)), batch.labels)
        now, alike = outputs.scores[:, : before.shape[1]], torch.ones_like(before[0])
        losses["kd_cls"] = peers.balanced_distillation(now, before, alike, config.temperature)
        return losses

    def compress_losses(self, state: State, batch: Batch, rarity: Tensor) -> Losses:
        """The teacher's probabilities replace the labels. The localization losses are the student's own."""
        with torch.no_grad():
            taught = self.teacher_of(state)(batch.images, maps=False).scores
        outputs = state.network(batch.images, batch.labels)
        losses = wsol_losses(state, outputs, batch, divisor=rarity)
        del losses["cls"]
        temperature = state.config.section(FosterSettings).temperature
        return losses | {"bkd": peers.balanced_distillation(outputs.scores, taught, rarity, temperature)}

    @staticmethod
    def teacher_of(state: State) -> LocalizationNetwork:
        teacher = state.task_modules["teacher"]
        assert isinstance(teacher, LocalizationNetwork)
        return teacher


def photos_per_class(state: State, task: Task) -> Tensor:
    """Number of exemplars of each old class and photos of each new class: (K,)"""
    old = [len(state.memory.names.get(label, ())) for label in range(task.num_old)]
    photos_of = Counter(record.label for record in task.train)
    new = [photos_of[name] for name in task.classes]
    device = state.network.localizer.weight.device
    return torch.tensor([max(1, number) for number in old + new], dtype=torch.float32, device=device)
