"""One phase: epochs of steps that add up a method's weighted losses. Stops when a loss is NaN or infinite."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from fdcnet.data.records import Batch
from fdcnet.methods.base import Phase
from fdcnet.runtime.listener import Epoch
from fdcnet.training import optim
from fdcnet.training.step import Step, Values

EMPTY_MASKS, FULL_MASKS = 0.01, 0.97  # mean area over an epoch
NO_SEPARATION = -0.1  # of `losses.bas.separation`; masks that find objects end below -0.5, empty and full ones at 0
MORE_HELPS = "Begin with more photos or classes: see 'few classes' in the guide to your photos."
GUARD_EVERY = 25  # steps between checks of the losses: each check waits for the GPU


class Diverged(RuntimeError):
    """A loss is NaN or infinite."""


class Sums:
    """Running sums of the losses, on the device until they are read. Outer steps have losses of their own."""

    def __init__(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        self.tensors = dict(tensors or {})
        """By the names of the losses, as JSON. (3, L): weighted, unweighted, number of steps"""

    def add(self, values: Values) -> None:
        names, plain = json.dumps(values.names), values.unweighted
        step = torch.stack([plain * values.weights, plain, torch.ones_like(plain)])
        self.tensors[names] = self.tensors[names].to(step.device) + step if names in self.tensors else step

    def means(self) -> tuple[dict[str, float], dict[str, float]]:
        """Weighted and unweighted mean of each loss."""
        weighted: dict[str, float] = {}
        unweighted: dict[str, float] = {}
        for names, sums in self.tensors.items():
            means = (sums[:2] / sums[2]).tolist()
            weighted |= zip(json.loads(names), means[0], strict=True)
            unweighted |= zip(json.loads(names), means[1], strict=True)
        return weighted, unweighted

    def check(self, phase: Phase, epoch: int, step: int) -> None:
        means, _ = self.means()
        if any(value != value or abs(value) == float("inf") for value in means.values()):
            terms = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
            raise Diverged(
                f"Loss is NaN or infinite (phase {phase.name}, epoch {epoch}, step {step}: {terms}).\n"
                "Start again in another folder with a lower learning rate (--set train.optim.lr=...) or with --set "
                "train.optim.clip_norm=5. For the drift phase, set drift.optim.lr and drift.optim.clip_norm."
            )


def doubtful_masks(losses: Mapping[str, float], is_last: bool) -> str | None:
    """What is wrong with the masks after an epoch, by its unweighted losses."""
    area, separation = losses.get("area", 0.5), losses.get("separation", -1.0)
    if area <= EMPTY_MASKS:
        what = "cover almost nothing"
    elif area >= FULL_MASKS:
        what = "cover whole photos"
    elif is_last and separation > NO_SEPARATION:
        what = "do not separate objects from the background"
    else:
        return None
    return f"The masks {what}, so boxes will be wrong{'' if is_last else ' unless that changes'}. {MORE_HELPS}"


@dataclass(frozen=True)
class Done:
    """How far a phase has come: whole epochs, then steps of the next one and the sums of their losses."""

    epochs: int = 0
    steps: int = 0
    sums: Sums = field(default_factory=Sums)


def run_phase(
    phase: Phase,
    epoch_batches: Callable[[int], Iterable[Batch]],
    steps_per_epoch: int,
    step: Step,
    done: Done | None = None,
    on_step: Callable[[int, Done], None] = lambda num_images, done: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> None:
    """Run the steps that follow `done`. `epoch_batches(n)` must depend on n alone: then a resumed run is exact."""
    done = done or Done()
    total_steps = phase.epochs * steps_per_epoch
    for module in phase.training:
        module.train()
    for number in range(done.epochs + 1, phase.epochs + 1):
        started, num_images, sums = time.perf_counter(), 0, done.sums
        for index, batch in enumerate(islice(epoch_batches(number), done.steps, None), start=done.steps):
            progress = ((number - 1) * steps_per_epoch + index) / total_steps
            lr = optim.set_rate(step.optimizer, progress)
            sums.add(step(phase.at(index), batch, progress))
            if index % GUARD_EVERY == 0:
                sums.check(phase, number, index)
            num_images += batch.num_photos
            on_step(batch.num_photos, Done(number - 1, index + 1, sums))
        sums.check(phase, number, steps_per_epoch)
        seconds = time.perf_counter() - started
        on_epoch(Epoch(number, *sums.means(), lr, num_images / seconds, seconds))
        done = Done(number)
    for module in phase.training:
        module.eval()
