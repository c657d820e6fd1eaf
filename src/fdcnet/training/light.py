"""Light training: the backbone and the classifier's tail are frozen, and only the heads are trained.

So the shared features of a few views of each photo are computed only once, and the features of old classes never drift.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from fdcnet.data.batches import Key, normalise, own_places, rng, zoom_batch
from fdcnet.data.cache import fits_on_gpu
from fdcnet.data.pixels import Pixels
from fdcnet.data.records import Batch
from fdcnet.methods.base import State, ViewMap
from fdcnet.runtime.distributed import own_part
from fdcnet.runtime.runtime import Runtime

IN_MEMORY = 3e9  # bytes; larger features go to an unnamed temporary file
CHUNK = 8


class Frozen(nn.Module):
    """Runs a module without training it: its parameters are hidden and its statistics stay as they are."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = (module.eval().requires_grad_(False),)  # in a tuple, so that it is not registered

    def forward(self, features: Tensor) -> Tensor:
        return self.module[0](features)


@contextmanager
def frozen_backbone(state: State) -> Iterator[nn.Module]:
    """Inside, the networks take shared features instead of images, and the classifier's tail is frozen.

    -> the network's backbone
    """
    networks = [network for network in (state.network, state.previous) if network is not None]
    parts = [(network.backbone, network.classifier.tail) for network in networks]
    for network in networks:
        network.backbone, network.classifier.tail = nn.Sequential(), Frozen(network.classifier.tail)
    try:
        yield parts[0][0]
    finally:
        for network, (backbone, tail) in zip(networks, parts, strict=True):
            network.backbone, network.classifier.tail = backbone, tail.requires_grad_(True)


@dataclass(frozen=True)
class SharedViews:
    """Shared features of V views of N photos, in the channels-last layout that convolutions are fastest in."""

    features: Tensor  # (V, N, H, W, C) half precision; on the device if they fit
    labels: Tensor  # (N,)
    from_memory: Tensor  # (N,) bool
    device: torch.device
    maps: Tensor | None = None  # (V, N, H, W) half precision, beside them: a further channel, see Method.view_map

    def batches(self, index_batches: Sequence[Tensor], seed_key: Key) -> Iterator[Batch]:
        """One epoch: each photo in a random view."""
        views = torch.from_numpy(rng(*seed_key, "view").integers(0, len(self.features), sum(map(len, index_batches))))
        part = own_part()
        own = own_places(index_batches, part)
        lengths, places = [len(batch) for batch in own], torch.cat(own)
        rows = torch.cat(list(index_batches))[places]
        # Moved once for all steps, so that no step waits for the device.
        indices = [values.to(self.features.device).split(lengths) for values in (views[places], rows)]
        facts = [values[rows].to(self.device).split(lengths) for values in (self.labels, self.from_memory)]
        for batch, view, row, labels, from_memory in zip(index_batches, *indices, *facts, strict=True):
            features = self.features[view, row].to(self.device).float().permute(0, 3, 1, 2)
            if self.maps is not None:
                maps = self.maps[view, row].to(self.device).float()
                features = torch.cat([features, maps[:, None]], dim=1)
            yield Batch(features, labels, from_memory, len(row) / len(batch), part)


@torch.no_grad()
def shared_views(
    state: State,
    runtime: Runtime,
    backbone: nn.Module,
    pixels: Pixels,
    labels: Tensor,
    from_memory: Tensor,
    seed_key: Key,
    view_map: ViewMap | None = None,
) -> SharedViews:
    """View 0 is the whole photo, view 1 its mirror image. The others are random squares, every second one mirrored."""
    config, lineage = state.config, state.network.lineage
    backbone.eval()
    num_views, num = config.train.views, len(pixels)
    features: Tensor | None = None
    maps: Tensor | None = None
    for start in range(0, num, CHUNK):
        photos = pixels[start : start + CHUNK].to(runtime.device)
        for view in range(num_views):
            places = _places(view, len(photos), pixels.shape[1], config.data.zoom, (*seed_key, start, view))
            top, left, side, flip = (value.to(runtime.device) for value in places)
            crops = zoom_batch(photos, top, left, side, flip, config.data.crop)
            with runtime.autocast:
                found = backbone(normalise(crops, lineage.mean, lineage.std))
                own_map = view_map(found, labels[start : start + CHUNK].to(runtime.device)) if view_map else None
            if features is None:
                features = _room((num_views, num, *found.shape[2:], found.shape[1]), runtime)
                maps = None if own_map is None else features.new_empty(features.shape[:-1])
            features[view, start : start + len(photos)] = found.permute(0, 2, 3, 1).half().to(features.device)
            if maps is not None and own_map is not None:
                maps[view, start : start + len(photos)] = own_map.half().to(maps.device)
        runtime.listener.progress("computing features", min(start + CHUNK, num), num)
    assert features is not None, "a task without photos"
    return SharedViews(features, labels.cpu(), from_memory.cpu(), runtime.device, maps)


def _places(view: int, num: int, size: int, zoom: float, seed_key: Key) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, side, and whether mirrored."""
    generator = rng(*seed_key)
    side = torch.full((num,), float(size)) if view < 2 else torch.from_numpy(size * generator.uniform(zoom, 1, num))
    corners = torch.from_numpy(generator.random((2, num))) * (size - side)
    return corners[0].float(), corners[1].float(), side.float(), torch.full((num,), view % 2 == 1)


def _room(shape: tuple[int, ...], runtime: Runtime) -> Tensor:
    num_bytes, cache_dir = 2 * int(np.prod(shape, dtype=np.int64)), runtime.cache_dir
    if fits_on_gpu(num_bytes, runtime.device):
        return torch.empty(shape, dtype=torch.float16, device=runtime.device)
    if num_bytes <= IN_MEMORY:
        return torch.empty(shape, dtype=torch.float16)
    if cache_dir:
        cache_dir.mkdir(parents=True, exist_ok=True)
    file: BinaryIO
    with tempfile.TemporaryFile(dir=cache_dir) as file:  # the mapping stays valid, and a kill leaves no file behind
        return torch.from_numpy(np.memmap(file, np.float16, "w+", shape=shape))
