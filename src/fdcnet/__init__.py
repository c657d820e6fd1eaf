"""Class-incremental weakly supervised object localization."""

from fdcnet.config import Config
from fdcnet.config import load as load_config
from fdcnet.data.sources import read as read_dataset
from fdcnet.methods import METHODS
from fdcnet.models.backbones import BACKBONES
from fdcnet.predict import Localizer
from fdcnet.prediction import Prediction
from fdcnet.training.evaluate import evaluate
from fdcnet.training.learner import train

__all__ = [
    "BACKBONES",
    "METHODS",
    "Config",
    "Localizer",
    "Prediction",
    "evaluate",
    "load_config",
    "read_dataset",
    "train",
]
