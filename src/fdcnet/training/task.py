"""One task: run the phases of a method on new photos and exemplars, then select the exemplars to keep."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext

from torch import Tensor, nn

from fdcnet.data.batches import Batches, Key
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Batch, Task
from fdcnet.methods.base import Method, Phase, State
from fdcnet.runtime.device import tuned_kernels
from fdcnet.runtime.distributed import copy_from_first, own_part, refuse_too_many_processes
from fdcnet.runtime.listener import Epoch
from fdcnet.runtime.runtime import Runtime
from fdcnet.training import optim
from fdcnet.training.checkpoint import Checkpoint, Position
from fdcnet.training.exemplars import keep_exemplars, labels_of
from fdcnet.training.imprint import imprint
from fdcnet.training.journal import Journal
from fdcnet.training.light import frozen_backbone, shared_views
from fdcnet.training.loop import Done, Sums, doubtful_masks, run_phase
from fdcnet.training.sampling import TrainingPhotos, gather_photos, indices_of, needs_drawn
from fdcnet.training.seeding import seed_torch
from fdcnet.training.statistics import count_classes
from fdcnet.training.step import make_step

EpochBatches = Callable[[list[Tensor], Key], Iterable[Batch]]
"""Indices and a key -> one epoch"""


def learn_task(
    state: State, method: Method, task: Task, new: PixelCache, runtime: Runtime, journal: Journal | None = None
) -> None:
    """Train `state` on the classes of `task`, from their decoded photos `new` and the memory."""
    journal = journal or Journal()
    seed_torch(state.config.seed, "grow", task.number)
    method.begin_task(state, task)
    if task.num_old and task.classes and (method.imprints or state.config.train.imprint):
        imprint(state, runtime, task, new)
    if method.closed_form:
        count_classes(state, runtime, task, new)

    with frozen_backbone(state) if state.config.train.views else nullcontext(state.network.backbone) as backbone:
        checkpoint = journal.resume(task)
        if checkpoint:
            with checkpoint.fitting():
                state.network.load_state_dict(checkpoint.network)
                state.task_modules.load_state_dict(checkpoint.task_modules)
        phases = method.phases(state, task)
        draw, key = any(map(needs_drawn, phases)), (state.config.seed, task.number)
        photos = gather_photos(new.pixels, labels_of(new, task), state.memory, task, draw, key)
        epoch_batches = _epoch_batches(state, method, task, photos, runtime, backbone)
        if checkpoint and checkpoint.position.phase >= len(phases):
            raise checkpoint.misfit(f"it is in phase {checkpoint.position.phase + 1} of {len(phases)}")
        for index, phase in enumerate(phases):
            if checkpoint and index < checkpoint.position.phase:
                continue
            resumed = checkpoint if checkpoint and index == checkpoint.position.phase else None
            _run_phase(state, task, index, phase, photos, epoch_batches, runtime, journal, resumed)

    method.end_task(state, task)
    state.classes.extend(task.classes)
    state.task_sizes.append(len(task.classes))
    if method.uses_memory:
        with runtime.clock("herd"):
            keep_exemplars(state, runtime, task, new)


def _epoch_batches(
    state: State, method: Method, task: Task, photos: TrainingPhotos, runtime: Runtime, backbone: nn.Module
) -> EpochBatches:
    """New crops of the photos; with a frozen backbone, the shared features of a few views of them."""
    config, lineage = state.config, state.network.lineage
    if config.train.views:
        key = (config.seed, task.number, "views")
        pixels, labels, from_memory = photos.pixels, photos.labels, photos.from_memory
        view_map = method.view_map(state)
        return shared_views(state, runtime, backbone, pixels, labels, from_memory, key, view_map).batches
    return lambda indices, key: Batches(
        photos.pixels,
        photos.labels,
        photos.from_memory,
        indices,
        crop=config.data.crop,
        augment=True,
        zoom=config.data.zoom,
        colour=config.data.colour,
        seed_key=key,
        mean=lineage.mean,
        std=lineage.std,
        device=runtime.device,
        part=own_part(),
    )


def _run_phase(
    state: State,
    task: Task,
    index: int,
    phase: Phase,
    photos: TrainingPhotos,
    epoch_batches: EpochBatches,
    runtime: Runtime,
    journal: Journal,
    resumed: Checkpoint | None,
) -> None:
    config, listener = state.config, runtime.listener
    key = (config.seed, task.number, phase.name)
    copy_from_first([*state.network.state_dict().values(), *state.task_modules.state_dict().values()])
    optimizer = optim.make_optimizer(phase)
    done = Done()
    if resumed:
        with resumed.fitting():
            optim.restore_momenta(optimizer, phase, resumed.momenta)
        done = Done(resumed.position.epochs_done, resumed.position.steps_done, Sums(resumed.losses))

    def indices(epoch: int) -> list[Tensor]:
        return indices_of(phase, photos, config.train.batch_size, (*key, epoch, "order"))

    def batches(epoch: int) -> Iterable[Batch]:
        return epoch_batches(indices(epoch), (*key, epoch, "crop"))

    def save(done: Done) -> None:
        position = Position(task.number, index, done.epochs, done.steps, phase.name)
        journal.save(state, position, optim.momenta(optimizer, phase), done.sums)
        stop.obey()

    def step_ended(num_images: int, done: Done) -> None:
        listener.step(num_images)
        in_epoch = done.steps < len(epoch_sizes)
        if in_epoch and (stop.signal or journal.is_due()):
            done.sums.check(phase, done.epochs + 1, done.steps)
            save(done)

    def epoch_ended(epoch: Epoch) -> None:
        journal.record_epoch(task.number, phase, epoch)
        if epoch.number == phase.epochs or stop.signal or journal.is_due():
            save(Done(epoch.number))
        listener.epoch_ended(epoch)
        if warning := doubtful_masks(epoch.unweighted, epoch.number == phase.epochs):
            runtime.note_once(warning)

    epoch_sizes = [len(batch) for batch in indices(1)]
    num_steps = len(epoch_sizes) * phase.epochs  # also if resumed: recorded steps use other kernels
    refuse_too_many_processes(min(epoch_sizes))
    listener.phase_started(phase.name, done.epochs + 1, phase.epochs, sum(epoch_sizes))
    if done.steps:
        listener.step(sum(epoch_sizes[: done.steps]))
    step = make_step(
        optimizer,
        runtime.autocast,
        runtime.device,
        num_steps,
        config.train.graphs,
        runtime.note_once,
        config.train.micro_batch,
    )
    with journal.stopping() as stop, tuned_kernels():
        run_phase(phase, batches, len(epoch_sizes), step, done, step_ended, epoch_ended)
    phase.after()
    listener.phase_ended()
