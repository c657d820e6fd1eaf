"""Which photos an epoch sees, for each kind of data."""

from dataclasses import replace

import pytest
import torch

from fdcnet.config import OptimConfig
from fdcnet.data.records import Task
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import DataKind, Phase
from fdcnet.training.sampling import TrainingPhotos, gather_photos, indices_of, needs_drawn

TASK = Task(2, ("c", "d"), 2, (), ())


def phase_of(data: DataKind, outer: Phase | None = None) -> Phase:
    return Phase("main", 1, {}, lambda batch: {}, (), OptimConfig(), data=data, outer=outer, outer_every=3)


def photos_of(draw: bool = True, seed: int = 0) -> TrainingPhotos:
    """12 and 8 new photos of classes 2 and 3, and an exemplar memory of 4 photos of classes 0 and 1 each."""
    memory = ExemplarMemory(12)
    for label in (0, 1):
        memory.add(label, torch.full((4, 2, 2, 3), label, dtype=torch.uint8), ["a", "b", "c", "d"])
    labels = torch.tensor([2] * 12 + [3] * 8)
    pixels = labels.to(torch.uint8)[:, None, None, None].expand(20, 2, 2, 3).contiguous()
    return gather_photos(pixels, labels, memory, TASK, draw, (seed, 2))


def test_exemplars_of_new_classes_are_drawn_beforehand() -> None:
    photos = photos_of()
    assert (photos.num_new, photos.num_own, photos.num_drawn) == (20, 28, 8)
    assert photos.labels[28:].tolist() == [2] * 4 + [3] * 4
    assert photos.pixels[:][:, 0, 0, 0].tolist() == photos.labels.tolist()
    assert photos.from_memory.tolist() == [False] * 20 + [True] * 16
    assert photos_of(draw=False).num_drawn == 0


@pytest.mark.parametrize("data", ["new+memory", "balanced", "paired", "exemplars"])
def test_every_kind_of_epoch_has_as_many_photos(data: DataKind) -> None:
    photos = photos_of(draw=needs_drawn(phase_of(data)))
    batches = indices_of(phase_of(data), photos, 4, (0, 1, "order"))
    assert [len(batch) for batch in batches] == [4] * 7
    assert [batch.tolist() for batch in batches] == [
        batch.tolist() for batch in indices_of(phase_of(data), photos, 4, (0, 1, "order"))
    ]


def test_paired_batches_are_half_new_half_exemplars() -> None:
    photos = photos_of()
    for batch in indices_of(phase_of("paired"), photos, 4, (0, 1)):
        assert photos.from_memory[batch].tolist() == [False, False, True, True]


def test_exemplars_are_balanced_over_old_and_new_classes() -> None:
    photos = photos_of()
    rows = torch.cat(indices_of(phase_of("exemplars"), photos, 4, (0, 1)))
    assert photos.from_memory[rows].all()
    counts = photos.labels[rows].bincount()
    assert counts.min() >= 5
    assert counts.max() <= 7


def test_outer_steps_take_the_place_of_others() -> None:
    photos = photos_of()
    phase = phase_of("new+memory", outer=phase_of("exemplars"))
    assert needs_drawn(phase)
    assert not needs_drawn(replace(phase, outer=None))
    batches = indices_of(phase, photos, 4, (0, 1))
    plain = indices_of(replace(phase, outer=None), photos, 4, (0, 1))
    assert [i for i, pair in enumerate(zip(batches, plain, strict=True)) if not torch.equal(*pair)] == [1, 4]
    assert all(photos.from_memory[batches[i]].all() for i in (1, 4))
