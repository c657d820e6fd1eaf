"""How the features of a class move while later tasks are learned."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from fdcnet.store.record import RunRecord

FILE = "drift.json"
NUM_SHOWN = 4  # classes of the first task whose way is drawn
Floats = NDArray[np.float64]


def measured_drift(run_dir: Path) -> dict[str, Any] | None:
    """Distances and ways of class means over the tasks; None for a run without them or with a single task."""
    tasks = RunRecord.open(run_dir).run()["tasks"]
    files = [run_dir / "features" / f"task-{t}.safetensors" for t in range(1, len(tasks) + 1)]
    if len(files) < 2 or not all(file.is_file() for file in files):
        return None
    means = [load_file(file)["means"].astype(np.float64) for file in files]
    names = [name for classes in tasks for name in classes]
    shown = np.unique(np.linspace(0, len(tasks[0]) - 1, NUM_SHOWN).round().astype(int)).tolist()
    return {
        "num_classes": np.cumsum([len(classes) for classes in tasks]).tolist(),
        "distances": [[round(value, 5) for value in row] for row in distances(means, [len(own) for own in tasks])],
        "ways": {names[i]: np.round(way, 4).tolist() for i, way in zip(shown, ways(means, shown), strict=True)},
    }


def distances(means: Sequence[Floats], sizes: Sequence[int]) -> list[list[float]]:
    """Row t, column j: one minus the cosine between the means after task t and after task j, over classes of task j."""
    parts = [slice(int(end - size), int(end)) for size, end in zip(sizes, np.cumsum(sizes), strict=True)]
    return [
        [float(_distance(now[part], means[j][part]).mean()) for j, part in enumerate(parts[: t + 1])]
        for t, now in enumerate(means)
    ]


def ways(means: Sequence[Floats], shown: Sequence[int]) -> Floats:
    """The means of some classes after each task, in the plane in which they differ most: (classes, tasks, 2)"""
    points = np.stack([now[list(shown)] for now in means], axis=1)  # (classes, tasks, D)
    flat = points.reshape(-1, points.shape[2])
    centred = flat - flat.mean(0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
    largest = axes[[0, 1], np.abs(axes).argmax(1)]
    axes *= np.sign(largest)[:, None]  # else the signs would depend on the library
    return (centred @ axes.T).reshape(len(shown), len(means), 2)


def _distance(now: Floats, before: Floats) -> Floats:
    return 1 - (now * before).sum(1) / (np.linalg.norm(now, axis=1) * np.linalg.norm(before, axis=1))
