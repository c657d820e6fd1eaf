"""What `fdcnet learn` decides by itself: settings for this many photos on this device, and how long it will take."""

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from fdcnet.config import Config
from fdcnet.data.batches import normalise
from fdcnet.data.records import Batch, Task
from fdcnet.errors import count
from fdcnet.methods import find_method
from fdcnet.methods.base import State, wsol_losses
from fdcnet.runtime.device import describe as device_name
from fdcnet.runtime.runtime import Runtime
from fdcnet.teaching import BACKBONE, MEMORY_PER_CLASS
from fdcnet.training.light import frozen_backbone

TEACHER = 1.3  # a step of a later task also asks the previous network
FEW_CLASSES = 50  # with fewer, masks die unless localization comes in late: results/tuning.md, few classes
FULL_FROM = 1000  # photos; with 300, light is more accurate: docs/teach.md
LIGHT_SEEN, FULL_SEEN = 3000, 12000  # photos seen in all, however many there are; light: results/tuning.md

COMMON: Mapping[str, Any] = {
    "method": "baseline",
    "model.backbone": BACKBONE,
    "model.classifier": "linear",
    "weights.area": 1.2,
    "train.allowed_background": 1.0,
    "protocols": [{"map": "class", "frame": "image", "crops": 2, "average": "image"}],
}
LIGHT_MODEL: Mapping[str, Any] = {  # ours: results/tuning.md, light training
    "model.head_width": 256,
    "train.loc_warmup": 0.6,
    "train.optim.lr": 0.002,
    "train.optim.head_factor": 5.0,
    "protocols.0.threshold": 0.6,
    "protocols.0.threshold_source": "ours: results/tuning.md, light training",
}
FULL_FEW: Mapping[str, Any] = {  # ours: results/tuning.md, full training of few photos
    "train.loc_warmup": 0.6,
    "train.optim.lr": 0.001,
    "protocols.0.threshold": 0.6,
    "protocols.0.threshold_source": "ours: results/tuning.md, full training of few photos",
}
LIGHT: Mapping[str, Any] = {
    "train.views": 3,
    "train.batch_size": 16,
    "train.sampling": "balanced",
    "train.step_lr": 0.0005,  # at the rate of a first task, the first epoch undoes what was known
    "weights.kd_cls": 5.0,
    "weights.kd_feat_cls": 1.0,
    "weights.kd_feat_loc": 0.0,  # frozen features need no distillation
}
FULL: Mapping[str, Any] = {"train.views": 0, "train.batch_size": 32, "train.sampling": "balanced"}


@dataclass(frozen=True)
class Size:
    """How much there is to learn from."""

    num_classes: int  # old and new
    num_photos: int  # with the exemplars


def settings_for(config: Config | None, light: bool, device: torch.device, size: Size) -> dict[str, Any]:
    """Settings that differ from the defaults for a model that is to be made, else from what the model has."""
    seen = LIGHT_SEEN if light else FULL_SEEN
    epochs = min(60, max(8, round(seen / max(1, size.num_photos))))
    settings = {**(LIGHT if light else FULL), "train.base_epochs": epochs, "train.step_epochs": epochs}
    if device.type == "cpu":
        settings["train.precision"] = "bf16" if fast_bfloat16() else "fp32"
    if config is None:
        few = FULL_FEW if size.num_classes < FEW_CLASSES else {}
        return {**COMMON, **(LIGHT_MODEL if light else few), **settings}
    if not find_method(config.method).uses_memory:
        settings["method"] = COMMON["method"]
    return settings


def light_is_enough(device: torch.device, num_photos: int) -> bool:
    """A CPU takes too long for more, and few photos teach a whole network little."""
    return device.type == "cpu" or num_photos < FULL_FROM


def memory_budget(config: Config, num_old: int, num_classes: int, per_class: int | None) -> int:
    """As many photos of each class as so far."""
    if per_class is None:
        per_class = config.memory.budget // num_old if num_old else MEMORY_PER_CLASS
    return max(1, per_class) * num_classes


def fast_bfloat16() -> bool:
    """Whether this processor computes with bfloat16; where it must be imitated, it is slower than float32."""
    return bool(torch.cpu._is_avx512_bf16_supported())


def describe(state: State, runtime: Runtime, task: Task, num_more: int, num_test: int) -> Iterator[str]:
    """What will be done, for a person, with the time it will take."""
    config, train = state.config, state.config.train
    num_photos = len(task.train) + num_more + len(state.memory)
    kept = len(state.memory) - num_more
    what = [f"{count(len(task.classes), 'new class')} from {count(len(task.train), 'photo')}"] if task.classes else []
    what += [f"{count(num_more, 'further photo')} of known classes"] if num_more else []
    what += [f"{count(kept, 'kept photo')} of {count(task.num_old, 'old class')}"] if task.num_old else []
    yield f"To learn: {', '.join(what)}. To measure: {count(num_test, 'photo')}."
    if task.num_old and not kept:
        yield "The model has kept no photos of its old classes: expect it to forget some of what it knew."
    mode = "light: backbone and tail stay as they are" if train.views else "full: everything learns"
    epochs = train.step_epochs if task.num_old else train.base_epochs
    rate = train.step_lr if task.num_old and train.step_lr else train.optim.lr
    yield (
        f"{config.model.backbone}, {mode}; method {config.method}, {count(epochs, 'epoch')}, batch {train.batch_size}, "
        f"lr {rate:g}, memory {config.memory.budget // task.num_classes} photos a class."
    )
    yield f"About {in_words(estimate(state, runtime, num_photos))} on {device_name(runtime.device)}."


def in_words(seconds: float) -> str:
    return count(max(1, round(seconds)), "second") if seconds < 100 else count(round(seconds / 60), "minute")


def estimate(state: State, runtime: Runtime, num_photos: int) -> float:
    """Seconds that learning will take, from a step on noise. The network is left as it is."""
    config, lineage = state.config, state.network.lineage
    probe = State(config, copy.deepcopy(state.network).train(), state.memory)
    if not state.classes:
        probe.network.grow(2)
    num, crop = min(8, config.train.batch_size), config.data.crop
    noise = torch.randint(0, 256, (num, crop, crop, 3), device=runtime.device)
    images, labels = normalise(noise, lineage.mean, lineage.std), torch.arange(num, device=runtime.device) % 2
    looking = 0.0
    light: AbstractContextManager[object] = nullcontext()
    if config.train.views:
        with torch.no_grad(), runtime.autocast:
            looking = config.train.views * _seconds(lambda: probe.network.backbone(images))
            features = probe.network.backbone(images).float()
        images, light = features, frozen_backbone(probe)

    def step() -> None:
        with runtime.autocast:
            losses = wsol_losses(probe, probe.network(images, labels), Batch(images, labels, labels < 0))
            total = torch.stack(list(losses.values())).sum()
        total.backward()

    epochs = config.train.step_epochs * TEACHER if state.classes else config.train.base_epochs
    with light:
        return (looking + _seconds(step) * epochs) / num * num_photos


def _seconds(work: Callable[[], object]) -> float:
    """Of the second time: the first one also warms up."""
    started = 0.0
    for _ in range(2):
        started = time.perf_counter()
        work()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    return time.perf_counter() - started
