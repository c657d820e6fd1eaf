"""The closed-form classifier of an experiment: which photos it counts, and that it follows the features."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fdcnet.config import Config
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Dataset, Task
from fdcnet.data.stream import make_stream
from fdcnet.methods import find_method
from fdcnet.methods.base import State
from fdcnet.models.discriminant import Discriminant
from fdcnet.runtime.runtime import Runtime
from fdcnet.store.bundle import load_bundle
from fdcnet.training.discriminant import VIEWS, features_before, update_discriminant
from fdcnet.training.exemplars import labels_of
from fdcnet.training.run import train
from fdcnet.training.statistics import pooled_views

Make = Callable[..., Config]
METHOD = find_method("baseline")()


@pytest.mark.parametrize(("old_classes", "expected"), [("moved", [6.0] * 4), ("exemplars", [2.0] * 4)])
def test_which_photos_are_counted(
    old_classes: str, expected: list[float], small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    """Each class has six photos, of which two stay in memory."""
    train(small_config("baseline", f"lda.old_classes={old_classes}"), small_dataset, tmp_path / "run")
    discriminant = load_bundle(tmp_path / "run" / "model").discriminant
    assert discriminant is not None and discriminant.counts.tolist() == expected


@pytest.fixture
def learned(small_dataset: Dataset, small_config: Make, tmp_path: Path) -> State:
    """A model after the first of two tasks."""
    train(small_config("baseline", "data.tasks=1"), small_dataset, tmp_path / "run")
    return load_bundle(tmp_path / "run" / "model")


@pytest.fixture
def runtime(learned: State) -> Runtime:
    return Runtime.of(learned.config)


@pytest.fixture
def tasks(small_dataset: Dataset, runtime: Runtime) -> list[tuple[Task, PixelCache]]:
    return [(task, runtime.decode("decoding", task.train, 40)) for task in make_stream(small_dataset, 2, 2)]


def statistics(state: State, runtime: Runtime, tasks: list[tuple[Task, PixelCache]]) -> Discriminant:
    """Of all photos of these tasks, under the network as it is now."""
    found = Discriminant(1)
    for number, (task, photos) in enumerate(tasks):
        features = pooled_views(state, runtime, photos.pixels, "both", VIEWS).mean(1)
        found = found if number else Discriminant(features.shape[1], shrinkage=0.7, layer="both")
        found.add(features, labels_of(photos, task))
    return found


def learn_second(state: State, runtime: Runtime, tasks: list[tuple[Task, PixelCache]], change: float) -> Tensor:
    """Move the features in the second task by changing a bias of the network. -> distances to the right class means"""
    task, new = tasks[1]
    before = features_before(state, METHOD, new, runtime)
    with torch.no_grad():
        hidden = state.network.classifier.hidden
        assert isinstance(hidden, torch.nn.Sequential) and isinstance(hidden[2].bias, Tensor)
        hidden[2].bias += change * torch.randn(len(hidden[2].bias), generator=torch.Generator().manual_seed(1))
    update_discriminant(state, METHOD, task, new, runtime, before)
    assert state.discriminant is not None
    return (state.discriminant.solve().means - statistics(state, runtime, tasks).solve().means).norm(dim=1)


def test_without_drift_it_is_that_of_all_photos(
    learned: State, runtime: Runtime, tasks: list[tuple[Task, PixelCache]]
) -> None:
    distances = learn_second(learned, runtime, tasks, change=0.0)
    assert distances.max() < 1e-4
    expected = statistics(learned, runtime, tasks)
    assert learned.discriminant is not None
    torch.testing.assert_close(learned.discriminant.covariance(), expected.covariance(), rtol=1e-3, atol=1e-7)


def test_old_means_follow_the_features(learned: State, runtime: Runtime, tasks: list[tuple[Task, PixelCache]]) -> None:
    """Four of the six photos of each old class are in memory, and two are gone."""
    assert learned.discriminant is not None
    stale = learned.discriminant.solve().means
    distances = learn_second(learned, runtime, tasks, change=0.3)
    now = statistics(learned, runtime, tasks).solve().means[:2]
    assert distances[:2].max() < 0.1 * (now - stale).norm(dim=1).min()
    assert distances[2:].max() < 1e-5, "new photos are counted as they are"


def test_it_is_exact_if_the_memory_holds_all_photos(small_dataset: Dataset, small_config: Make, tmp_path: Path) -> None:
    """Then no statistics are left to be moved, and what was removed is added again with its present features."""
    train(small_config("baseline", "memory.budget=24"), small_dataset, tmp_path / "run")
    state = load_bundle(tmp_path / "run" / "model")
    runtime = Runtime.of(state.config)
    tasks = [(task, runtime.decode("decoding", task.train, 40)) for task in make_stream(small_dataset, 2, 2)]
    expected = statistics(state, runtime, tasks)
    assert state.discriminant is not None
    torch.testing.assert_close(state.discriminant.solve().means, expected.solve().means, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(state.discriminant.covariance(), expected.covariance(), rtol=1e-3, atol=1e-8)
