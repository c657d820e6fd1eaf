"""What cannot work is refused before anything is written, rather than after the first hour."""

from collections.abc import Sequence

from fdcnet.config import Config
from fdcnet.data.records import Task
from fdcnet.errors import UserError
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import Method


def refuse_impossible(config: Config, method: Method, stream: Sequence[Task]) -> None:
    data, train = config.data, config.train
    if not 0 < data.crop <= data.size:
        raise UserError(
            f"A crop of {data.crop} pixels cannot be cut from photos of {data.size}.",
            "Set data.crop to at most data.size.",
        )
    if train.batch_size < 1:
        raise UserError(f"train.batch_size cannot be {train.batch_size}.", "Set it to 2 or more.")
    if train.optim.lr <= 0:
        raise UserError(f"train.optim.lr cannot be {train.optim.lr:g}.", "Set it to a positive number, such as 0.005.")
    maps = [protocol.name for protocol in config.protocols[1:]]
    if not config.protocols or len(set(maps)) < len(maps):
        raise UserError(
            "'protocols' must hold one protocol, and further ones with different maps.",
            "Measure the saved model under other protocols with 'fdcnet evaluate'.",
        )
    if not stream[0].test:
        raise UserError(
            "There are no test photos of the first task's classes, so nothing could be measured.",
            "Move some photos to a test/ folder, or set some aside with --set data.holdout=0.2.",
        )
    if method.uses_memory:
        ExemplarMemory(config.memory.budget).quota(stream[-1].num_classes)
