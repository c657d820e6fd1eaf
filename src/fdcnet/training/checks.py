"""What cannot work is refused before anything is written, rather than after the first hour."""

import dataclasses
from collections.abc import Sequence

from fdcnet.config import Config, protocol_names, refuse_protocol
from fdcnet.data.records import Task
from fdcnet.errors import UserError
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import Method
from fdcnet.models.backbones import find_backbone
from fdcnet.training.light import LIGHT_METHODS


def refuse_impossible(config: Config, method: Method, stream: Sequence[Task]) -> None:
    refuse_settings(config)
    if not stream[0].test:
        raise UserError(
            "There are no test photos of the first task's classes, so nothing could be measured.",
            "Move some photos to a test/ folder, or set some aside with --set data.holdout=0.2.",
        )
    if method.classifier not in (None, config.model.classifier):
        raise UserError(
            f"{method.name} needs a {method.classifier} classifier, not a {config.model.classifier} one.",
            f"Set model.classifier={method.classifier}, as its recipes do.",
        )
    if method.uses_memory:
        ExemplarMemory(config.memory.budget).quota(stream[-1].num_classes)


def refuse_settings(config: Config) -> None:
    data, train = config.data, config.train
    if train.views and config.method not in LIGHT_METHODS:
        problem = f"{config.method} cannot learn with a frozen backbone."
        raise UserError(problem, f"Set train.views=0 (or --full), or choose one of: {', '.join(LIGHT_METHODS)}.")
    if not 0 < data.crop <= data.size:
        raise UserError(
            f"A crop of {data.crop} pixels cannot be cut from photos of {data.size}.",
            "Set data.crop to at most data.size.",
        )
    stride = find_backbone(config.model.backbone).tail_stride
    if data.crop % stride:
        near = max(stride, data.crop // stride * stride)
        raise UserError(
            f"{config.model.backbone} cannot see crops of {data.crop} pixels.",
            f"Set data.crop to a multiple of {stride}, such as {near}.",
        )
    for name, value, fits, wanted in (
        ("data.zoom", data.zoom, 0 < data.zoom <= 1, "more than 0 and at most 1"),
        ("data.colour", data.colour, 0 <= data.colour < 1, "0 or more and less than 1"),
        ("train.views", train.views, train.views >= 0, "0 or more"),
        ("train.base_epochs", train.base_epochs, train.base_epochs > 0, "1 or more"),
        ("train.step_epochs", train.step_epochs, train.step_epochs > 0, "1 or more"),
        ("drift.epochs", config.drift.epochs, config.drift.epochs > 0, "1 or more"),
        ("drift.optim.lr", config.drift.optim.lr, config.drift.optim.lr > 0, "a positive number, such as 0.01"),
        ("aanets.outer_every", config.aanets.outer_every, config.aanets.outer_every > 1, "2 or more"),
        ("train.optim.momentum", train.optim.momentum, 0 <= train.optim.momentum < 1, "0 or more and less than 1"),
        ("distill.temperature", config.distill.temperature, config.distill.temperature > 0, "a positive number"),
    ):
        if not fits:
            raise UserError(f"{name} cannot be {value:g}.", f"Set it to {wanted}.")
    if train.batch_size < 1:
        raise UserError(f"train.batch_size cannot be {train.batch_size}.", "Set it to 2 or more.")
    if train.optim.lr <= 0:
        raise UserError(f"train.optim.lr cannot be {train.optim.lr:g}.", "Set it to a positive number, such as 0.005.")
    for name, weight in dataclasses.asdict(config.weights).items():
        if weight < 0:
            raise UserError(f"weights.{name} cannot be {weight:g}.", "Set it to 0 or more.")
    for protocol in config.protocols:
        refuse_protocol(protocol)
    names = protocol_names(config.protocols)
    if not names:
        raise UserError("There is no protocol to evaluate with.", "Leave 'protocols' out, or give at least one.")
    if len(set(names)) < len(names):
        raise UserError(
            "Two protocols would be filed under the same name.",
            "Let them differ in map, topk, compensated, classifier or threshold, or use 'fdcnet evaluate'.",
        )
