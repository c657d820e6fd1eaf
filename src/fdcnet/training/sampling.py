"""The training photos of a task and their order: new photos, exemplars, and exemplars drawn from the new photos."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fdcnet.data.batches import Key, balanced_indices, cycled_indices, epoch_indices, paired_indices, rng
from fdcnet.data.pixels import Pixels, join, select
from fdcnet.data.records import Task
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import Phase


@dataclass(frozen=True)
class TrainingPhotos:
    """All photos in one row: new photos, then the memory, then copies of new photos drawn as exemplars."""

    pixels: Pixels  # (N, S, S, 3) uint8
    labels: Tensor  # (N,)
    from_memory: Tensor  # (N,) bool: true for memory and drawn photos
    num_drawn: int = 0

    @property
    def num_new(self) -> int:
        return int((~self.from_memory).sum())

    @property
    def num_own(self) -> int:
        """Number of new photos and exemplars, which is the length of every epoch."""
        return len(self.labels) - self.num_drawn


def gather_photos(
    pixels: Pixels, labels: Tensor, memory: ExemplarMemory, task: Task, draw: bool, seed_key: Key
) -> TrainingPhotos:
    """Collect the photos of a task. `draw`: also draw exemplars of new classes, as many as an old class has."""
    num_new = len(labels)
    parts, names = [pixels], [labels]
    if len(memory):
        parts.append(memory.all_pixels())
        names.append(memory.all_labels())
    drawn = torch.empty(0, dtype=torch.int64)
    if draw and task.classes:
        quota = max(map(len, memory.pixels.values()), default=memory.quota(task.num_classes))
        generator = rng(*seed_key, "drawn")
        rows = [(labels == label).nonzero().squeeze(1) for label in range(task.num_old, task.num_classes)]
        drawn = torch.cat([own[torch.from_numpy(generator.permutation(len(own))[:quota])] for own in rows])
        parts.append(select(pixels, drawn))
        names.append(labels[drawn])
    everything = torch.cat(names)
    return TrainingPhotos(join(parts), everything, torch.arange(len(everything)) >= num_new, len(drawn))


def needs_drawn(phase: Phase) -> bool:
    return phase.data in ("paired", "exemplars") or (phase.outer is not None and needs_drawn(phase.outer))


def indices_of(phase: Phase, photos: TrainingPhotos, batch_size: int, seed_key: Key) -> list[Tensor]:
    """The batches of one epoch. All kinds have equally many photos, so that methods are compared at equal cost."""
    own, num_new, num_exemplars = photos.num_own, photos.num_new, len(photos.labels) - photos.num_new
    if phase.data == "balanced":
        batches = balanced_indices(photos.labels[:own], batch_size, seed_key, drop_last=True)
    elif phase.data == "exemplars":
        batches = [num_new + rows for rows in cycled_indices(num_exemplars, own, batch_size, seed_key, drop_last=True)]
    elif phase.data == "paired" and num_new:
        half = max(1, batch_size // 2)
        pairs = paired_indices(num_new, num_exemplars, half, seed_key, drop_last=True, length=own // 2)
        batches = [torch.cat([new, num_new + exemplars]) for new, exemplars in pairs]
    else:
        batches = epoch_indices(own, batch_size, seed_key, drop_last=True)
    if phase.outer:
        outer = indices_of(phase.outer, photos, batch_size, (*seed_key, "outer"))
        batches = [outer[i] if phase.at(i) is phase.outer else batch for i, batch in enumerate(batches)]
    return batches
