"""The task loop: train on the new classes, keep exemplars, save the model, evaluate it, continue."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fdcnet.config import Config, Protocol
from fdcnet.data.cache import PixelCache, default_cache_dir
from fdcnet.data.records import Dataset, Task
from fdcnet.data.stream import make_stream
from fdcnet.errors import UserError
from fdcnet.evaluation.measure import examples_of, measure, pick_examples
from fdcnet.evaluation.table import Table
from fdcnet.files import locked
from fdcnet.memory import ExemplarMemory
from fdcnet.methods import find_method
from fdcnet.methods.base import Method, State
from fdcnet.models.network import new_network
from fdcnet.runtime.device import device_name
from fdcnet.runtime.distributed import is_first, noticing_losses, on_first
from fdcnet.runtime.listener import Listener
from fdcnet.runtime.progress import default_listener
from fdcnet.runtime.runtime import Runtime
from fdcnet.store.bundle import has_bundle, load_bundle, remove_old, save_bundle
from fdcnet.store.record import Example
from fdcnet.training.checkpoint import remove_checkpoint
from fdcnet.training.checks import refuse_impossible
from fdcnet.training.discriminant import can_fit, features_before, update_discriminant
from fdcnet.training.exemplars import keep_exemplars
from fdcnet.training.loop import Diverged
from fdcnet.training.run_folder import ReadOnlyRunFolder, RunFolder, resume_point
from fdcnet.training.seeding import seed_of
from fdcnet.training.task import learn_task


def train(
    config: Config,
    dataset: Dataset,
    run_dir: str | Path,
    *,
    resume: bool = False,
    base_model: str | Path | None = None,
    progress: bool = True,
    listener: Listener | None = None,
    cache_dir: Path | None = None,
) -> dict[str, Any]:
    """Train on a stream of tasks and return the results under the first protocol.

    `resume`: continue a stopped run from its last checkpoint; the result is the same as without the stop. `base_model`:
    take the first task from this saved model, so that methods can be compared from the same start. `progress`: show
    bars in a terminal or notebook, unless a `listener` is given.
    """
    method = find_method(config.method)()
    config = with_resolved_protocols(config, method)
    sizes = (0, 0) if method.one_task else (config.data.base_classes, config.data.step_classes)
    data = config.data
    stream = make_stream(
        dataset, *sizes, order=data.order, seed=config.seed, holdout=data.holdout, order_seed=data.order_seed
    )[: data.tasks or None]
    runtime = Runtime.of(config, cache_dir or default_cache_dir(), listener or default_listener(progress))
    num_photos = sum(len(task.train) for task in stream) + len(stream[-1].test)
    runtime = runtime.for_photos(num_photos, data.size)
    kind = RunFolder if is_first() else ReadOnlyRunFolder
    folder = kind(Path(run_dir), config, method, stream, dataset.name, runtime.clock)
    return TrainingRun(config, method, stream, folder, runtime).run(resume, Path(base_model) if base_model else None)


def with_resolved_protocols(config: Config, method: Method | type[Method]) -> Config:
    protocols = dict.fromkeys(resolved(protocol, method) for protocol in config.protocols)  # some may be equal now
    return replace(config, protocols=tuple(protocols))


def resolved(protocol: Protocol, method: Method | type[Method]) -> Protocol:
    """Replace `auto` by the classifier that this method gets."""
    best: Literal["head", "lda"] = "lda" if can_fit(method) else "head"
    return replace(protocol, classifier=best) if protocol.classifier == "auto" else protocol


class TrainingRun:
    """One run: a stream of tasks, recorded in a run folder."""

    def __init__(self, config: Config, method: Method, stream: list[Task], folder: RunFolder, runtime: Runtime) -> None:
        self.config, self.method, self.stream, self.folder, self.runtime = config, method, stream, folder, runtime
        self.listener, self.clock = runtime.listener, runtime.clock
        self.new_photos: dict[int, PixelCache] = {}  # by task number, decoded in advance
        self.test_photos: PixelCache | None = None

    def run(self, resume: bool, base_model: Path | None) -> dict[str, Any]:
        resumed = resume and self.folder.record.exists()
        with contextlib.ExitStack() as leaving:
            leaving.callback(self.listener.close)
            leaving.enter_context(noticing_losses())
            if resumed and is_first():
                leaving.enter_context(locked(self.folder.path))
            state = self._start(resume, base_model)
            if resume:
                self._say_where()
            self._open_photos(state)
            self.folder.open(resume, device_name(self.runtime.device), base_model, self.runtime.encoded)
            if not resumed and is_first():
                leaving.enter_context(locked(self.folder.path))
            if base_model and is_first() and not has_bundle(self.folder.model):
                save_bundle(state, self.folder.model)  # so that a resumed run needs nothing else
            try:
                return self._run_tasks(state)
            except Diverged as error:
                if is_first():
                    self.folder.record.write_run(failed=str(error).splitlines()[0])
                raise

    def _say_where(self) -> None:
        point = resume_point(self.folder.path)
        none = f"There is no run in {self.folder.path} yet. Starting from the beginning."
        self.listener.note(f"Resuming from {point}." if point else none)

    def _run_tasks(self, state: State) -> dict[str, Any]:
        for task in self.stream:
            if task.number > len(state.task_sizes):
                self.listener.task_started(task, len(self.stream))
                self._learn(state, task)
                with self._saved_meanwhile(state):
                    found = self._measure(state, task)
            elif not self.folder.is_measured(task.number):
                found = self._measure(state, task)
            else:
                continue
            with self.clock("write"):
                results = on_first(partial(self._write, task.number, state, found))
            self.listener.task_ended(task, results["tasks"][-1])
        return on_first(self._finish)

    def _learn(self, state: State, task: Task) -> None:
        new = self.new_photos.pop(task.number) if task.number in self.new_photos else self._decode_new(task)
        with self.clock("fit"):
            before = features_before(state, self.method, new, self.runtime)
        with self.clock("train"):
            learn_task(state, self.method, task, new, self.runtime, self.folder)
        with self.clock("fit"):
            update_discriminant(state, self.method, task, new, self.runtime, before)

    def _finish(self) -> dict[str, Any]:
        remove_checkpoint(self.folder.path)  # a killed run may have left these behind
        remove_old(self.folder.model)
        results = self.folder.write_results(len(self.stream))
        self.folder.record.finish(self.folder.seconds())
        return results

    def _start(self, resume: bool, base_model: Path | None) -> State:
        """The state to start from: the saved model of a resumed run, or a new network. Nothing is written yet."""
        refuse_impossible(self.config, self.method, self.stream)
        if resume and self.folder.record.exists():
            self.folder.refuse_other_run(base_model)
            base_model = base_model or self.folder.base_model()
            if has_bundle(self.folder.model):
                state = load_bundle(self.folder.model)
                self.runtime.place(state.network)
                return state
        if base_model:
            return self._take_over(base_model)
        network = new_network(self.config.model, seed_of(self.config.seed, "new"))
        return State(self.config, self.runtime.place(network), ExemplarMemory(self.config.memory.budget))

    def _take_over(self, base_model: Path) -> State:
        """Take the first task's network from another run, with the memory that this method would have kept."""
        if self.method.one_task:
            raise UserError(f"{self.method.name} learns all classes at once.", "Remove --base-model.")
        base = load_bundle(base_model)
        first = self.stream[0]
        if len(base.task_sizes) > 1:
            problem = f"{base_model} was trained on {len(base.task_sizes)} tasks. A base model must have one."
            raise UserError(
                problem, "Train one: --set data.classes=(those of the first task) --set data.base_classes=0."
            )
        if base.config.model != self.config.model or base.classes != list(first.classes):
            raise UserError(
                f"{base_model} differs from this run's first task in its 'model' settings or classes.",
                "Train a base model with this recipe: --set data.classes=(those of the first task).",
            )
        if _photos_of(base.config) != _photos_of(self.config):  # its training photos may be test photos here
            raise UserError(
                f"{base_model} was trained on other photos.",
                "Train a base model with the same data.path, size, crop and holdout (then also the same seed).",
            )
        network, memory = self.runtime.place(base.network), ExemplarMemory(self.config.memory.budget)
        state = State(self.config, network, memory, base.classes, base.task_sizes)
        if self.method.uses_memory:
            photos = self._decode_new(first)
            keep_exemplars(state, self.runtime, first, photos)
            update_discriminant(state, self.method, first, photos, self.runtime)
        return state

    def _open_photos(self, state: State) -> None:
        """Decode the next task and the test set, so that unreadable classes are found before anything is written."""
        for task in self.stream[len(state.task_sizes) :][:1]:
            self.new_photos[task.number] = self._decode_new(task)
        self.test_photos = self.runtime.decode("decoding test photos", self.stream[-1].test, self.config.data.size)

    def _decode_new(self, task: Task) -> PixelCache:
        return self.runtime.decode("decoding training photos", task.train, self.config.data.size)

    @contextlib.contextmanager
    def _saved_meanwhile(self, state: State) -> Iterator[None]:
        """Save the model while the block runs, which must not change it."""
        if not is_first():
            yield
            return
        with ThreadPoolExecutor(1) as pool:
            saving = pool.submit(save_bundle, state, self.folder.model)
            yield
            with self.clock("write"):
                saving.result()
        remove_checkpoint(self.folder.path)

    def _measure(self, state: State, task: Task) -> tuple[list[Table], list[Example]]:
        assert self.test_photos is not None, "opened before the first task"
        with self.clock("evaluate"):
            photos = self.test_photos.of_classes(state.classes)
            rows = pick_examples(photos.records, state, every_class=task is self.stream[-1])
            tables = measure(state, self.method, self.runtime, photos, self.config.protocols, keep=rows)
            shown = next((i for i, protocol in enumerate(self.config.protocols) if protocol.map == "class"), 0)
            return tables, examples_of(state, photos, tables[shown], self.config.protocols[shown], rows)

    def _write(self, task: int, state: State, found: tuple[list[Table], list[Example]]) -> dict[str, Any]:
        """What was measured after a task."""
        tables, examples = found
        self.folder.record.write_examples(task, examples)
        self.folder.save_class_means(task, state.discriminant)
        self.folder.save_tables(task, tables)
        return self.folder.write_results(task)


def _photos_of(config: Config) -> tuple[object, ...]:
    """The settings that determine the training and test photos of the first task."""
    data = config.data
    return (
        Path(data.path).resolve(),
        data.format,
        data.size,
        data.crop,
        data.holdout,
        config.seed if data.holdout else None,
    )
