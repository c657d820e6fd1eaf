"""What training and evaluation share: device, precision, decoded photos and a listener."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fdcnet.config import Config
from fdcnet.data.cache import LIMIT_VARIABLE, PixelCache, exceeds_limit
from fdcnet.data.records import Record
from fdcnet.models.kernels import own_kernels
from fdcnet.models.network import LocalizationNetwork
from fdcnet.models.shared_norm import share_statistics
from fdcnet.runtime import distributed
from fdcnet.runtime.clock import Clock
from fdcnet.runtime.device import autocast_for, find_device
from fdcnet.runtime.listener import Listener


@dataclass(frozen=True)
class Runtime:
    device: torch.device
    autocast: torch.autocast
    cache_dir: Path | None = None
    listener: Listener = field(default_factory=Listener)
    clock: Clock = field(default_factory=Clock)
    encoded: bool = False  # photos are stored as JPEG
    noted: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, config: Config, cache_dir: Path | None = None, listener: Listener | None = None) -> "Runtime":
        device = find_device(config.device)
        if distributed.started_by_torchrun():
            device = distributed.join_processes(device)
            listener = listener if distributed.is_first() else None
        torch.set_float32_matmul_precision("high")
        return cls(device, autocast_for(device, config.train.precision), cache_dir, listener or Listener())

    def place(self, network: LocalizationNetwork) -> LocalizationNetwork:
        """Move a network to the device, in the fastest memory layout for convolutions."""
        if distributed.num_processes() > 1:
            share_statistics(network)
        return network.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    @contextlib.contextmanager
    def inference(self) -> Iterator[None]:
        """Precision and kernels for large batches without gradients."""
        with torch.inference_mode(), self.autocast, own_kernels():
            yield

    def note_once(self, text: str) -> None:
        if text not in self.noted:
            self.noted.add(text)
            self.listener.note(text)

    def for_photos(self, num_photos: int, size: int) -> "Runtime":
        """Decide once for all photos of a run whether they are stored as raw pixels or as JPEG."""
        if not exceeds_limit(num_photos, size):
            return self
        self.listener.note(f"Photos are stored as JPEG, because {LIMIT_VARIABLE} is too small for raw pixels.")
        return replace(self, encoded=True)

    def decode(self, what: str, records: Sequence[Record], size: int) -> PixelCache:
        with self.clock("decode"), distributed.first_of_machine_goes_ahead():
            cache = PixelCache.build(
                records,
                size,
                self.cache_dir,
                self.device,
                progress=lambda done, all_: self.listener.progress(what, done, all_),
                encoded=self.encoded,
            )
        if cache.broken:
            self.listener.unreadable(cache.broken, len(records))
        return cache
