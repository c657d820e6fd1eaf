"""Where tests find the shared data and weights (a skip says why when they are absent), and a run of seconds."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from fdcnet import config
from fdcnet.config import Config
from fdcnet.data.records import Dataset
from fdcnet.data.synthetic import make_synthetic
from fdcnet.methods import find_method
from fdcnet.training.run import train


def pytest_configure() -> None:
    """Background jobs start with SIGINT ignored, and nohup ignores SIGHUP. The tests of signals need the defaults."""
    for name, handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


settings.register_profile("fdcnet", deadline=None)  # how long a case takes says nothing on a busy machine
settings.load_profile("fdcnet")

SHRUNK = (
    "data.base_classes=2",
    "data.step_classes=2",
    "data.size=40",
    "data.crop=32",
    "model.backbone=tiny",
    "model.weights=none",
    "model.head_width=16",
    "train.base_epochs=2",
    "train.step_epochs=2",
    "train.batch_size=4",
    "drift.epochs=2",
    "memory.budget=9",
    "device=cpu",
)
SETTINGS = (
    *SHRUNK,
    "train.optim.lr=0.003",
    "train.checkpoint_minutes=0",
    "protocols=[{map: class, crops: 2}, {map: topk-mean, crops: 1}]",
)


def _folder(variable: str) -> Path:
    value = os.environ.get(variable)
    if not value or not Path(value).is_dir():
        pytest.skip(f"{variable} does not name a folder: real data and weights are not part of the repository")
    return Path(value).resolve()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decoded photos of tests do not go to the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FDCNET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    return _folder("FDCNET_DATA")


@pytest.fixture(scope="session")
def shared_weights() -> Path:
    return _folder("FDCNET_WEIGHTS")


@pytest.fixture
def small_dataset(tmp_path: Path) -> Dataset:
    """Four generated classes with six training photos each."""
    return make_synthetic(tmp_path / "photos", num_classes=4, train_per_class=6, test_per_class=2, size=40)


@pytest.fixture
def small_config() -> Callable[..., Config]:
    """The smallest real run: the tiny backbone, two tasks of two classes, two epochs each, the method's classifier."""

    def make(method: str, *overrides: str) -> Config:
        classifier = find_method(method).classifier or "linear"
        return config.load(None, [*SETTINGS, f"model.classifier={classifier}", *overrides], method=method)

    return make


@pytest.fixture(scope="session")
def shrunk() -> tuple[str, ...]:
    """What makes a recipe a run of seconds."""
    return SHRUNK


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos/ (train, test) and run/model, which learned four classes in two tasks with compensation."""
    folder = tmp_path_factory.mktemp("taught")
    dataset = make_synthetic(folder / "photos", num_classes=4, train_per_class=6, test_per_class=2, size=40)
    settings = [*SETTINGS, "train.full_rate_classes=0"]  # so that masks differ from place to place after two epochs
    train(config.load(None, settings, method="fdcnet"), dataset, folder / "run")
    return folder
