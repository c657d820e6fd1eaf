"""One phase: epochs of steps that sum a method's named losses, with the guard against losses that are no numbers."""

import time
from collections import Counter
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from fdcnet.data.records import Batch
from fdcnet.methods.base import Losses, Phase
from fdcnet.runtime.listener import Epoch
from fdcnet.training import optim

GUARD_EVERY = 25  # steps between looks at the losses: each look waits for the GPU


class Diverged(RuntimeError):
    """Some loss is no longer a finite number."""


def run_phase(
    phase: Phase,
    epoch_batches: Callable[[int], Iterable[Batch]],
    steps_per_epoch: int,
    autocast: torch.autocast,
    optimizer: torch.optim.Optimizer,
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
        for step, batch in enumerate(epoch_batches(number)):
            progress = ((number - 1) * steps_per_epoch + step) / total_steps
            lr = optim.set_rate(optimizer, progress)
            current = phase.at(step)
            with autocast:
                losses = current.losses(batch)
                total = torch.stack([risen(phase, name, value, progress) for name, value in losses.items()]).sum()
            optimizer.zero_grad(set_to_none=True)
            total.backward()
            if phase.optim.clip_norm:
                torch.nn.utils.clip_grad_norm_(current.parameters.values(), phase.optim.clip_norm)
            optimizer.step()
            sums.add(losses)
            if step % GUARD_EVERY == 0:
                sums.check(phase, number, step)
            num_images += len(batch.labels)
            on_step(len(batch.labels))
        sums.check(phase, number, steps_per_epoch)
        seconds = time.perf_counter() - started
        on_epoch(Epoch(number, sums.means(), lr, num_images / seconds, seconds))
    for module in phase.training:
        module.eval()


def risen(phase: Phase, name: str, loss: Tensor, progress: float) -> Tensor:
    """A loss as far as it counts at this share (0..1) of the phase."""
    share = phase.warmup.get(name, 0.0)
    return (
        loss * (progress / share) if progress < share else loss
    )  # no kernel for nothing: launches limit small batches


class Sums:
    """Running sums of the named losses, kept on the device until somebody looks. An outer step has other names."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, ...], Tensor] = {}
        self.counts: Counter[tuple[str, ...]] = Counter()

    def add(self, losses: Losses) -> None:
        names, values = tuple(losses), torch.stack([value.detach().float() for value in losses.values()])
        self.sums[names] = self.sums[names] + values if names in self.sums else values
        self.counts[names] += 1

    def means(self) -> dict[str, float]:
        means: dict[str, float] = {}
        for names, values in self.sums.items():
            means |= zip(names, (values / self.counts[names]).tolist(), strict=True)
        return means

    def check(self, phase: Phase, epoch: int, step: int) -> None:
        means = self.means()
        if any(value != value or abs(value) == float("inf") for value in means.values()):
            terms = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
            raise Diverged(
                f"The loss is no finite number any more (phase {phase.name}, epoch {epoch}, step {step}: {terms}).\n"
                "Start again in another folder with a lower rate (--set train.optim.lr=...) or with --set "
                "train.optim.clip_norm=5; for the drift phase, that is drift.optim.lr and drift.optim.clip_norm."
            )
