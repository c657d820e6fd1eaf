"""Teach a saved model new classes from photos: what `fdcnet learn`, `Localizer.learn` and the page call.

The old version stays in use until the new one is written, and is kept if anything goes wrong.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from fdcnet.config import Config, parse_overrides
from fdcnet.data.cache import PixelCache, default_cache_dir
from fdcnet.data.pixels import join
from fdcnet.data.records import Dataset, Task
from fdcnet.data.sources import read
from fdcnet.data.stream import append_task
from fdcnet.errors import UserError, count
from fdcnet.evaluation.measure import measure
from fdcnet.evaluation.metrics import by_task
from fdcnet.memory import ExemplarMemory
from fdcnet.methods import find_method
from fdcnet.methods.base import State
from fdcnet.models.discriminant import Discriminant
from fdcnet.models.network import new_network
from fdcnet.runtime.device import find_device
from fdcnet.runtime.listener import Listener
from fdcnet.runtime.progress import default_listener
from fdcnet.runtime.runtime import Runtime
from fdcnet.store.bundle import has_bundle, load_bundle
from fdcnet.store.versions import Version, add_version, after_tasks, rollback, versions, writing
from fdcnet.teaching import KEEP, checks, defaults
from fdcnet.teaching.cancel import Cancel, CancellableListener, Cancelled
from fdcnet.teaching.holdout import PhotoSplit, expected_to_train, split_photos
from fdcnet.teaching.stopped import LessonJournal, forget_stopped, forgotten_if_cancelled, lesson_key
from fdcnet.training.exemplars import add_exemplars
from fdcnet.training.journal import Journal
from fdcnet.training.seeding import seed_of
from fdcnet.training.statistics import add_classes, count_photos, from_exemplars, pooled_views
from fdcnet.training.task import learn_task

__all__ = ["Accuracy", "Cancelled", "LearnReport", "Version", "after_tasks", "learn", "rollback", "versions"]

HELD_OUT_PER_CLASS = 10  # photos kept in the model to evaluate old classes when their other photos are gone


@dataclass(frozen=True)
class Accuracy:
    """Percent, on photos not used for learning. The localization scores are None without true boxes."""

    top1_cls: float | None
    gt_known: float | None
    top1_loc: float | None
    num_photos: int
    by_class: dict[str, float | None] = field(default_factory=dict)  # top1_cls


@dataclass(frozen=True)
class LearnReport:
    """The outcome of a lesson. `old` are the classes known before; None if no photos of them are held out."""

    model: Path
    added: tuple[str, ...]
    more: tuple[str, ...]  # known classes that got further photos
    num_classes: int
    light: bool
    trained: bool  # False: one pass over the photos, without training
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
    refine: bool = False,
    backbone: str | None = None,
    weights: str | None = None,
    holdout: float | None = None,
    memory: int | None = None,
    epochs: int | None = None,
    keep: int = KEEP,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    device: str = "auto",
    cache: bool = True,
    cache_dir: Path | None = None,
    progress: bool = True,
    listener: Listener | None = None,
    cancel: Cancel | None = None,
) -> LearnReport:
    """Add the classes of `photos` to `model`. A model that does not exist is created.

    A light lesson trains when the model is new. After that it is one pass over the photos, which forgets nothing;
    `refine` trains the localizer as well.

    `more`: allow photos of classes that the model knows. `full`: train everything (None: as in the last lesson; at
    first only on a GPU with many photos). `holdout`: fraction of photos held out for evaluation (None: 0.2 if there are
    enough). `memory`: photos kept of each class. `epochs`: passes of training; implies `refine`. `keep`: earlier
    versions kept. `overrides`: any setting, such as "train.optim.lr=0.002". `cache`: store decoded photos in
    `cache_dir`, by default the user's cache folder. `progress`: show bars in a terminal or notebook, unless a
    `listener` is given. `cancel` is checked at every step and ends the lesson with `Cancelled`.
    """
    started = time.monotonic()
    model, listener = Path(model), CancellableListener(listener or default_listener(progress), cancel)
    checks.refuse_swapped_arguments(model, photos)
    checks.refuse_options(holdout, memory, epochs, keep)
    dataset = photos if isinstance(photos, Dataset) else read(photos)
    for note in dataset.notes:
        listener.note(note)
    flags = {"model.backbone": backbone, "model.weights": weights, "seed": seed}
    flags |= {"train.base_epochs": epochs, "train.step_epochs": epochs}
    given = parse_overrides(overrides) | {key: value for key, value in flags.items() if value is not None}
    try:
        with writing(model), forgotten_if_cancelled(model):
            old = load_bundle(model) if has_bundle(model) else None
            checks.refuse_lesson(model, old, dataset, more, bool(backbone or weights))
            if full is None:
                last = next((version.learned.get("light") for version in versions(model) if version.current), None)
                full = not defaults.is_light(old, last, find_device(device), len(dataset.train), given)
            config = _resolve(old, dataset, full, device, holdout, memory, given)
            folder = cache_dir or default_cache_dir() if cache else None
            runtime = Runtime.of(replace(config, device=device), folder, listener)
            state = _start(old, config)  # missing weights are reported before photos are decoded
            runtime.place(state.network)
            lesson = _open_photos(old, dataset, runtime, config, holdout)
            trains = _trains(state, runtime, refine or epochs is not None)
            key = lesson_key(model, state, lesson.task, (lesson.new, lesson.more))
            journal = LessonJournal(model, key, config.train.checkpoint_minutes, listener)
            accuracies = _teach(state, lesson, runtime, journal, trains)
            report = LearnReport(
                model=model,
                added=lesson.task.classes,
                more=lesson.more_classes,
                num_classes=len(state.classes),
                light=not full,
                trained=trains,
                seconds=round(time.monotonic() - started, 1),
                num_photos=dict(Counter(record.label for record in (*lesson.new.records, *lesson.more.records))),
                version=0,
                **accuracies,
            )
            saved = {key: value for key, value in asdict(report).items() if key not in ("model", "version")}
            version = add_version(state, model, saved, keep)
            forget_stopped(model)
            return replace(report, version=version.number)
    finally:
        listener.close()


def _resolve(
    old: State | None,
    dataset: Dataset,
    full: bool,
    device: str,
    holdout: float | None,
    memory: int | None,
    given: defaults.Options,
) -> Config:
    known = old.classes if old else []
    num_classes = len(known) + sum(name not in known for name in dataset.classes)
    num_photos = expected_to_train(len(dataset.train), len(dataset.test), holdout) + (len(old.memory) if old else 0)
    return defaults.resolve(old, not full, find_device(device), num_classes, num_photos, memory, given)


@dataclass(frozen=True)
class _Lesson:
    """The decoded photos by what they are for."""

    task: Task  # the new classes
    new: PixelCache
    new_test: PixelCache
    more: PixelCache  # further photos of known classes
    more_test: PixelCache
    history: dict[str, bool]

    @property
    def more_classes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(record.label for record in self.more.records))


def _open_photos(
    old: State | None, dataset: Dataset, runtime: Runtime, config: Config, holdout: float | None
) -> _Lesson:
    train, test = (runtime.decode("opening photos", part, config.data.size) for part in (dataset.train, dataset.test))
    counted = old is not None and old.discriminant is not None and config.train.views > 0
    photos = split_photos(old, train, test, holdout, repeat=not counted)
    if not len(photos.train):
        problem = f"None of the {len(train)} photos is new: the model has had all of them."
        raise UserError(problem, "Add photos that it has not seen yet.")
    if photos.num_skipped:
        skipped = count(photos.num_skipped, "photo")
        runtime.listener.note(f"Skipped {skipped}: duplicates, or used by an earlier lesson.")
    return _lesson(old, dataset, photos)


def _lesson(old: State | None, dataset: Dataset, photos: PhotoSplit) -> _Lesson:
    known = old.classes if old else []
    new_classes = tuple(name for name in dataset.classes if name not in known)
    new, new_test = photos.train.of_classes(new_classes), photos.test.of_classes(new_classes)
    checks.refuse_few_photos(Counter(record.label for record in new.records), new_classes)
    number = len(old.task_sizes) + 1 if old else 1
    task = Task(number, (), len(known), (), ())
    if new_classes:
        own = replace(dataset, classes=new_classes, train=new.records, test=new_test.records)
        task = append_task(known, own, number)
    more, more_test = photos.train.of_classes(known), photos.test.of_classes(known)
    return _Lesson(task, new, new_test, more, more_test, photos.history)


def _start(old: State | None, config: Config) -> State:
    """The old model with this lesson's settings, or a new network."""
    if old is None:
        return State(
            config, new_network(config.model, seed_of(config.seed, "new")), ExemplarMemory(config.memory.budget)
        )
    old.memory.budget = config.memory.budget
    return replace(old, config=config)


def _trains(state: State, runtime: Runtime, refine: bool) -> bool:
    """Whether this lesson needs gradient steps. A light model without statistics gets them from its exemplars."""
    if not state.config.train.views or not state.classes:
        return True
    if state.discriminant is None or (refine and state.discriminant.layer != "tail"):
        state.discriminant = from_exemplars(state, runtime)
        if state.discriminant is not None:
            kept = count(len(state.memory), "kept photo")
            runtime.listener.note(f"Class statistics were computed from {kept}.")
    return refine or state.discriminant is None


def _teach(
    state: State, lesson: _Lesson, runtime: Runtime, journal: Journal, trains: bool
) -> dict[str, Accuracy | None]:
    """Evaluate, learn, evaluate again; -> accuracies by their names in `LearnReport`"""
    task, new, more, light = lesson.task, lesson.new, lesson.more, state.config.train.views > 0
    old_test, new_test, more_classes = _joined(state.held_out, lesson.more_test), lesson.new_test, lesson.more_classes
    old_before = accuracy_of(state, runtime, old_test)

    for line in defaults.describe(state, runtime, task, len(more), len(old_test) + len(new_test), trains):
        runtime.listener.note(line)
    for label, name in enumerate(state.classes):
        if name in more_classes:
            add_exemplars(state, runtime, label, more.of_classes([name]))
    if light and (not state.classes or state.discriminant is not None):
        _learn_light(state, lesson, runtime, journal, trains)
    else:
        learn_task(state, find_method(state.config.method)(), task, new, runtime, journal)
        if state.discriminant is not None:
            state.discriminant = from_exemplars(state, runtime)
            runtime.listener.note(
                "Full training changed the features: class statistics were computed again from the kept photos alone."
            )
    if not task.classes:
        state.task_sizes.pop()  # further photos of known classes are not a task
    accuracies = {
        "old_before": old_before,
        "old_after": accuracy_of(state, runtime, old_test),
        "new_after": accuracy_of(state, runtime, new_test),
    }
    state.held_out = _first_of_each(_joined(old_test, new_test), state.classes)
    state.photo_history = lesson.history
    return accuracies


def _learn_light(state: State, lesson: _Lesson, runtime: Runtime, journal: Journal, trains: bool) -> None:
    """Add the photos to the statistics, which decide the class. Training, if wanted, is for the localizer."""
    task, discriminant = lesson.task, state.discriminant
    pixels = join([lesson.new.pixels, lesson.more.pixels])
    label_of = {name: label for label, name in enumerate([*state.classes, *task.classes])}
    labels = torch.tensor([label_of[record.label] for record in (*lesson.new.records, *lesson.more.records)])
    features = pooled_views(state, runtime, pixels, discriminant.layer if discriminant else "tail")
    state.discriminant = discriminant or Discriminant(features.shape[2])
    count_photos(state.discriminant, features, labels)
    if trains:
        learn_task(state, find_method(state.config.method)(), task, lesson.new, runtime, journal)
    else:
        add_classes(state, runtime, task, lesson.new, features[: len(lesson.new)])


def accuracy_of(state: State, runtime: Runtime, photos: PixelCache | None) -> Accuracy | None:
    if photos is None or not len(photos):
        return None
    protocol = state.config.protocols[0]
    [table] = measure(state, find_method(state.config.method)(), runtime, photos, [protocol])
    [scores] = by_task(table, protocol, [1] * len(state.classes))
    by_class = by_task(table, protocol, range(len(state.classes)))
    own = {name: each["top1_cls"] for name, each in zip(state.classes, by_class, strict=True)}
    measured = {name: own[name] for name in dict.fromkeys(record.label for record in photos.records)}
    return Accuracy(scores["top1_cls"], scores["gt_known"], scores["top1_loc"], len(photos), measured)


def _joined(first: PixelCache | None, second: PixelCache) -> PixelCache:
    """Both, with plain file names: the photos of the first no longer have a folder."""
    records = tuple(replace(record, path=Path(record.path.name)) for record in second.records)
    if first is None:
        return replace(second, records=records)
    pixels = join([first.pixels, second.pixels])
    return PixelCache((*first.records, *records), torch.cat([first.sizes, second.sizes]), pixels)


def _first_of_each(photos: PixelCache, classes: Sequence[str]) -> PixelCache:
    of_class: dict[str, list[int]] = {name: [] for name in classes}
    for row, record in enumerate(photos.records):
        of_class[record.label].append(row)
    rows = [row for own in of_class.values() for row in own[:HELD_OUT_PER_CLASS]]
    kept = torch.tensor(rows, dtype=torch.int64)
    return PixelCache(tuple(photos.records[row] for row in rows), photos.sizes[kept], photos.gather(kept).cpu())
