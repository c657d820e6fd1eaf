"""One task: the phases of a method over its new photos and the exemplars, then what is kept of them."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from fdcnet.data.batches import Batches, Key, balanced_indices, epoch_indices
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Batch, Task
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import Method, Phase, State
from fdcnet.training import optim
from fdcnet.training.checkpoint import Checkpoint, Position
from fdcnet.training.exemplars import keep_exemplars, labels_of
from fdcnet.training.frozen import frozen_backbone, shared_views
from fdcnet.training.imprint import imprint
from fdcnet.training.loop import Epoch, run_phase
from fdcnet.training.runtime import Runtime
from fdcnet.training.seeding import seed_torch


class Journal:
    """Where a task writes down how far it is. This one forgets: a task that is stopped starts over."""

    def resume(self, task: Task) -> Checkpoint | None:
        """The checkpoint of this task, if there is one; whatever was written after it is forgotten."""
        return None

    def epoch_ended(
        self, state: State, phase: Phase, position: Position, epoch: Epoch, optimizer: torch.optim.Optimizer
    ) -> None: ...


@dataclass(frozen=True)
class Photos:
    """What a task learns from: its own photos and the exemplars, in one row of pixels."""

    pixels: Tensor  # (N, S, S, 3) uint8
    labels: Tensor  # (N,)
    from_memory: Tensor  # (N,) bool


EpochBatches = Callable[[list[Tensor], Key], Iterable[Batch]]
"""Indices and a key -> one epoch"""


def learn_task(
    state: State, method: Method, task: Task, new: PixelCache, runtime: Runtime, journal: Journal | None = None
) -> None:
    """Teach `state` the classes of `task` from their decoded photos `new` and its own memory."""
    journal = journal or Journal()
    seed_torch(state.config.seed, "grow", task.number)
    method.begin_task(state, task)
    if state.config.train.imprint and task.num_old and task.classes:
        imprint(state, runtime, task, new)
    photos = with_memory(new.pixels, labels_of(new, task), state.memory)

    epoch_batches = _epoch_batches(state, task, photos, runtime)
    with frozen_backbone(state) if state.config.train.views else nullcontext():
        checkpoint = journal.resume(task)
        if checkpoint:
            state.network.load_state_dict(checkpoint.network)
        for index, phase in enumerate(method.phases(state, task)):
            if checkpoint and index < checkpoint.position.phase:
                continue
            resumed = checkpoint if checkpoint and index == checkpoint.position.phase else None
            _run_phase(state, task, index, phase, photos, epoch_batches, runtime, journal, resumed)

    method.end_task(state, task)
    state.classes.extend(task.classes)
    state.task_sizes.append(len(task.classes))
    if method.uses_memory:
        keep_exemplars(state, runtime, task, new)


def _epoch_batches(state: State, task: Task, photos: Photos, runtime: Runtime) -> EpochBatches:
    """Fresh crops of the photos, or, where the backbone is frozen, the shared features of a few views of them."""
    config, lineage = state.config, state.network.lineage
    if config.train.views:
        key = (config.seed, task.number, "views")
        return shared_views(state, runtime, photos.pixels, photos.labels, photos.from_memory, key).batches
    return lambda indices, key: Batches(
        photos.pixels,
        photos.labels,
        photos.from_memory,
        indices,
        crop=config.data.crop,
        augment=True,
        zoom=config.data.zoom,
        seed_key=key,
        mean=lineage.mean,
        std=lineage.std,
        device=runtime.device,
    )


def _run_phase(
    state: State,
    task: Task,
    index: int,
    phase: Phase,
    photos: Photos,
    epoch_batches: EpochBatches,
    runtime: Runtime,
    journal: Journal,
    resumed: Checkpoint | None,
) -> None:
    config, listener = state.config, runtime.listener
    key = (config.seed, task.number, phase.name)
    optimizer = optim.make_optimizer(phase)
    if resumed:
        optim.restore_momenta(optimizer, phase, resumed.momenta)

    def indices(epoch: int) -> list[Tensor]:
        if phase.data == "balanced":
            return balanced_indices(photos.labels, config.train.batch_size, (*key, epoch, "order"), drop_last=True)
        return epoch_indices(len(photos.labels), config.train.batch_size, (*key, epoch, "order"), drop_last=True)

    def batches(epoch: int) -> Iterable[Batch]:
        return epoch_batches(indices(epoch), (*key, epoch, "crop"))

    def epoch_ended(epoch: Epoch) -> None:
        journal.epoch_ended(state, phase, Position(task.number, index, epoch.number), epoch, optimizer)
        listener.epoch_ended(epoch)

    first_epoch = resumed.position.epochs_done + 1 if resumed else 1
    epoch_sizes = [len(batch) for batch in indices(1)]
    listener.phase_started(phase.name, first_epoch, phase.epochs, sum(epoch_sizes))
    run_phase(
        phase,
        batches,
        len(epoch_sizes),
        runtime.autocast,
        optimizer,
        first_epoch,
        on_step=listener.step,
        on_epoch=epoch_ended,
    )
    listener.phase_ended()


def with_memory(pixels: Tensor, labels: Tensor, memory: ExemplarMemory) -> Photos:
    if not len(memory):
        return Photos(pixels, labels, torch.zeros(len(labels), dtype=torch.bool))
    return Photos(
        torch.cat([pixels, memory.all_pixels().to(pixels.device)]),
        torch.cat([labels, memory.all_labels()]),
        torch.arange(len(labels) + len(memory)) >= len(labels),
    )
