"""Linear discriminant analysis (LDA) from sums: a classifier in closed form, to which photos can be added at any time.

Each class is a Gaussian around its own mean, and all classes share one covariance. Everything that is kept is a sum
over feature vectors, so the order in which photos are added does not matter. When the features change, the sums can be
moved along without the photos.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fdcnet.float64 import as_float64

Layer = Literal["tail", "class", "both"]
LAYERS: tuple[Layer, ...] = ("tail", "class", "both")
AT_ONCE = 16384  # photos whose features are in float64 at a time: 270 MB
FLOORS = (1e-9, 1e-6, 1e-3)  # of the variance in each direction, relative to the mean
STIFFNESS = 1.0  # ours: results/tuning.md, statistics that move with the features
UNLIMITED = 1e300
UNUSED = [0.0, 0.0]  # in the file: settings of earlier versions, which were never on


@dataclass(frozen=True)
class Solution:
    """The classifier in closed form: scores = features @ weight.T + bias."""

    weight: Tensor  # (K, D)
    bias: Tensor  # (K,); -inf for a class without photos
    means: Tensor  # (K, D)
    factor: Tensor  # (D, D) lower triangular: covariance = factor @ factor.T

    def whitened(self, vectors: Tensor) -> Tensor:
        """Where the covariance is the identity: (N, D) -> (N, D)"""
        return torch.linalg.solve_triangular(self.factor, vectors.T, upper=False).T

    @cached_property
    def whitened_means(self) -> Tensor:
        """(K, D), computed once, because each prediction needs it: it takes 15 ms with 200 classes."""
        return self.whitened(self.means)


class Discriminant:
    """Class means and a shared covariance, in float64.

    `shrinkage` (0..1) draws the covariance towards a multiple of the identity with the same mean variance.
    `temperature` divides the scores; it changes probabilities, but not the order of classes. A photo that is farther
    than `max_distance` from every class mean may show none of the classes. `layer` names the features that it is made
    for; whoever computes them reads it.
    """

    def __init__(
        self,
        num_features: int,
        *,
        shrinkage: float = 0.5,  # ours: best of 0.1, 0.3 and 0.5 by leave-one-out on training photos (docs/teach.md)
        temperature: float = 1.0,
        max_distance: float = torch.inf,
        layer: Layer = "tail",
    ) -> None:
        assert 0 <= shrinkage <= 1 and temperature > 0
        self.layer: Layer = layer
        self.max_distance = max_distance
        self.shrinkage, self.temperature = shrinkage, temperature
        self.sums = torch.zeros(0, num_features, dtype=torch.float64)  # (K, D)
        self.counts = torch.zeros(0, dtype=torch.float64)  # (K,)
        self.scatter = torch.zeros(num_features, num_features, dtype=torch.float64)
        """Sum of x x^T over all photos."""
        self._solution: Solution | None = None

    @property
    def num_features(self) -> int:
        return self.sums.shape[1]

    @property
    def num_classes(self) -> int:
        return self.sums.shape[0]

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Count photos in: (N, D), (N,). A label beyond the last class adds classes."""
        self._grow(int(labels.max()) + 1 if len(labels) else 0)
        self._count(features, labels, 1)

    def remove(self, features: Tensor, labels: Tensor) -> None:
        """Count photos out that were added with these features, up to rounding: (N, D), (N,)"""
        self._count(features, labels, -1)
        self.sums[self.counts == 0] = 0

    def transform(self, matrix: Tensor, offset: Tensor) -> None:
        """Change the statistics as if every feature vector x had been x @ matrix + offset. (D, D), (D,)"""
        matrix, offset = self._as_sums(matrix), self._as_sums(offset)
        moved, num_photos = self.sums @ matrix, self.counts.sum()
        cross = torch.outer(moved.sum(0) + 0.5 * num_photos * offset, offset)
        self.scatter = matrix.T @ _symmetric(self.scatter) @ matrix + cross + cross.T
        self.sums = moved + self.counts[:, None] * offset
        self._solution = None

    def covariance(self) -> Tensor:
        """The covariance within classes, before shrinkage: (D, D)"""
        within = self.scatter - self.sums.T @ (self.sums / self.counts.clamp(min=1)[:, None])
        return within / (self.counts.sum() - (self.counts > 0).sum()).clamp(min=1)

    def solve(self) -> Solution:
        """Computed once, and again after photos were added."""
        if self._solution is None:
            covariance = self.covariance()
            variance = covariance.diagonal().mean()
            shrunk = (1 - self.shrinkage) * covariance
            shrunk.diagonal().add_(self.shrinkage * variance)
            factor = _cholesky(shrunk, variance)
            means = self.sums / self.counts.clamp(min=1)[:, None]
            weight = torch.cholesky_solve(means.T, factor).T
            bias = (-0.5 * (weight * means).sum(1)).masked_fill(self.counts == 0, -torch.inf)
            self._solution = Solution(weight / self.temperature, bias / self.temperature, means, factor)
        return self._solution

    def scores(self, features: Tensor) -> Tensor:
        """Log-probability of each class, up to a constant of each photo: (N, D) -> (N, K)"""
        solution, features = self.solve(), as_float64(features)
        return features @ solution.weight.T.to(features.device) + solution.bias.to(features.device)

    def distances(self, features: Tensor) -> Tensor:
        """Squared Mahalanobis distance to each class mean: (N, D) -> (N, K)"""
        solution = self.solve()
        distances = torch.cdist(solution.whitened(self._as_sums(features)), solution.whitened_means).square()
        return distances.masked_fill(self.counts == 0, torch.inf)

    def nearest_distance(self, features: Tensor) -> Tensor:
        """Mahalanobis distance to the nearest class mean: large where a photo shows none of the classes. -> (N,)"""
        return self.distances(features).min(1).values.sqrt()

    def is_unfamiliar(self, features: Tensor) -> Tensor:
        """Whether a photo may show none of the classes: (N, D) -> (N,) bool"""
        return self.nearest_distance(features) > self.max_distance

    def set_calibration(self, temperature: float, max_distance: float) -> None:
        self.temperature, self.max_distance, self._solution = temperature, max_distance, None

    def distances_left_out(self, features: Tensor, labels: Tensor) -> Tensor:
        """`distances` of photos that were added, each as if it had not been: (N, D), (N,) -> (N, K)

        So a temperature, a threshold or the shrinkage can be chosen without held-out photos. The photo is taken out of
        its class mean and of the covariance (Sherman-Morrison). A class that had no other photo is infinitely far.
        """
        solution, features, labels = self.solve(), self._as_sums(features), labels.to(self.sums.device)
        others = (self.counts[labels] - 1).clamp(min=1)
        degrees = (self.counts.sum() - (self.counts > 0).sum()).clamp(min=1)
        own = solution.whitened(features - solution.means[labels])  # (N, D)
        share = (1 - self.shrinkage) / degrees * (others + 1) / others  # of own own^T in the covariance
        rows = torch.arange(len(labels), device=labels.device)
        photos, means = solution.whitened(features), solution.whitened_means
        distances = torch.cdist(photos, means).square()
        along = (own * photos).sum(1, keepdim=True) - own @ means.T  # (N, K)
        length = own.square().sum(1)
        farther = (others + 1) / others  # from the mean of the others
        distances[rows, labels] *= farther.square()
        along[rows, labels] *= farther
        distances += (share / (1 - share * length).clamp(min=1e-6))[:, None] * along.square()
        distances[rows[self.counts[labels] < 2], labels[self.counts[labels] < 2]] = torch.inf
        return distances.masked_fill(self.counts == 0, torch.inf)

    def state_dict(self) -> dict[str, Tensor]:
        """For a safetensors file."""
        lower = torch.tril_indices(self.num_features, self.num_features, device=self.scatter.device)
        values = {"sums": self.sums, "counts": self.counts, "scatter": self.scatter[lower[0], lower[1]]}
        farthest = min(self.max_distance, UNLIMITED)  # a file must not hold infinite values
        numbers = [self.shrinkage, self.temperature, farthest, *UNUSED, LAYERS.index(self.layer)]
        settings = torch.tensor(numbers, dtype=torch.float64)
        tensors = values | {"settings": settings}
        return {name: value.cpu().contiguous() for name, value in tensors.items()}

    @classmethod
    def from_state_dict(cls, tensors: Mapping[str, Tensor]) -> "Discriminant":
        sums, counts = tensors["sums"].double(), tensors["counts"].double()
        shrinkage, temperature, max_distance, *unused, layer = tensors["settings"].tolist()
        if unused != UNUSED:
            raise ValueError("its settings are not known")
        found = cls(
            sums.shape[1],
            shrinkage=shrinkage,
            temperature=temperature,
            max_distance=max_distance if max_distance < UNLIMITED else torch.inf,
            layer=LAYERS[int(layer)],
        )
        lower = torch.tril_indices(found.num_features, found.num_features)
        found.scatter[lower[0], lower[1]] = tensors["scatter"].double()
        found.scatter = _symmetric(found.scatter)
        if counts.shape != sums.shape[:1]:
            raise ValueError(f"{len(counts)} counts of {len(sums)} classes")
        found.sums, found.counts = sums, counts
        return found

    def to(self, device: torch.device | str) -> "Discriminant":
        """Move it, in place."""
        self.sums, self.counts, self.scatter = (part.to(device) for part in (self.sums, self.counts, self.scatter))
        self._solution = None
        return self

    def _as_sums(self, features: Tensor) -> Tensor:
        return as_float64(features).to(self.sums.device)

    def _count(self, features: Tensor, labels: Tensor, sign: Literal[1, -1]) -> None:
        labels = labels.to(self.sums.device)
        for part, own in zip(features.split(AT_ONCE), labels.split(AT_ONCE), strict=True):
            part = self._as_sums(part)
            self.scatter += sign * (part.T @ part)
            self.sums.index_add_(0, own, part, alpha=sign)
        self.counts += sign * torch.bincount(labels, minlength=self.num_classes)
        self._solution = None

    def _grow(self, num_classes: int) -> None:
        num_new = max(0, num_classes - self.num_classes)
        self.sums = torch.cat([self.sums, self.sums.new_zeros(num_new, self.num_features)])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(num_new)])


def affine_drift(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """How features have moved: the matrix (D, D) and offset (D,) for which before @ matrix + offset is close to after.

    (N, D) each, of the same photos, on a device with float64. It is ridge regression on the differences, so that
    directions in which these photos do not differ are left as they are.
    """
    centre, centre_after = (_mean(features) for features in (before, after))
    moments, joint = centre.new_zeros(len(centre), len(centre)), centre.new_zeros(len(centre), len(centre))
    for then, now in zip(before.split(AT_ONCE), after.split(AT_ONCE), strict=True):
        spread = then.double() - centre
        moments += spread.T @ spread
        joint += spread.T @ (now.double() - centre_after - spread)
    moments.diagonal().add_(STIFFNESS * moments.diagonal().mean() + 1e-12)
    matrix = torch.cholesky_solve(joint, torch.linalg.cholesky(moments))
    offset = centre_after - centre - centre @ matrix
    matrix.diagonal().add_(1)
    return matrix, offset


def _mean(features: Tensor) -> Tensor:
    return torch.stack([part.double().sum(0) for part in features.split(AT_ONCE)]).sum(0) / len(features)


def _cholesky(covariance: Tensor, variance: Tensor) -> Tensor:
    """Of a covariance that may be singular, as of a single photo, or slightly negative by rounding. Changes it."""
    for floor in FLOORS:
        covariance.diagonal().add_(floor * variance + 1e-12)
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if not failed:
            return factor
    return torch.linalg.cholesky(covariance)  # raises an error that says why


def _symmetric(lower: Tensor) -> Tensor:
    """The lower triangle, mirrored: a file holds no more, and a resumed run must go on with the same values."""
    return lower.tril() + lower.tril(-1).T


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """The temperature with the smallest cross-entropy of scores / temperature. Use photos that were not trained on.

    (N, K), (N,) -> 0.01 to 1000
    """
    candidates = torch.logspace(-2, 3, 501, dtype=torch.float64)
    scores, labels = as_float64(scores).cpu(), labels.cpu()

    def loss(number: int) -> float:
        return float(torch.nn.functional.cross_entropy(scores / candidates[number], labels))

    low, high = 0, len(candidates) - 1  # the loss falls, then rises: it is convex in 1 / temperature
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if loss(middle) <= loss(middle + 1) else (middle + 1, high)
    return float(candidates[low])
