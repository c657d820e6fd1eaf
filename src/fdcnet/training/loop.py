"""One phase: epochs of steps that add up a method's weighted losses. Stops when a loss is NaN or infinite."""

import time
from collections import Counter
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from fdcnet.data.records import Batch
from fdcnet.methods.base import Phase
from fdcnet.runtime.listener import Epoch
from fdcnet.training import optim
from fdcnet.training.step import Step, Values

GUARD_EVERY = 25  # steps between checks of the losses: each check waits for the GPU


class Diverged(RuntimeError):
    """A loss is NaN or infinite."""


def run_phase(
    phase: Phase,
    epoch_batches: Callable[[int], Iterable[Batch]],
    steps_per_epoch: int,
    step: Step,
    first_epoch: int = 1,
    on_step: Callable[[int], None] = lambda num_images: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> None:
    """Run epochs `first_epoch` to the last. `epoch_batches(n)` must depend on n alone: then a resumed run is exact."""
    total_steps = phase.epochs * steps_per_epoch
    for module in phase.training:
        module.train()
    for number in range(first_epoch, phase.epochs + 1):
        started, num_images, sums = time.perf_counter(), 0, Sums()
        for index, batch in enumerate(epoch_batches(number)):
            progress = ((number - 1) * steps_per_epoch + index) / total_steps
            lr = optim.set_rate(step.optimizer, progress)
            sums.add(step(phase.at(index), batch, progress))
            if index % GUARD_EVERY == 0:
                sums.check(phase, number, index)
            num_images += len(batch.labels)
            on_step(len(batch.labels))
        sums.check(phase, number, steps_per_epoch)
        seconds = time.perf_counter() - started
        on_epoch(Epoch(number, *sums.means(), lr, num_images / seconds, seconds))
    for module in phase.training:
        module.eval()


class Sums:
    """Running sums of the losses, on the device until they are read. Outer steps have losses of their own."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, ...], Tensor] = {}  # (2, L): weighted, unweighted
        self.counts: Counter[tuple[str, ...]] = Counter()

    def add(self, values: Values) -> None:
        both = torch.stack([values.unweighted * values.weights, values.unweighted])
        self.sums[values.names] = self.sums[values.names] + both if values.names in self.sums else both
        self.counts[values.names] += 1

    def means(self) -> tuple[dict[str, float], dict[str, float]]:
        """Weighted and unweighted mean of each loss."""
        weighted: dict[str, float] = {}
        unweighted: dict[str, float] = {}
        for names, values in self.sums.items():
            means = (values / self.counts[names]).tolist()
            weighted |= zip(names, means[0], strict=True)
            unweighted |= zip(names, means[1], strict=True)
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
