"""The exemplar memory: a fixed number of old photos, the most representative of each class first."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fdcnet.data.cache import PixelCache
from fdcnet.data.pixels import Pixels, join
from fdcnet.errors import UserError
from fdcnet.float64 import as_float64

HeldOut = PixelCache
"""A few photos of each class that are never used for training, to evaluate old classes later."""


def herd(features: Tensor, count: int) -> list[int]:
    """Greedy herding: select photos so that their mean stays as close as possible to the mean of all.

    (N, D) -> indices in rank order. A shorter selection is the beginning of a longer one, so trimming keeps the best.
    """
    features = F.normalize(as_float64(features), dim=1)
    mean = features.mean(0)
    taken = torch.zeros_like(mean)
    open_ = torch.ones(len(features), dtype=torch.bool, device=features.device)
    order: list[int] = []
    for rank in range(1, min(count, len(features)) + 1):
        distance = ((taken + features) / rank - mean).norm(dim=1)
        best = int(torch.where(open_, distance, torch.inf).argmin())
        open_[best] = False
        taken += features[best]
        order.append(best)
    return order


def rank_by_distance(features: Tensor, count: int) -> list[int]:
    """Nearest to the class mean first, by cosine. (N, D) -> indices in rank order"""
    features = F.normalize(as_float64(features), dim=1)
    similarity = features @ F.normalize(features.mean(0), dim=0)
    return similarity.argsort(descending=True, stable=True)[:count].tolist()


class ExemplarMemory:
    """At most `budget` photos, equally many of each class, as decoded pixels in rank order."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.pixels: dict[int, Tensor] = {}  # label -> (n, S, S, 3) uint8
        self.names: dict[int, list[str]] = {}  # label -> file names, for the manifest

    def __len__(self) -> int:
        return sum(len(pixels) for pixels in self.pixels.values())

    @property
    def megabytes(self) -> float:
        return sum(pixels.nbytes for pixels in self.pixels.values()) / 1e6

    def quota(self, num_classes: int) -> int:
        """Photos per class when there are this many classes."""
        quota = self.budget // num_classes
        if quota < 1:
            raise UserError(
                f"A memory of {self.budget} photos cannot hold one of each of {num_classes} classes.",
                f"Raise memory.budget to {num_classes} or more.",
            )
        return quota

    def trim(self, num_classes: int) -> None:
        """Drop the least representative photos to make room for new classes."""
        quota = self.quota(num_classes)
        self.pixels = {label: pixels[:quota].clone() for label, pixels in self.pixels.items()}
        self.names = {label: names[:quota] for label, names in self.names.items()}

    def add(self, label: int, pixels: Tensor, names: list[str]) -> None:
        """Store a class's photos, given in rank order."""
        assert label not in self.pixels and len(pixels) == len(names)
        assert len(self) + len(pixels) <= self.budget, "trim first, then add"
        self.pixels[label] = pixels.cpu().clone()
        self.names[label] = list(names)

    def all_pixels(self) -> Pixels:
        """(M, S, S, 3), in the order of `all_labels`"""
        return join([self.pixels[label] for label in sorted(self.pixels)])

    def all_labels(self) -> Tensor:
        """(M,)"""
        return torch.tensor([label for label in sorted(self.pixels) for _ in self.names[label]], dtype=torch.int64)
