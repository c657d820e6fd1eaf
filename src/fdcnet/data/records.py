"""Data types shared across packages: one labelled photo, a data set of them, one task of a stream, one batch."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fdcnet.errors import count

if TYPE_CHECKING:  # readers and listeners need no torch
    from torch import Tensor

BoxXYXY = tuple[float, float, float, float]


@dataclass(frozen=True)
class Record:
    """One photo. Boxes are in the photo's own pixels and serve evaluation only; training never sees them."""

    path: Path
    label: str
    boxes_xyxy: tuple[BoxXYXY, ...] = ()


@dataclass(frozen=True)
class Dataset:
    """What a reader returns. `classes` holds the natural order."""

    name: str
    classes: tuple[str, ...]
    train: tuple[Record, ...]
    test: tuple[Record, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)  # what the reader skipped

    def __repr__(self) -> str:
        """Short: a notebook prints it."""
        photos = f"{count(len(self.train), 'training photo')}, {count(len(self.test), 'test photo')}"
        return f"<Dataset {self.name}: {count(len(self.classes), 'class')}, {photos}>"

    def first(self, num_classes: int) -> "Dataset":
        """Only the first classes in natural order."""
        classes = self.classes[:num_classes]
        wanted = frozenset(classes)
        train, test = (tuple(r for r in part if r.label in wanted) for part in (self.train, self.test))
        return replace(self, classes=classes, train=train, test=test)


@dataclass(frozen=True)
class Task:
    """One step of the stream: its own new classes and photos. `test` covers all classes seen so far."""

    number: int  # 1-based
    classes: tuple[str, ...]  # new in this task
    first_label: int  # label of classes[0]; labels follow the order in which classes arrive
    train: tuple[Record, ...]
    test: tuple[Record, ...]

    @property
    def num_old(self) -> int:
        return self.first_label

    @property
    def num_classes(self) -> int:
        return self.first_label + len(self.classes)


class Batch(NamedTuple):
    """What a training step sees, on the device: normalised crops and labels."""

    images: "Tensor"  # (B, 3, H, W)
    labels: "Tensor"  # (B,) int64
    from_memory: "Tensor"  # (B,) bool: an exemplar (in paired batches also those drawn from the new classes)
    share: float = 1.0  # of the whole batch, where processes share it
    part: tuple[int, int] = (0, 1)  # (i, n): photos i, i + n, i + 2 n and so on of the whole batch

    @property
    def num_photos(self) -> int:
        """The number of photos in the whole batch."""
        return round(len(self.labels) / self.share)
