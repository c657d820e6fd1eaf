"""Average precision as COCO defines it, for photos with one object each.

Detections are parallel arrays, best score first: `photos` is the photo of each, `overlaps` its IoU with the true box.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
LEVELS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))  # of IoU
RECALLS = np.linspace(0, 1, 101)


def find_correct(photos: Array, overlaps: Array, level: float) -> NDArray[np.bool_]:
    """The best detection of each photo that reaches the level. Others that reach it are duplicates."""
    reaching = np.flatnonzero(overlaps >= level)
    _, first = np.unique(photos[reaching], return_index=True)
    correct = np.zeros(len(photos), bool)
    correct[reaching[first]] = True
    return correct


def average_precision(photos: Array, correct: Array, times: Array) -> float:
    """`times` (N,): how often each photo counts, for example in a bootstrap sample."""
    weights = times[photos]
    num_found = np.cumsum(weights * correct)
    precision = num_found / np.maximum(np.cumsum(weights), 1)
    best_from_here = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(num_found / times.sum(), RECALLS)
    return float(np.append(best_from_here, 0.0)[places].mean())


def bootstrap(num_photos: int, num_samples: int, seed: int) -> NDArray[np.int64]:
    """How often each photo was drawn: (num_samples, num_photos)"""
    shares = np.full(num_photos, 1 / num_photos)
    return np.random.default_rng(seed).multinomial(num_photos, shares, size=num_samples)
