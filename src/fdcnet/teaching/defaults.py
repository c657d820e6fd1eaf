"""What `fdcnet learn` chooses by itself: settings for the number of photos and the device, and a time estimate."""

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fdcnet.config import Config, ModelConfig, changed
from fdcnet.data.batches import normalise
from fdcnet.data.records import Batch, Task
from fdcnet.errors import UserError, count
from fdcnet.evaluation.evaluator import class_views, map_views
from fdcnet.methods import find_method
from fdcnet.methods.base import State, wsol_losses
from fdcnet.methods.slda import evidence_map, mask_losses
from fdcnet.runtime.device import device_name
from fdcnet.runtime.runtime import Runtime
from fdcnet.teaching import BACKBONE, MEMORY_PER_CLASS
from fdcnet.training.checks import refuse_settings
from fdcnet.training.light import frozen_backbone
from fdcnet.training.statistics import VIEWS

Options = Mapping[str, Any]
"""Settings by their dotted names."""

TEACHER = 1.3  # a step of a later task also runs the previous network
FEW_CLASSES = 50  # with fewer, masks vanish unless the localization losses start late: results/tuning.md, few classes
FULL_FROM = 1000  # photos; with 300, light training is more accurate: docs/teach.md
LIGHT_SEEN, FULL_SEEN = 3000, 12000  # photos shown in total over all epochs; light: results/tuning.md
LIGHT_SEEN_OF_CLASS = 160  # ours: results/tuning.md, photos shown of each class

COMMON: Mapping[str, Any] = {
    "model.backbone": BACKBONE,
    "protocols": [{"map": "class", "frame": "image", "crops": 2, "map_views": 1, "average": "image"}],
}
LIGHT: Mapping[str, Any] = {
    "train.views": 3,
    "memory.features": "tail",  # which a lesson computes anyway
    "train.batch_size": 16,
    "train.sampling": "balanced",
}
LIGHT_MODEL: Mapping[str, Any] = {  # ours: results/tuning.md, masks against a closed-form classifier
    "method": "slda",
    "model.classifier": "linear",
    "model.head_width": 256,
    "train.optim.lr": 0.01,
    "train.optim.head_factor": 1.0,
    "train.step_lr": 0.0025,
}
MASKS: Mapping[str, Any] = {  # ours: results/tuning.md, light training
    "weights.area": 1.2,
    "train.foreground": "all",
    "train.allowed_background": 1.0,
    "train.mask_shifts": False,
    "train.erased_statistics": "batch",
    "train.full_rate_classes": 0,
    "train.loc_warmup": 0.6,
    "protocols.0.threshold": 0.6,
    "protocols.0.threshold_source": "ours: results/tuning.md, light training",
}
HEADS: Mapping[str, Any] = {  # light training by a method that trains the classifier head
    "train.step_lr": 0.0005,  # at the rate of the first task, the first epoch destroys what was learned
    "weights.kd_cls": 5.0,
    "weights.kd_feat_cls": 1.0,
    "weights.kd_feat_loc": 0.0,  # frozen features need no distillation
}
HEADS_MODEL: Mapping[str, Any] = {
    **MASKS,
    "model.head_width": 256,
    "train.optim.lr": 0.002,
    "train.optim.head_factor": 5.0,
}
FULL: Mapping[str, Any] = {"train.views": 0, "train.batch_size": 32, "train.sampling": "balanced"}
FULL_METHOD = "baseline"
FULL_FEW: Mapping[str, Any] = {  # ours: results/tuning.md, full training of few photos
    **MASKS,
    "model.classifier": "linear",
    "train.optim.lr": 0.001,
}


def light_run(method: str | None) -> dict[str, Any]:
    """The settings of `fdcnet train --light` that differ from the defaults. Without a method, that of `learn`."""
    if method is None or find_method(method).closed_form:
        return {**LIGHT, **LIGHT_MODEL}
    return {**LIGHT, **HEADS, **HEADS_MODEL}


def light_epochs(num_photos: int, num_classes: int) -> int:
    """With few photos, masks need many epochs to become decided. They are cheap: features are computed once.

    A localizer row learns from the photos of its own class, so many classes need more photos in total.
    """
    return min(60, max(8, round(max(LIGHT_SEEN, LIGHT_SEEN_OF_CLASS * num_classes) / max(1, num_photos))))


def is_light(old: State | None, last: bool | None, device: torch.device, num_photos: int, given: Options) -> bool:
    """As in the last lesson, if there was one. Else if light training is enough and the backbone is pretrained."""
    if last is not None:
        return last
    if old is not None:
        return device.type == "cpu" and find_method(old.config.method).light
    network = changed(Config(), given).model
    return is_pretrained(network) and (device.type == "cpu" or num_photos < FULL_FROM)


def light_is_better(network: ModelConfig, num_photos: int) -> bool:
    """With few photos, light training is more accurate than full training."""
    return is_pretrained(network) and num_photos < FULL_FROM


def is_pretrained(network: ModelConfig) -> bool:
    return network.weights != "none" and network.backbone != "tiny"


def resolve(
    old: State | None,
    light: bool,
    device: torch.device,
    num_classes: int,
    num_photos: int,
    memory: int | None,
    given: Options,
) -> Config:
    """The settings of this lesson: the model's own, or the defaults; then what suits the photos; then what was given.

    `num_classes` are old and new ones, `num_photos` with the exemplars, `memory` the photos to keep of each class.
    """
    base, num_old = (old.config, len(old.classes)) if old else (Config(), 0)
    settings = settings_for(old.config if old else None, light, device, num_classes, num_photos)
    settings["memory.budget"] = memory_budget(base, num_old, num_classes, memory)
    config = changed(base, settings | dict(given))
    if old and (config.model, config.data.size) != (base.model, base.data.size):
        problem = "Settings under 'model', and data.size, cannot change once a model exists."
        raise UserError(problem, "Leave them out, or start another model.")
    refuse_settings(config)
    return config


def settings_for(
    config: Config | None, light: bool, device: torch.device, num_classes: int, num_photos: int
) -> dict[str, Any]:
    """What differs from the defaults (a new model), or from the model's settings `config`."""
    full_epochs = min(60, max(8, round(FULL_SEEN / max(1, num_photos))))
    epochs = light_epochs(num_photos, num_classes) if light else full_epochs
    settings = {**(LIGHT if light else FULL), "train.base_epochs": epochs, "train.step_epochs": epochs}
    if device.type == "cpu":
        settings["train.precision"] = "bf16" if fast_bfloat16() else "fp32"
    full = {"method": FULL_METHOD, **(FULL_FEW if num_classes < FEW_CLASSES else {})}
    if config is None:
        return {**COMMON, **(LIGHT_MODEL if light else full), **settings}
    method = find_method(config.method)
    if method.closed_form and not light:
        settings |= {key: value for key, value in full.items() if not key.startswith("model.")}
    elif not method.uses_memory:
        settings["method"] = FULL_METHOD
    if light and not method.closed_form:
        settings |= HEADS
    return settings


def memory_budget(config: Config, num_old: int, num_classes: int, per_class: int | None) -> int:
    """By default, the same number of photos per class as before."""
    if per_class is None:
        per_class = config.memory.budget // num_old if num_old else MEMORY_PER_CLASS
    return max(1, per_class) * num_classes


def fast_bfloat16() -> bool:
    """Whether this processor has bfloat16 instructions. Emulated, it is slower than float32."""
    return bool(torch.cpu._is_avx512_bf16_supported())


def describe(state: State, runtime: Runtime, task: Task, num_more: int, num_test: int, trains: bool) -> Iterator[str]:
    """What the lesson will do, and how long it will take."""
    config, train = state.config, state.config.train
    num_kept = len(state.memory)
    what = [f"{count(len(task.classes), 'new class')} from {count(len(task.train), 'photo')}"] if task.classes else []
    what += [f"{count(num_more, 'further photo')} of known classes"] if num_more else []
    what += (
        [f"{count(num_kept, 'kept photo')} of {count(task.num_old, 'old class')}"] if task.num_old and trains else []
    )
    yield f"To learn: {', '.join(what)}. To evaluate: {count(num_test, 'photo')}."
    num_photos = len(task.train) + num_more
    if not trains:
        yield f"{config.model.backbone}: one pass over the photos, nothing is trained. Old classes are not forgotten."
    else:
        num_photos += num_kept
        if task.num_old and not num_kept and state.discriminant is None:
            yield "The model has no photos of its old classes: expect it to forget some of what it knew."
        mode = "light: backbone and tail are frozen" if train.views else "full: everything is trained"
        epochs = train.step_epochs if task.num_old else train.base_epochs
        rate = train.step_lr if task.num_old and train.step_lr else train.optim.lr
        yield (
            f"{config.model.backbone}, {mode}; method {config.method}, {count(epochs, 'epoch')}, batch "
            f"{train.batch_size}, lr {rate:g}, memory {config.memory.budget // task.num_classes} photos per class."
        )
    yield f"About {in_words(estimate(state, runtime, num_photos, num_test, trains))} on {device_name(runtime.device)}."


def in_words(seconds: float) -> str:
    return count(max(1, round(seconds)), "second") if seconds < 100 else count(round(seconds / 60), "minute")


def estimate(state: State, runtime: Runtime, num_photos: int, num_test: int, trains: bool = True) -> float:
    """Seconds of learning and of the evaluation after it, measured by one step on noise. `state` is not changed."""
    config, lineage = state.config, state.network.lineage
    num, crop = min(8, config.train.batch_size), config.data.crop
    noise = torch.randint(0, 256, (num, crop, crop, 3), device=runtime.device)
    images, labels = normalise(noise, lineage.mean, lineage.std), torch.arange(num, device=runtime.device) % 2
    probe = State(config, copy.deepcopy(state.network).eval(), state.memory)
    if not state.classes:
        probe.network.grow(2)
    evaluating, network = 0.0, probe.network
    with torch.inference_mode(), runtime.autocast:
        if num_test:
            views = {*class_views(config.protocols[0]), *map_views(config.protocols[0])}
            evaluating = len(views) * _seconds(lambda: network(images)) / num * num_test
        if not trains:
            passes = len(VIEWS) * _seconds(lambda: network.classifier.tail(network.backbone(images)))
            return passes / num * num_photos + evaluating
    network.train()
    method = find_method(config.method)()
    looking = 0.0
    light: AbstractContextManager[object] = nullcontext()
    if config.train.views:
        with torch.no_grad(), runtime.autocast:
            looking = config.train.views * _seconds(lambda: probe.network.backbone(images))
            features = probe.network.backbone(images).float()
        images, light = features, frozen_backbone(probe)

    def step() -> None:
        batch = Batch(images, labels, labels < 0)
        with runtime.autocast:
            if method.closed_form:
                losses = mask_losses(probe.network, batch)
            else:
                losses = wsol_losses(probe, probe.network(images, labels), batch)
            total = torch.stack(list(losses.values())).sum()
        total.backward()

    epochs = float(config.train.step_epochs if state.classes else config.train.base_epochs)
    if state.classes and method.keeps_previous:
        epochs *= TEACHER
    with light:
        if method.closed_form:
            tail, rows = probe.network.classifier.tail, torch.ones(num, state.network.widths[1], device=runtime.device)
            with runtime.autocast:
                looking += config.train.views * _seconds(lambda: evidence_map(tail, features, rows))
            images = torch.cat([features, features[:, :1]], dim=1)  # any evidence
        return (looking + _seconds(step) * epochs) / num * num_photos + evaluating


def _seconds(work: Callable[[], object]) -> float:
    """The time of the second of two runs, because the first one also warms up."""
    started = 0.0
    for _ in range(2):
        started = time.perf_counter()
        work()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    return time.perf_counter() - started
