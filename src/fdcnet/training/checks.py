"""Checks across settings, made before anything is written. Single values are checked where they are declared."""

from collections.abc import Sequence

from fdcnet.config import Config, protocol_names
from fdcnet.data.records import Task
from fdcnet.errors import UserError
from fdcnet.memory import ExemplarMemory
from fdcnet.methods import METHODS, find_method
from fdcnet.methods.base import Method
from fdcnet.models.backbones import find_backbone


def refuse_impossible(config: Config, method: Method, stream: Sequence[Task]) -> None:
    """Refuse settings that do not fit the method or the data."""
    refuse_settings(config)
    if not stream[0].test:
        raise UserError(
            "There are no test photos of the first task's classes, so nothing can be evaluated.",
            "Move some photos to a test/ folder, or hold some out with --set data.holdout=0.2.",
        )
    if method.classifier not in (None, config.model.classifier):
        raise UserError(
            f"{method.name} needs a {method.classifier} classifier, not a {config.model.classifier} one.",
            f"Set model.classifier={method.classifier}, as its recipes do.",
        )
    if method.uses_memory:
        ExemplarMemory(config.memory.budget).quota(stream[-1].num_classes)


def refuse_settings(config: Config) -> None:
    """Refuse settings that contradict each other."""
    data = config.data
    if config.train.views and not find_method(config.method).light:
        able = ", ".join(name for name, method in METHODS.items() if method.light)
        raise UserError(
            f"{config.method} cannot train with a frozen backbone.", f"Set train.views=0 (or --full), or use: {able}."
        )
    if data.crop > data.size:
        raise UserError(
            f"A crop of {data.crop} pixels does not fit into photos of {data.size}.",
            "Set data.crop to at most data.size.",
        )
    if config.model.later_rows == "random" and config.model.sharing:
        raise UserError(
            "Random localizer rows of later tasks would change the masks of old classes, which share them.",
            "Set model.sharing=0, or model.later_rows=mean.",
        )
    stride = find_backbone(config.model.backbone).tail_stride
    if data.crop % stride:
        near = max(stride, data.crop // stride * stride)
        raise UserError(
            f"{config.model.backbone} cannot use crops of {data.crop} pixels.",
            f"Set data.crop to a multiple of {stride}, such as {near}.",
        )
    names = protocol_names(config.protocols)
    if not names:
        raise UserError("There is no protocol to evaluate with.", "Remove 'protocols', or give at least one.")
    if len(set(names)) < len(names):
        raise UserError(
            "Two protocols would be filed under the same name.",
            "Make them differ in map, topk, compensated, classifier or threshold, or use 'fdcnet evaluate'.",
        )
