"""How many photos of a batch are computed at a time, so that training on a CPU fits into the machine's memory."""

import math
from collections.abc import Callable, Iterator

import torch

from fdcnet.data.records import Batch
from fdcnet.methods.base import Phase
from fdcnet.runtime.machine import machine_memory

AMPLE = 0.5e9 / (3 * 224 * 224)  # bytes per value of a photo: more than any backbone needs
USABLE = 0.5  # of the machine's memory; the rest is for networks, photos, fragmentation and other programs
OVERHEAD = 1.1  # ours: peak memory over what the backward pass keeps, measured with EfficientNet-Lite0
FEWEST = 8  # photos: batch norm needs some
PROBED = 2  # photos


def photos_at_a_time(
    phase: Phase, batch: Batch, autocast: torch.autocast, note: Callable[[str], None] = lambda text: None
) -> int:
    """The machine's memory decides, not what is free now: a resumed run must split its batches alike."""
    num_photos, available = len(batch.labels), machine_memory()
    if batch.images.device.type != "cpu" or available is None or batch.images.numel() * AMPLE < available:
        return num_photos
    probe = _rows(batch, 0, PROBED)
    probe = probe._replace(images=probe.images.clone())  # a view would count as the whole batch
    needed = OVERHEAD * bytes_kept(phase, probe, autocast) / PROBED
    size = max(FEWEST, int(USABLE * available / needed))
    if size < num_photos:
        note(
            f"A batch of {num_photos} photos needs {num_photos * needed / 1e9:.0f} GB of memory, so it is computed in "
            f"{math.ceil(num_photos / size)} parts. Batch norm sees these parts: results differ a little from those of "
            "a larger machine."
        )
    return size


def bytes_kept(phase: Phase, batch: Batch, autocast: torch.autocast) -> int:
    """What the losses of a batch keep for the backward pass. Nothing is changed: batch norm does not count it."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in phase.parameters.values()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    for module in phase.training:
        module.eval()
    with torch.random.fork_rng(devices=[]), autocast, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        losses = phase.losses(batch)  # held until the end, so that no storage is used twice
    for module in phase.training:
        module.train()
    del losses
    return sum(size for storage, size in kept.items() if storage not in parameters)


def split(batch: Batch, size: int) -> Iterator[Batch]:
    """Parts of about the same size, at most `size` photos each."""
    num_photos = len(batch.labels)
    size = math.ceil(num_photos / math.ceil(num_photos / size))
    for start in range(0, num_photos, size):
        yield _rows(batch, start, start + size)


def _rows(batch: Batch, start: int, end: int) -> Batch:
    first, every = batch.part
    return batch._replace(
        images=batch.images[start:end],
        labels=batch.labels[start:end],
        from_memory=batch.from_memory[start:end],
        part=(first + every * start, every),  # so that each photo keeps its own mask shift
    )
