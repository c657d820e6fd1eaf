"""Teach a saved model new classes from photos: what `fdcnet learn`, `Localizer.learn` and the page call.

The old model stays as it is, and in use, until the new version lies beside it; whatever happens before, it is kept.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fdcnet.config import Config, changed, parse_overrides
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Dataset, Task
from fdcnet.data.sources import read
from fdcnet.data.stream import append_task
from fdcnet.errors import UserError, count
from fdcnet.evaluation.measure import measure
from fdcnet.evaluation.metrics import by_task
from fdcnet.memory import ExemplarMemory, herd
from fdcnet.methods import find_method
from fdcnet.methods.base import State
from fdcnet.models.network import new_network
from fdcnet.runtime.device import find_device
from fdcnet.runtime.listener import Epoch, Listener
from fdcnet.runtime.runtime import Runtime
from fdcnet.store.bundle import CURRENT, has_bundle, load_bundle
from fdcnet.store.versions import Version, add_version, after_tasks, is_unborn, rollback, versions, writing
from fdcnet.teaching import KEEP
from fdcnet.teaching import defaults as plan
from fdcnet.teaching.holdout import FEWEST_PHOTOS, Sorted, sort_photos
from fdcnet.training.checks import refuse_settings
from fdcnet.training.exemplars import pooled_features
from fdcnet.training.seeding import seed_of
from fdcnet.training.task import learn_task

__all__ = ["Accuracy", "Cancelled", "LearnReport", "Version", "after_tasks", "learn", "rollback", "versions"]

HELD_OUT_PER_CLASS = 10  # that stay in the model, to measure old classes when their photos are gone
LONGEST_NAME = 200
EMPTY = 0.01  # mean mask below which there is nothing to box

Cancel = Callable[[], bool] | threading.Event


class Cancelled(Exception):
    """Somebody asked to stop; the model is as it was."""


@dataclass(frozen=True)
class Accuracy:
    """Percent, over photos that were never learned from. Without true boxes the two of them are None."""

    top1_cls: float | None
    gt_known: float | None
    top1_loc: float | None
    num_photos: int
    by_class: dict[str, float | None] = field(default_factory=dict)  # top1_cls


@dataclass(frozen=True)
class LearnReport:
    """What came of it. `old`: classes that were known before; None where no photos of them are held out."""

    model: Path
    added: tuple[str, ...]
    more: tuple[str, ...]  # known classes that got further photos
    num_classes: int
    light: bool
    seconds: float
    old_before: Accuracy | None
    old_after: Accuracy | None
    new_after: Accuracy | None
    num_photos: dict[str, int]  # used for training, by class
    version: int


def learn(
    model: str | Path,
    photos: str | Path | Dataset,
    *,
    more: bool = False,
    full: bool | None = None,
    backbone: str | None = None,
    weights: str | None = None,
    holdout: float | None = None,
    memory: int | None = None,
    epochs: int | None = None,
    keep: int = KEEP,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    device: str = "auto",
    cache_dir: Path | None = None,
    listener: Listener | None = None,
    cancel: Cancel | None = None,
) -> LearnReport:
    """Add the classes of `photos` to `model`, which is made if it is not there yet.

    `more`: photos may also be of classes that the model knows. `full`: train everything (None: on a GPU with many
    photos, or if the model has been learned so). `holdout`: share of the photos that measure instead of teaching (None:
    a fifth, where there are enough). `memory`: photos kept of each class. `keep`: earlier versions kept. `overrides`:
    any setting, as "train.optim.lr=0.002". `cancel` is asked at every step and ends it with `Cancelled`.
    """
    started = time.monotonic()
    model, watched = Path(model), _Watched(listener or Listener(), cancel)
    _refuse_swapped(model, photos)
    _refuse_settings(holdout, memory, epochs, keep)
    dataset = photos if isinstance(photos, Dataset) else read(photos)
    for note in dataset.notes:
        watched.note(note)
    given = parse_overrides(overrides)
    flags = {"model.backbone": backbone, "model.weights": weights, "seed": seed}
    flags |= {"train.base_epochs": epochs, "train.step_epochs": epochs}
    given |= {key: value for key, value in flags.items() if value is not None}
    try:
        with writing(model):
            old = load_bundle(model) if has_bundle(model) else None
            if old and (backbone or weights):
                raise UserError(
                    f"{model} has a backbone already: {old.config.model.backbone}.",
                    "Leave out --backbone and --weights, or start another model.",
                )
            _refuse_lesson(old, dataset, more)
            config = _asked_for(old, given)
            opening = Runtime.of(replace(config, device=device), cache_dir, watched)
            lesson = _lesson(old, dataset, _open(old, dataset, opening, config.data.size, holdout))
            where = find_device(device)
            light = _is_light(model, old, where, len(dataset.train), given) if full is None else not full
            state = _state(old, lesson, where, light, memory, given)
            runtime = Runtime.of(replace(state.config, device=device), cache_dir, watched)
            runtime.place(state.network)
            results = _teach(state, lesson, runtime)
            report = LearnReport(
                model=model,
                added=lesson.task.classes,
                more=lesson.more_classes,
                num_classes=len(state.classes),
                light=state.config.train.views > 0,
                seconds=round(time.monotonic() - started, 1),
                num_photos=dict(Counter(record.label for record in (*lesson.new.records, *lesson.more.records))),
                version=0,
                **results,
            )
            saved = {key: value for key, value in asdict(report).items() if key not in ("model", "version")}
            return replace(report, version=add_version(state, model, saved, keep).number)
    finally:
        watched.close()


@dataclass(frozen=True)
class _Lesson:
    """What the photos are for."""

    task: Task  # the new classes
    new: PixelCache
    new_test: PixelCache
    more: PixelCache  # further photos of known classes
    more_test: PixelCache
    given: dict[str, bool]

    @property
    def more_classes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(record.label for record in self.more.records))


def _lesson(old: State | None, dataset: Dataset, photos: Sorted) -> _Lesson:
    known = old.classes if old else []
    new_classes = tuple(name for name in dataset.classes if name not in known)
    new, new_test = photos.teach.of_classes(new_classes), photos.measure.of_classes(new_classes)
    _refuse_few(Counter(record.label for record in new.records), new_classes)
    number = len(old.task_sizes) + 1 if old else 1
    task = Task(number, (), len(known), (), ())
    if new_classes:
        own = replace(dataset, classes=new_classes, train=new.records, test=new_test.records)
        task = append_task(known, own, number)
    more, more_test = photos.teach.of_classes(known), photos.measure.of_classes(known)
    return _Lesson(task, new, new_test, more, more_test, photos.given)


def _open(old: State | None, dataset: Dataset, runtime: Runtime, size: int, share: float | None) -> Sorted:
    train, test = (runtime.decode("opening photos", part, size) for part in (dataset.train, dataset.test))
    photos = sort_photos(old, train, test, share)
    if not len(photos.teach):
        problem = f"None of the {len(train)} photos is new: the model has had all of them."
        raise UserError(problem, "Give photos that it has not seen yet.")
    if photos.num_left_out:
        several = count(photos.num_left_out, "photo")
        runtime.listener.note(f"Left out: {several} that the model holds or was measured with, or that came twice.")
    return photos


def _is_light(model: Path, old: State | None, device: torch.device, num_photos: int, given: Mapping[str, Any]) -> bool:
    """As the last lesson was, if there was one; else if that is enough, and there is something to build on."""
    last = next((version.learned.get("light") for version in versions(model) if version.current), None)
    if last is not None:
        return bool(last)
    if old is not None:
        return device.type == "cpu" and find_method(old.config.method).light
    network = changed(Config(), given).model
    return plan.light_is_enough(device, num_photos) and network.weights != "none" and network.backbone != "tiny"


def _asked_for(old: State | None, given: Mapping[str, Any]) -> Config:
    """The settings of the model with those given: enough to open photos."""
    config = changed(old.config if old else Config(), given)
    if old and (config.model, config.data.size) != (old.config.model, old.config.data.size):
        problem = "Settings under 'model', and data.size, cannot change once a model is made."
        raise UserError(problem, "Start another model for them.")
    return config


def _state(
    old: State | None, lesson: _Lesson, device: torch.device, light: bool, memory: int | None, given: dict[str, Any]
) -> State:
    """The old model with this lesson's settings, or a new network."""
    num_exemplars = len(old.memory) if old else 0
    size = plan.Size(lesson.task.num_classes, len(lesson.task.train) + len(lesson.more) + num_exemplars)
    base = old.config if old else Config()
    settings = plan.settings_for(old.config if old else None, light, device, size)
    settings["memory.budget"] = plan.memory_budget(base, lesson.task.num_old, lesson.task.num_classes, memory)
    config = changed(base, settings | given)
    refuse_settings(config)
    if old is None:
        network = new_network(config.model, seed_of(config.seed, "new"))
        return State(config, network, ExemplarMemory(config.memory.budget))
    old.memory.budget = config.memory.budget
    return replace(old, config=config)


def _teach(state: State, lesson: _Lesson, runtime: Runtime) -> dict[str, Accuracy | None]:
    """Measure, learn, measure again; -> accuracies by their names in `LearnReport`"""
    task, new, more = lesson.task, lesson.new, lesson.more
    old_test, new_test = _joined(state.held_out, lesson.more_test), lesson.new_test

    old_before = _accuracy(state, runtime, old_test)
    for label, name in enumerate(state.classes):
        _more_exemplars(state, runtime, label, more.of_classes([name]))
    for line in plan.describe(state, runtime, task, len(more), len(old_test) + len(new_test)):
        runtime.listener.note(line)
    learn_task(state, find_method(state.config.method)(), task, new, runtime)
    if not task.classes:
        state.task_sizes.pop()  # more photos are no task of their own
    results = {
        "old_before": old_before,
        "old_after": _accuracy(state, runtime, old_test),
        "new_after": _accuracy(state, runtime, new_test),
    }
    state.held_out = _first_of_each(_joined(old_test, new_test), state.classes)
    state.photo_history = lesson.given
    return results


def _more_exemplars(state: State, runtime: Runtime, label: int, photos: PixelCache) -> None:
    """Further photos of a known class join its exemplars, herded together: trimming after the task keeps the best."""
    if not len(photos):
        return
    pixels, names = photos.pixels.cpu(), [record.path.name for record in photos.records]
    if label in state.memory.pixels:
        pixels, names = torch.cat([state.memory.pixels[label], pixels]), state.memory.names[label] + names
    order = herd(pooled_features(state, runtime, pixels, state.config.memory.features), len(names))
    state.memory.pixels[label] = pixels[order]
    state.memory.names[label] = [names[i] for i in order]


def _accuracy(state: State, runtime: Runtime, photos: PixelCache) -> Accuracy | None:
    if not len(photos):
        return None
    protocol = state.config.protocols[0]
    [table] = measure(state, find_method(state.config.method)(), runtime, photos, [protocol])
    [scores] = by_task(table, protocol, [1] * len(state.classes))
    by_class = by_task(table, protocol, range(len(state.classes)))
    own = {name: each["top1_cls"] for name, each in zip(state.classes, by_class, strict=True)}
    measured = {name: own[name] for name in dict.fromkeys(record.label for record in photos.records)}
    return Accuracy(scores["top1_cls"], scores["gt_known"], scores["top1_loc"], len(photos), measured)


def _joined(first: PixelCache | None, second: PixelCache) -> PixelCache:
    """Both, with plain file names: the photos of the first have no folder any more."""
    records = tuple(replace(record, path=Path(record.path.name)) for record in second.records)
    if first is None:
        return replace(second, records=records)
    pixels = torch.cat([first.pixels, second.pixels.to(first.pixels.device)])
    return PixelCache((*first.records, *records), torch.cat([first.sizes, second.sizes]), pixels)


def _first_of_each(photos: PixelCache, classes: Sequence[str]) -> PixelCache:
    of_class: dict[str, list[int]] = {name: [] for name in classes}
    for row, record in enumerate(photos.records):
        of_class[record.label].append(row)
    rows = [row for own in of_class.values() for row in own[:HELD_OUT_PER_CLASS]]
    kept = torch.tensor(rows, dtype=torch.int64)
    return PixelCache(tuple(photos.records[row] for row in rows), photos.sizes[kept], photos.gather(kept).cpu())


def _refuse_swapped(model: Path, photos: str | Path | Dataset) -> None:
    if not isinstance(photos, Dataset) and any((Path(photos) / file).is_file() for file in ("fdcnet.json", CURRENT)):
        problem = f"{photos} is a model: there are no photos to learn from."
        raise UserError(problem, "Name the model first, then the photos: fdcnet learn MODEL PHOTOS")
    if model.exists() and not has_bundle(model) and not is_unborn(model):
        raise UserError(
            f"{model} is there already, and no model.",
            "Name the model first, then the photos: fdcnet learn MODEL PHOTOS",
        )


def _refuse_settings(holdout: float | None, memory: int | None, epochs: int | None, keep: int) -> None:
    if holdout is not None and not 0 <= holdout < 1:
        raise UserError(f"holdout cannot be {holdout:g}.", "Give a share below 1, such as 0.2, or 0 to learn from all.")
    if memory is not None and memory < 1:
        raise UserError(f"memory cannot be {memory}.", "Keep one photo of each class or more.")
    if epochs is not None and epochs < 1:
        raise UserError(f"epochs cannot be {epochs}.", "Give 1 or more, or leave it out: then the photos decide.")
    if keep < 0:
        raise UserError(f"keep cannot be {keep}.", "Give the number of earlier versions to keep, or 0.")


def _refuse_lesson(old: State | None, dataset: Dataset, more: bool) -> None:
    """What can be told before a photo is opened."""
    if not dataset.train:
        raise UserError(f"{dataset.name} holds no photos to learn from.", "Put photos beside test/, or into train/.")
    _refuse_names(dataset.classes)
    known = [name for name in dataset.classes if old and name in old.classes]
    if known and not more:
        others = f" and {len(known) - 1} more" if len(known) > 1 else ""
        raise UserError(
            f"The model already knows '{known[0]}'{others}.",
            "Add --more to teach it further photos of them, or rename those folders.",
        )
    if old is None and len(dataset.classes) < 2:
        raise UserError(
            f"There is one class only ({', '.join(dataset.classes)}).",
            "Telling classes apart needs at least two: begin with photos of two classes or more.",
        )
    new = [name for name in dataset.classes if name not in known]
    _refuse_few(Counter(record.label for record in dataset.train), new)


def _refuse_names(classes: Sequence[str]) -> None:
    for name in classes:
        if len(name) > LONGEST_NAME:
            problem = f"The class name '{name[:40]}...' has {len(name)} characters."
            raise UserError(problem, f"Shorten it to {LONGEST_NAME} at most.")
        if not name.isprintable():
            raise UserError(f"The class name {name!r} has characters that cannot be printed.", "Rename the class.")


def _refuse_few(counts: Counter[str], classes: Sequence[str]) -> None:
    for name in classes:
        if counts[name] < FEWEST_PHOTOS:
            few = {0: "no photo", 1: "one photo"}.get(counts[name], f"{counts[name]} photos")
            raise UserError(
                f"Class '{name}' has {few} to learn from.",
                f"Give at least {FEWEST_PHOTOS}; with 20 or more it will be found much better.",
            )


class _Watched(Listener):
    """Passes everything on, and stops where somebody asked for it."""

    def __init__(self, listener: Listener, cancel: Cancel | None) -> None:
        self.listener, self.area = listener, 1.0
        self.cancelled = cancel.is_set if isinstance(cancel, threading.Event) else cancel or (lambda: False)

    def _look(self) -> None:
        if self.cancelled():
            raise Cancelled("Stopped. The model is as it was.")

    def note(self, text: str) -> None:
        self.listener.note(text)

    def progress(self, what: str, done: int, total: int) -> None:
        self._look()
        self.listener.progress(what, done, total)

    def task_started(self, task: Task, num_tasks: int) -> None:
        self.listener.task_started(task, num_tasks)

    def phase_started(self, name: str, first_epoch: int, epochs: int, num_images: int) -> None:
        self.listener.phase_started(name, first_epoch, epochs, num_images)

    def step(self, num_images: int) -> None:
        self._look()
        self.listener.step(num_images)

    def epoch_ended(self, epoch: Epoch) -> None:
        self.area = epoch.losses.get("area", self.area)
        self.listener.epoch_ended(epoch)

    def phase_ended(self) -> None:
        self.listener.phase_ended()
        if self.area < EMPTY:
            self.note("The masks are nearly empty: boxes will be poor. See 'few classes' in the guide to your photos.")

    def close(self) -> None:
        self.listener.close()
