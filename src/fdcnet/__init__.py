"""Class-incremental weakly supervised object localization."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdcnet.config import Config as Config
    from fdcnet.config import load as load_config  # noqa: F401
    from fdcnet.data.records import Dataset as Dataset
    from fdcnet.data.sources import read as read_dataset  # noqa: F401
    from fdcnet.evaluation.evaluate import evaluate as evaluate
    from fdcnet.inference.localizer import Localizer as Localizer
    from fdcnet.inference.prediction import Prediction as Prediction
    from fdcnet.methods import METHODS as METHODS
    from fdcnet.models.backbones import BACKBONES as BACKBONES
    from fdcnet.teaching.label import label as label
    from fdcnet.teaching.learn import learn as learn
    from fdcnet.training.run import train as train

_PLACES = {
    "BACKBONES": "models.backbones:BACKBONES",
    "Config": "config:Config",
    "Dataset": "data.records:Dataset",
    "Localizer": "inference.localizer:Localizer",
    "METHODS": "methods:METHODS",
    "Prediction": "inference.prediction:Prediction",
    "evaluate": "evaluation.evaluate:evaluate",
    "label": "teaching.label:label",
    "learn": "teaching.learn:learn",
    "load_config": "config:load",
    "read_dataset": "data.sources:read",
    "train": "training.run:train",
}
__all__ = [*_PLACES, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import fdcnet` does not import torch."""
    if name == "__version__":
        return _installed_version()
    if name not in _PLACES:
        raise AttributeError(f"module 'fdcnet' has no attribute '{name}'")
    module, attribute = _PLACES[name].split(":")
    value = globals()[name] = getattr(importlib.import_module(f"fdcnet.{module}"), attribute)
    return value


def _installed_version() -> str:
    from importlib import metadata

    try:
        return metadata.version("fdcnet")
    except metadata.PackageNotFoundError:  # a checkout on the path that was never installed
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted(__all__)
