"""FDCNet: the baseline, and after it a phase that learns what drift has done to the outputs for old classes."""

from dataclasses import replace

import torch
from torch import Tensor

from fdcnet.data.records import Batch, Task
from fdcnet.losses import drift
from fdcnet.methods.base import Losses, Phase, State
from fdcnet.methods.baseline import Baseline
from fdcnet.models.network import Outputs


class FDCNet(Baseline):
    name = "fdcnet"
    summary = "The baseline, plus two further networks that compensate old class scores and maps for feature drift."
    reference = "Park et al., FDCNet, ACM MM 2023, section 4"

    def begin_task(self, state: State, task: Task) -> None:
        super().begin_task(state, task)  # the frozen previous network keeps its own modules: targets chain through them
        state.network.drift = None
        if task.num_old and (state.config.drift.classes or state.config.drift.maps):
            state.network.add_drift(task.num_old, state.config.drift)

    def phases(self, state: State, task: Task) -> list[Phase]:
        phases = super().phases(state, task)
        if state.network.drift is None:
            return phases
        [main] = phases
        learned = {name: value for name, value in main.parameters.items() if not name.startswith("drift.")}
        drift_phase = Phase(
            name="drift",
            epochs=state.config.drift.epochs,
            parameters=dict(state.network.drift.named_parameters(prefix="drift")),
            losses=lambda batch: self.drift_losses(state, batch),
            training=(),
            optim=state.config.drift.optim,
            weights={"dc_loc": state.config.drift.dc_loc},
        )
        return [replace(main, parameters=learned), drift_phase]

    def drift_losses(self, state: State, batch: Batch) -> Losses:
        """L_dc (equation 13), term by term."""
        assert state.previous is not None and state.network.drift is not None
        config = state.config.drift
        with torch.no_grad():
            target = state.previous.corrected(state.previous(batch.images))
            plain = state.network(batch.images)
        now, num_old = state.network.corrected(plain), state.previous.num_classes
        class_target, loc_target = target.class_map, target.loc_map
        if config.new_photos == "own":
            known = (batch.labels < num_old)[:, None, None, None]
            class_target = torch.where(known, class_target, plain.class_map[:, :num_old])
            loc_target = torch.where(known, loc_target, plain.loc_map[:, :num_old])
        losses: Losses = {}
        if config.classes:
            losses["dc_cls"] = drift.drift_classes(now.class_map[:, :num_old], class_target)
        if config.maps:
            losses["dc_loc"] = drift.drift_maps(now.loc_map[:, :num_old], loc_target)
        return losses

    def finish(self, state: State, outputs: Outputs) -> Outputs:
        """Equation 11"""
        return state.network.compensated(outputs)

    def masks_of(self, state: State, outputs: Outputs, labels: Tensor) -> Tensor:
        return state.network.masks_of(outputs, labels, compensate=True)
