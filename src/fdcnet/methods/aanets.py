"""AANets: Rebalancing in a network whose levels are each a stable and a plastic one, mixed by learned shares."""

from dataclasses import replace

from torch.func import functional_call

from fdcnet.config import OptimConfig
from fdcnet.data.records import Batch, Task
from fdcnet.losses import bas
from fdcnet.methods.base import Losses, Phase, State
from fdcnet.methods.rebalancing import Rebalancing


class AANets(Rebalancing):
    name = "aanets"
    summary = "Rebalancing with two branches per level, one with fixed filters, one free; their shares are learned."
    reference = "Liu et al., Adaptive Aggregation Networks for Class-Incremental Learning, CVPR 2021"

    def begin_task(self, state: State, task: Task) -> None:
        super().begin_task(state, task)
        if task.num_old and not state.network.is_mixed:
            state.network.mix()

    def phases(self, state: State, task: Task) -> list[Phase]:
        [main] = super().phases(state, task)
        if not task.num_old:
            return [main]
        config = state.config.aanets
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
        """Cross-entropy on as many photos of each class; its gradient reaches the shares alone."""
        network = state.network.eval()
        values = dict(network.named_parameters())
        fixed = {name: value if name.endswith(".logit") else value.detach() for name, value in values.items()}
        outputs = functional_call(network, fixed, (batch.images,), {"maps": False})
        network.train()
        return {"shares": bas.classification(outputs.scores, batch.labels)}
