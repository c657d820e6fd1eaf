"""FDCNet: the baseline, followed by a phase that learns to compensate old outputs for feature drift."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from fdcnet.config import Section
from fdcnet.data.records import Batch, Task
from fdcnet.losses import drift
from fdcnet.methods.base import Losses, Phase, State
from fdcnet.methods.baseline import Baseline
from fdcnet.models.drift import (
    DriftSettings,
    add_drift,
    compensated_masks,
    drift_of,
    full_compensation,
    scaled_compensation,
)
from fdcnet.models.network import Outputs


class FDCNet(Baseline):
    name = "fdcnet"
    summary = "The baseline, plus two modules that compensate old class scores and maps for feature drift."
    reference = "Park et al., FDCNet, ACM MM 2023, section 4"
    sections: ClassVar[Mapping[str, type[Section]]] = {**Baseline.sections, "drift": DriftSettings}

    def begin_task(self, state: State, task: Task) -> None:
        super().begin_task(state, task)  # the frozen previous network keeps its own modules: targets chain through them
        settings = state.config.section(DriftSettings)
        state.network.drift = None
        if task.num_old and (settings.classes or settings.maps):
            add_drift(state.network, task.num_old, settings)

    def phases(self, state: State, task: Task) -> list[Phase]:
        phases, modules = super().phases(state, task), drift_of(state.network)
        if modules is None:
            return phases
        [main] = phases
        settings = state.config.section(DriftSettings)
        learned = {name: value for name, value in main.parameters.items() if not name.startswith("drift.")}
        drift_phase = Phase(
            name="drift",
            epochs=settings.epochs,
            parameters=dict(modules.named_parameters(prefix="drift")),
            losses=lambda batch: self.drift_losses(state, batch),
            training=(),
            optim=settings.optim,
            weights={"dc_loc": settings.dc_loc},
        )
        return [replace(main, parameters=learned), drift_phase]

    def drift_losses(self, state: State, batch: Batch) -> Losses:
        """L_dc (equation 13), term by term and unweighted."""
        assert state.previous is not None
        settings, num_old = state.config.section(DriftSettings), state.previous.num_classes
        with torch.no_grad():
            target = full_compensation(state.previous, state.previous(batch.images))
            plain = state.network(batch.images)
        now = full_compensation(state.network, plain)
        class_target, loc_target = target.class_map, target.loc_map
        if settings.new_photos == "own":
            known = (batch.labels < num_old)[:, None, None, None]
            class_target = torch.where(known, class_target, plain.class_map[:, :num_old])
            loc_target = torch.where(known, loc_target, plain.loc_map[:, :num_old])
        losses: Losses = {}
        if settings.classes:
            losses["dc_cls"] = drift.drift_classes(now.class_map[:, :num_old], class_target, settings.distance)
        if settings.maps:
            losses["dc_loc"] = drift.drift_maps(now.loc_map[:, :num_old], loc_target, settings.distance)
        return losses

    def finish(self, state: State, outputs: Outputs) -> Outputs:
        """Equation 11"""
        return scaled_compensation(state.network, outputs)

    def masks_of(self, state: State, outputs: Outputs, labels: Tensor) -> Tensor:
        return compensated_masks(state.network, outputs, labels)
