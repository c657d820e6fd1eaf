"""From cached pixels to batches. All randomness is a function of a key, so any epoch can be repeated."""

import hashlib
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fdcnet.data.pixels import LazyPixels, Pixels, num_cores
from fdcnet.data.records import Batch

T = TypeVar("T")
Key = tuple[int | str, ...]

PREFETCH = 3  # batches made ahead of the GPU
MAX_PROCESSES = 16  # that decode photos
NO_INDICES = np.empty(0, np.int64)  # np.concatenate refuses an empty list


def rng(*key: int | str) -> np.random.Generator:
    """A generator that depends on the key only, on every machine."""
    canonical = repr(tuple(part if isinstance(part, str) else int(part) for part in key))
    digest = hashlib.sha256(canonical.encode()).digest()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "big"))))


def epoch_indices(num: int, batch_size: int, seed_key: Key, drop_last: bool) -> list[Tensor]:
    """One shuffled pass over `num` photos."""
    return _split(rng(*seed_key).permutation(num), batch_size, drop_last)


def balanced_indices(labels: Tensor, batch_size: int, seed_key: Key, drop_last: bool) -> list[Tensor]:
    """An epoch of the usual length in which all classes are equally frequent, up to one photo."""
    generator = rng(*seed_key)
    members = [np.flatnonzero(labels.cpu().numpy() == label) for label in labels.unique().tolist()]
    quotas = np.full(len(members), len(labels) // max(len(members), 1))
    quotas[generator.permutation(len(members))[: len(labels) - quotas.sum()]] += 1
    chosen = [own[_cycled(len(own), quota, generator)] for own, quota in zip(members, quotas, strict=True)]
    return _split(generator.permutation(np.concatenate([*chosen, NO_INDICES])), batch_size, drop_last)


def paired_indices(
    num_first: int, num_second: int, batch_size: int, seed_key: Key, drop_last: bool, length: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """A batch of each set per step, `length` photos of each in all (0: one pass over the larger set).

    A set that is exhausted is shuffled again.
    """
    assert min(num_first, num_second) > 0, "both sets need photos"
    length = length or max(num_first, num_second)
    first = _split(_cycled(num_first, length, rng(*seed_key, "first")), batch_size, drop_last)
    second = _split(_cycled(num_second, length, rng(*seed_key, "second")), batch_size, drop_last)
    return list(zip(first, second, strict=True))


def cycled_indices(num: int, length: int, batch_size: int, seed_key: Key, drop_last: bool) -> list[Tensor]:
    """`length` photos out of `num`: whole shuffled passes, and a part of one at the end."""
    return _split(_cycled(num, length, rng(*seed_key)), batch_size, drop_last)


def _cycled(num: int, length: int, generator: np.random.Generator) -> np.ndarray:
    """`length` indices out of `num`: whole shuffled passes, and a part of one at the end."""
    passes = [generator.permutation(num) for _ in range(-(-length // num))]
    return np.concatenate([*passes, NO_INDICES])[:length]


def _split(indices: np.ndarray, batch_size: int, drop_last: bool) -> list[Tensor]:
    flat = torch.from_numpy(indices.astype(np.int64))
    if drop_last and len(flat) >= batch_size:
        flat = flat[: len(flat) // batch_size * batch_size]
    batches = list(flat.split(batch_size)) if len(flat) else []
    if len(batches) > 1 and len(batches[-1]) == 1:  # batch norm cannot learn from a single photo
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def crop_batch(pixels: Pixels, indices: Tensor, top: Tensor, left: Tensor, flip: Tensor, crop: int) -> Tensor:
    """A square of each photo, mirrored where `flip`. All arguments are on the device of `pixels` (N, S, S, 3)."""
    if not isinstance(pixels, Tensor) or pixels.device.type == "cpu":
        return _crop_by_slices(pixels, indices, top, left, flip, crop)
    steps = torch.arange(crop, device=pixels.device)
    rows = top[:, None] + steps  # (B, crop)
    columns = left[:, None] + torch.where(flip[:, None], crop - 1 - steps, steps)  # (B, crop)
    return pixels[indices[:, None, None], rows[:, :, None], columns[:, None, :]]  # (B, crop, crop, 3)


def _crop_by_slices(pixels: Pixels, indices: Tensor, top: Tensor, left: Tensor, flip: Tensor, crop: int) -> Tensor:
    """On a CPU, copying rows is up to 20 times as fast as gathering single pixels."""
    out = torch.empty((len(indices), crop, crop, 3), dtype=torch.uint8)
    places = zip(indices.tolist(), top.tolist(), left.tolist(), flip.tolist(), strict=True)
    for i, (index, y, x, mirrored) in enumerate(places):
        square = pixels[index][y : y + crop, x : x + crop]
        out[i] = square.flip(1) if mirrored else square
    return out


def zoom_batch(photos: Tensor, top: Tensor, left: Tensor, side: Tensor, flip: Tensor, crop: int) -> Tensor:
    """A square of `side` (B,) of each photo (B, S, S, 3), resized to `crop`, mirrored where `flip`, as float."""
    size = photos.shape[1]
    steps = (torch.arange(crop, device=photos.device) + 0.5) / crop  # (crop,) centres, as shares of the square
    rows = top[:, None] + side[:, None] * steps
    columns = left[:, None] + side[:, None] * torch.where(flip[:, None], 1 - steps, steps)
    shape = (len(photos), crop, crop)
    grid = torch.stack([columns[:, None, :].expand(shape), rows[:, :, None].expand(shape)], dim=3)  # (B, crop, crop, 2)
    channels_first = photos.permute(0, 3, 1, 2).float()
    zoomed = F.grid_sample(channels_first, 2 * grid / size - 1, padding_mode="border", align_corners=False)
    return zoomed.permute(0, 2, 3, 1)


def recolour(crops: Tensor, brightness: Tensor, saturation: Tensor, contrast: Tensor) -> Tensor:
    """Multiply brightness, saturation and contrast of squares (B, h, w, 3) in 0..255 by factors (B,); returns float."""
    brightness, saturation, contrast = (factor[:, None, None, None] for factor in (brightness, saturation, contrast))
    lit = crops.float() * brightness
    grey = lit.mean(3, keepdim=True)
    coloured = torch.lerp(grey, lit, saturation)
    return torch.lerp(grey.mean((1, 2), keepdim=True), coloured, contrast).clamp_(0, 255)


def normalise(
    crops: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """(x - mean) / std per channel, for pixels in 0..255. Returns channels-last (B, 3, h, w)."""
    num, height, width, channels = crops.shape
    mean, std = (torch.as_tensor(value, dtype=torch.float32, device=crops.device) for value in (mean, std))
    # Whole rows of interleaved channels: a last axis of size three is slow.
    scale, shift = (1 / std).repeat(width), (-mean / std).repeat(width)
    rows = crops.reshape(num, height, width * channels).float().mul(scale).add_(shift).to(dtype)
    return rows.view(num, height, width, channels).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Views(Dataset[Tensor]):
    """The part of the photos that each step needs, as bytes: whole photos, or crops if there are places for them."""

    pixels: Pixels
    steps: list[tuple[Tensor, ...]]  # indices; for crops also top, left and flip
    crop: int

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, step: int) -> Tensor:
        indices, *places = self.steps[step]
        if not places:
            return self.pixels[indices]
        top, left, flip = places
        return crop_batch(self.pixels, indices, top, left, flip, self.crop)


class Batches:
    """One epoch of batches on `device`. Iterating again repeats the same epoch.

    `part` (i, n): only the i-th of n parts of each batch, for processes that share it.
    """

    def __init__(
        self,
        pixels: Pixels,
        labels: Tensor,
        from_memory: Tensor,
        index_batches: list[Tensor],
        crop: int,
        augment: bool,
        seed_key: Key,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
        zoom: float = 1.0,
        colour: float = 0.0,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        size = pixels.shape[1]
        assert len(pixels) == len(labels) == len(from_memory), "a label and a flag for each photo"
        assert 0 < crop <= size, f"a crop of {crop} does not fit into photos of {size}"
        self.device = device
        self.crop = crop
        self.part = part
        own = own_places(index_batches, part)
        self.lengths = [len(places) for places in own]
        self.shares = [len(places) / len(batch) for places, batch in zip(own, index_batches, strict=True)]
        self.mean, self.std = (torch.tensor(value, dtype=torch.float32, device=device) for value in (mean, std))
        # Everything that varies between steps is prepared here, so that no step waits for the device.
        nothing = torch.empty(0, dtype=torch.int64)
        flat, own_flat = (torch.cat([nothing, *rows]) for rows in (index_batches, own))
        self.zooms = augment and zoom < 1
        if self.zooms:  # whole photos are moved and cut on the device, because resizing is slow elsewhere
            taken = [flat[own_flat].to(pixels.device)]
            self.places = [values[own_flat].to(device) for values in _zoomed_places(len(flat), size, zoom, seed_key)]
        else:
            places = _places(len(flat), size - crop, augment, seed_key)
            taken = [values[own_flat].to(pixels.device) for values in (flat, *places)]
            self.places = []
        steps = list(zip(*(values.split(self.lengths) for values in taken), strict=True)) if self.lengths else []
        self.views = Views(pixels, steps, crop)
        self.colours = []
        if augment and colour:
            factors = 1 + colour * rng(*seed_key, "colour").uniform(-1, 1, (3, len(flat)))
            self.colours = [torch.from_numpy(values).float()[own_flat].to(device) for values in factors]
        rows = flat[own_flat]
        self.labels, self.from_memory = labels.cpu()[rows].to(device), from_memory.cpu()[rows].to(device)

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[Batch]:
        photos = read_ahead(self.views, self.device)
        labels, from_memory = self.labels.split(self.lengths), self.from_memory.split(self.lengths)
        places, colours = ([v.split(self.lengths) for v in values] for values in (self.places, self.colours))
        for i, taken in enumerate(photos):
            crops = taken.to(self.device, non_blocking=True)
            if self.zooms:
                top, left, side, flip = (values[i] for values in places)
                crops = zoom_batch(crops, top, left, side, flip, self.crop)
            if colours:
                crops = recolour(crops, *(values[i] for values in colours))
            yield Batch(normalise(crops, self.mean, self.std), labels[i], from_memory[i], self.shares[i], self.part)


def own_places(index_batches: Sequence[Tensor], part: tuple[int, int]) -> list[Tensor]:
    """For each batch, the places of its `part` in the whole epoch. The parts of a batch have the same mix of photos."""
    number, num_parts = part
    places = torch.arange(sum(map(len, index_batches)))
    return [batch[number::num_parts] for batch in places.split([len(batch) for batch in index_batches])]


def read_ahead(views: Views, device: torch.device) -> Iterable[Tensor]:
    """The views in order. Encoded photos are decoded by other processes: threads would delay the training steps."""
    on_gpu = device.type == "cuda"
    encoded = isinstance(views.pixels, LazyPixels) and views.pixels.encoded
    if encoded and sys.platform == "linux":  # elsewhere processes do not fork, and would get copies of all exemplars
        return DataLoader(
            views,
            batch_size=None,
            num_workers=min(MAX_PROCESSES, num_cores(), len(views)),
            pin_memory=on_gpu,
            multiprocessing_context="fork" if len(views) else None,
            generator=torch.Generator(),  # or it would draw from the generator of the run
        )
    if on_gpu and views.pixels.device.type == "cpu":
        return prefetch(view.pin_memory() for view in views)
    return views


def _places(num: int, margin: int, augment: bool, seed_key: Key) -> tuple[Tensor, Tensor, Tensor]:
    if not augment:
        centre = torch.full((num,), margin // 2)
        return centre, centre, torch.zeros(num, dtype=torch.bool)
    generator = rng(*seed_key, "crop")
    corners = torch.from_numpy(generator.integers(0, margin + 1, (2, num)))
    return corners[0], corners[1], torch.from_numpy(generator.random(num) < 0.5)


def _zoomed_places(num: int, size: int, zoom: float, seed_key: Key) -> tuple[Tensor, ...]:
    """Top, left, side and mirroring of squares whose side is between `zoom` and 1 times the photo's."""
    generator = rng(*seed_key, "zoom")
    side = size * generator.uniform(zoom, 1, num)
    top, left = generator.random((2, num)) * (size - side)
    flip = torch.from_numpy(generator.random(num) < 0.5)
    return *(torch.from_numpy(values).float() for values in (top, left, side)), flip


def prefetch(items: Iterable[T], depth: int = PREFETCH) -> Iterator[T]:
    """The same items, produced ahead of time by one thread, which ends with the loop."""
    iterator, end = iter(items), object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    try:
        pending = deque(pool.submit(next, iterator, end) for _ in range(depth))
        while (item := pending.popleft().result()) is not end:
            pending.append(pool.submit(next, iterator, end))
            yield cast(T, item)
    finally:
        pool.shutdown(cancel_futures=True)
