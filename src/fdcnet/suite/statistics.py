"""Paired tests on the same test photos: is one model better than another, or was it chance?"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

RESAMPLES = 10_000
SIGNIFICANT = 0.05


def mcnemar(first: Bools, second: Bools) -> float:
    """Exact two-sided p of McNemar's test. It counts the photos on which only one of both models is right."""
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    if only_first + only_second == 0:
        return 1.0
    return float(binomtest(only_first, only_first + only_second, 0.5).pvalue)


@dataclass(frozen=True)
class Difference:
    """A mean difference over classes in points, its 95 % interval and two-sided p."""

    mean: float
    low: float
    high: float
    p: float


def class_means(right: NDArray[np.generic], label: NDArray[np.int64]) -> Floats:
    """Percentage of right photos of each class that has photos."""
    photos = np.bincount(label)
    sums = np.bincount(label, weights=right.astype(np.float64))
    return 100 * sums[photos > 0] / photos[photos > 0]


def bootstrap_over_classes(differences: Floats, seed: int = 0) -> Difference:
    """Draw classes with replacement, because photos of one class are not independent of each other.

    `differences`: one per class, in points. The p is twice the share of samples on the other side of zero.
    """
    chosen = np.random.default_rng(seed).integers(0, len(differences), (RESAMPLES, len(differences)))
    means = differences[chosen].mean(axis=1)
    tail = min((means <= 0).sum(), (means >= 0).sum())
    low, high = np.percentile(means, [2.5, 97.5])
    p = min(1.0, 2 * (tail + 1) / (RESAMPLES + 1))  # never zero: the data itself is one of the samples
    return Difference(float(differences.mean()), float(low), float(high), float(p))
