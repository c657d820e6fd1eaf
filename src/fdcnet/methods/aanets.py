"""AANets: Rebalancing with a stable and a plastic branch at each level, mixed by learned shares."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch.func import functional_call

from fdcnet.config import OptimConfig, Section, number
from fdcnet.data.records import Batch, Task
from fdcnet.losses import bas
from fdcnet.methods.base import Losses, Phase, State
from fdcnet.methods.rebalancing import Rebalancing
from fdcnet.models.network import in_eval_mode
from fdcnet.models.pairs import is_mixed, mix


@dataclass(frozen=True)
class AANetsSettings(Section):
    """AANets, in addition to `rebalancing`."""

    outer_every: int = number(10, at_least=2)  # ours: all methods then see equally many photos; authors: one pass each
    """Every Nth step learns the branch shares, on exemplars of all classes."""
    outer_lr: float = number(0.02, above=0)  # ours, not tuned; at the authors' 1e-8 the shares do not move
    """Learning rate of the shares."""


class AANets(Rebalancing):
    name = "aanets"
    summary = "Rebalancing with two branches per level, one frozen and one free, mixed by learned shares."
    sections: ClassVar[Mapping[str, type[Section]]] = {**Rebalancing.sections, "aanets": AANetsSettings}
    reference = "Liu et al., Adaptive Aggregation Networks for Class-Incremental Learning, CVPR 2021"

    def begin_task(self, state: State, task: Task) -> None:
        super().begin_task(state, task)
        if task.num_old and not is_mixed(state.network):
            mix(state.network)

    def phases(self, state: State, task: Task) -> list[Phase]:
        [main] = super().phases(state, task)
        if not task.num_old:
            return [main]
        config = state.config.section(AANetsSettings)
        learned = {name: value for name, value in main.parameters.items() if value.requires_grad}
        shares = {name: learned.pop(name) for name in list(learned) if name.endswith(".logit")}
        outer = Phase(
            name="outer",
            epochs=main.epochs,
            parameters=shares,
            losses=lambda batch: self.outer_losses(state, batch),
            training=(),
            optim=OptimConfig(lr=config.outer_lr, head_factor=1.0, bias_factor=1.0, weight_decay=0.0),
            data="exemplars",
        )
        return [replace(main, parameters=learned, outer=outer, outer_every=config.outer_every)]

    @staticmethod
    def outer_losses(state: State, batch: Batch) -> Losses:
        """Cross-entropy on a class-balanced set. Only the shares get a gradient."""
        values = dict(state.network.named_parameters())
        fixed = {name: value if name.endswith(".logit") else value.detach() for name, value in values.items()}
        with in_eval_mode(state.network):
            outputs = functional_call(state.network, fixed, (batch.images,), {"maps": False})
        return {"shares": bas.classification(outputs.scores, batch.labels)}
