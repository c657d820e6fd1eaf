"""The task loop: learn the new classes, keep some exemplars, save the model, measure it, go on."""

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fdcnet.bundle import has_bundle, load_bundle, save_bundle
from fdcnet.config import Config, to_dict
from fdcnet.data.batches import Batches, balanced_indices, epoch_indices
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Dataset, Task
from fdcnet.data.stream import fingerprint, make_stream
from fdcnet.errors import UserError
from fdcnet.evaluation.incremental import build_results, score_task
from fdcnet.evaluation.table import Table
from fdcnet.memory import ExemplarMemory
from fdcnet.methods import find_method
from fdcnet.methods.base import Method, Phase, State
from fdcnet.models.network import new_network
from fdcnet.record import RunRecord, commit, environment, truncate_metrics
from fdcnet.training import optim
from fdcnet.training.checkpoint import FILE as CHECKPOINT
from fdcnet.training.checkpoint import Checkpoint, Position, read_checkpoint, remove_checkpoint, save_checkpoint
from fdcnet.training.checks import refuse_impossible
from fdcnet.training.device import describe
from fdcnet.training.exemplars import keep_exemplars, labels_of
from fdcnet.training.imprint import imprint
from fdcnet.training.listener import Listener
from fdcnet.training.loop import Epoch, run_phase
from fdcnet.training.measure import examples_of, measure, pick_examples
from fdcnet.training.runtime import Runtime
from fdcnet.training.seeding import seed_of, seed_torch


@dataclass(frozen=True)
class Photos:
    """What a task learns from: its own photos and the exemplars, in one row of pixels."""

    pixels: Tensor  # (N, S, S, 3) uint8
    labels: Tensor  # (N,)
    from_memory: Tensor  # (N,) bool


def train(
    config: Config,
    dataset: Dataset,
    run_dir: Path,
    *,
    resume: bool = False,
    base_model: Path | None = None,
    listener: Listener | None = None,
    cache_dir: Path | None = None,
) -> dict[str, Any]:
    """Learn the stream of tasks that the settings make of a data set; -> results under the first protocol.

    With `resume`, a run that was stopped goes on from its last checkpoint as if it had never been. With `base_model`,
    a bundle that has learned the first task, that task is taken from it: so methods can be compared from one start.
    """
    method = find_method(config.method)()
    sizes = (0, 0) if method.one_task else (config.data.base_classes, config.data.step_classes)
    stream = make_stream(dataset, *sizes, order=config.data.order, seed=config.seed, holdout=config.data.holdout)
    learner = Learner(config, method, stream, run_dir, Runtime.of(config, cache_dir, listener))
    return learner.run(dataset.name, resume, base_model)


class Learner:
    def __init__(self, config: Config, method: Method, stream: list[Task], run_dir: Path, runtime: Runtime) -> None:
        self.config, self.method, self.stream, self.runtime = config, method, stream, runtime
        self.listener, self.device = runtime.listener, runtime.device
        self.record = RunRecord(run_dir)
        self.model_dir = run_dir / "model"
        self.new_photos: dict[int, PixelCache] = {}  # by task: decoded ahead of it
        self.test_photos: PixelCache | None = None

    def run(self, dataset_name: str, resume: bool, base_model: Path | None) -> dict[str, Any]:
        started = time.monotonic()
        state = self._start(resume, base_model)
        self._open_photos(state)
        facts = self._facts(dataset_name) | {"base_model": str(base_model) if base_model else None}
        self.record = RunRecord.create(self.record.folder, facts, resume=resume)
        if base_model and not has_bundle(self.model_dir):
            save_bundle(state, self.model_dir)  # so that a resumed run needs nothing else
        try:
            return self._run_tasks(state, dataset_name, started)
        finally:
            self.listener.close()

    def _run_tasks(self, state: State, dataset_name: str, started: float) -> dict[str, Any]:
        before = self.record.run().get("seconds") or 0
        results: dict[str, Any] = {}
        for task in self.stream:
            if task.number > len(state.task_sizes):
                self.listener.task_started(task, len(self.stream))
                self._learn(state, task)
                save_bundle(state, self.model_dir)
                remove_checkpoint(self.record.folder)
            if not self._table_file(0, task.number).exists():
                self._measure(state, task)
                results = self._write_results(dataset_name, task.number)
                self.record.write_run(seconds=round(before + time.monotonic() - started, 1))
                self.listener.task_ended(task, results["tasks"][-1])
        if not results:  # killed after the last measurement
            results = self._write_results(dataset_name, len(self.stream))
        self.record.finish(before + time.monotonic() - started)
        return results

    def _start(self, resume: bool, base_model: Path | None) -> State:
        """From the saved model where a run goes on, else a new network. Nothing is written before this has worked."""
        refuse_impossible(self.config, self.method, self.stream)
        if resume and self.record.exists():
            self._refuse_other_run()
            base_model = base_model or self._recorded_base_model()
            if has_bundle(self.model_dir):
                state = load_bundle(self.model_dir)
                self.runtime.place(state.network)
                return state
        if base_model:
            return self._take_over(base_model)
        network = new_network(self.config.model, seed_of(self.config.seed, "new"))
        return State(self.config, self.runtime.place(network), ExemplarMemory(self.config.memory.budget))

    def _take_over(self, base_model: Path) -> State:
        """The first task as another run has learned it, with the memory that this method would have kept."""
        state = load_bundle(base_model)
        first = self.stream[0]
        if state.config.model != self.config.model or state.classes != list(first.classes):
            raise UserError(
                f"{base_model} has other settings under 'model' or other classes than this run's first task.",
                "Train a base model with this recipe: --set data.classes=(those of the first task).",
            )
        if _photos_of(state.config) != _photos_of(self.config):  # it may have learned what is a test photo here
            raise UserError(
                f"{base_model} has learned from other photos, or from others of them.",
                "Train a base model with the same data.path, size, crop and holdout (then also the same seed).",
            )
        self.runtime.place(state.network)
        state = replace(state, config=self.config, memory=ExemplarMemory(self.config.memory.budget))
        if self.method.uses_memory:
            photos = self._decode_new(first)
            keep_exemplars(state, self.runtime, first, photos)
        return state

    def _open_photos(self, state: State) -> None:
        """Those of the next task and the test: a class that cannot be read is found before anything is written."""
        for task in self.stream[len(state.task_sizes) :][:1]:
            self.new_photos[task.number] = self._decode_new(task)
        self.test_photos = self.runtime.decode("decoding test photos", self.stream[-1].test, self.config.data.size)

    def _learn(self, state: State, task: Task) -> None:
        seed_torch(self.config.seed, "grow", task.number)
        self.method.begin_task(state, task)
        new = self.new_photos.pop(task.number) if task.number in self.new_photos else self._decode_new(task)
        if self.config.train.imprint and task.num_old:
            imprint(state, self.runtime, task, new)
        photos = with_memory(new.pixels, labels_of(new, task), state.memory)

        checkpoint = read_checkpoint(self.record.folder)
        if checkpoint and checkpoint.position.task != task.number:
            checkpoint = None
        if checkpoint:
            state.network.load_state_dict(checkpoint.network)
        self._cut_metrics(checkpoint.position if checkpoint else Position(task.number, 0, 0))
        for index, phase in enumerate(self.method.phases(state, task)):
            if checkpoint and index < checkpoint.position.phase:
                continue
            resumed = checkpoint if checkpoint and index == checkpoint.position.phase else None
            self._run_phase(state, task, index, phase, photos, resumed)

        self.method.end_task(state, task)
        state.classes.extend(task.classes)
        state.task_sizes.append(len(task.classes))
        if self.method.uses_memory:
            keep_exemplars(state, self.runtime, task, new)

    def _run_phase(
        self, state: State, task: Task, index: int, phase: Phase, photos: Photos, resumed: Checkpoint | None
    ) -> None:
        config, lineage = self.config, state.network.lineage
        key = (config.seed, task.number, phase.name)
        last_save = time.monotonic()
        optimizer = optim.make_optimizer(phase)
        if resumed:
            optim.restore_momenta(optimizer, phase, resumed.momenta)

        def indices(epoch: int) -> list[Tensor]:
            if phase.data == "balanced":
                return balanced_indices(photos.labels, config.train.batch_size, (*key, epoch, "order"), drop_last=True)
            return epoch_indices(len(photos.labels), config.train.batch_size, (*key, epoch, "order"), drop_last=True)

        def batches(epoch: int) -> Batches:
            return Batches(
                photos.pixels,
                photos.labels,
                photos.from_memory,
                indices(epoch),
                crop=config.data.crop,
                augment=True,
                zoom=config.data.zoom,
                seed_key=(*key, epoch, "crop"),
                mean=lineage.mean,
                std=lineage.std,
                device=self.device,
            )

        def epoch_ended(epoch: Epoch) -> None:
            nonlocal last_save
            self._record_epoch(task, phase, epoch)
            self.listener.epoch_ended(epoch)
            if epoch.number == phase.epochs or time.monotonic() - last_save > 60 * config.train.checkpoint_minutes:
                position = Position(task.number, index, epoch.number)
                save_checkpoint(self.record.folder, position, state.network, optim.momenta(optimizer, phase))
                last_save = time.monotonic()

        first_epoch = resumed.position.epochs_done + 1 if resumed else 1
        epoch_sizes = [len(batch) for batch in indices(1)]
        self.listener.phase_started(phase.name, first_epoch, phase.epochs, sum(epoch_sizes))
        run_phase(
            phase,
            batches,
            len(epoch_sizes),
            self.runtime.autocast,
            optimizer,
            first_epoch,
            on_step=self.listener.step,
            on_epoch=epoch_ended,
        )
        self.listener.phase_ended()

    def _decode_new(self, task: Task) -> PixelCache:
        return self.runtime.decode("decoding training photos", task.train, self.config.data.size)

    def _measure(self, state: State, task: Task) -> None:
        assert self.test_photos is not None, "opened before the first task"
        photos = self.test_photos.of_classes(state.classes)
        rows = pick_examples(photos.records, state)
        tables = measure(state, self.method, self.runtime, photos, self.config.protocols, keep=rows)
        examples = examples_of(state, photos, tables[0], self.config.protocols[0], rows)
        self.record.write_examples(task.number, examples)
        for number in reversed(range(len(tables))):  # the first one last: where it is, all of them are
            file = self._table_file(number, task.number)
            file.parent.mkdir(exist_ok=True)
            tables[number].save(file)

    def _write_results(self, dataset_name: str, num_tasks: int) -> dict[str, Any]:
        """results.json of the tasks so far, from the tables on disk alone; -> that of the first protocol"""
        sizes = [len(task.classes) for task in self.stream[:num_tasks]]
        all_results = []
        for number, protocol in enumerate(self.config.protocols):
            tables = [Table.load(self._table_file(number, task)) for task in range(1, num_tasks + 1)]
            scores = [score_task(table, protocol, sizes[: t + 1]) for t, table in enumerate(tables)]
            results = build_results(
                dataset=dataset_name,
                method=self.method.name,
                backbone=self.config.model.backbone,
                seed=self.config.seed,
                protocol=protocol,
                tasks=scores,
            )
            results["made"] = {
                key: self.record.run()[key] for key in ("command", "commit", "device", "versions", "config")
            }
            self.record.write_results(results, f"results{self._suffix(number)}")
            all_results.append(results)
        return all_results[0]

    def _table_file(self, protocol: int, task: int) -> Path:
        return self.record.folder / "predictions" / f"task-{task}{self._suffix(protocol)}.csv.gz"

    def _suffix(self, protocol: int) -> str:
        return f"-{self.config.protocols[protocol].name}" if protocol else ""

    def _record_epoch(self, task: Task, phase: Phase, epoch: Epoch) -> None:
        peak = torch.cuda.max_memory_allocated(self.device) / 1e6 if self.device.type == "cuda" else None
        self.record.append_metrics(
            {
                "task": task.number,
                "phase": phase.name,
                "epoch": epoch.number,
                "epochs": phase.epochs,
                "losses": epoch.losses,
                "lr": epoch.lr,
                "images_per_second": round(epoch.images_per_second, 1),
                "gpu_memory_mb": peak,
            }
        )

    def _cut_metrics(self, position: Position) -> None:
        """Forget the epochs that will be run again."""
        names: list[str] = []  # the phases of this task, in the order in which they ran

        def keep(line: dict[str, Any]) -> bool:
            if line["task"] != position.task:
                return bool(line["task"] < position.task)
            if line["phase"] not in names:
                names.append(line["phase"])
            return (names.index(line["phase"]), line["epoch"]) <= (position.phase, position.epochs_done)

        truncate_metrics(self.record.folder, keep)

    def _refuse_other_run(self) -> None:
        recorded = self.record.run()
        if recorded.get("finished"):
            raise UserError(f"{self.record.folder} is complete: nothing is left to do.", "Choose another folder.")
        if recorded["config"] != to_dict(self.config):
            raise UserError(
                f"{self.record.folder} was started with other settings.",
                "Resume with the same recipe and flags ('fdcnet report' shows them), or choose another folder.",
            )
        if recorded["tasks"] != [list(task.classes) for task in self.stream]:
            raise UserError(
                f"The photos have other classes than when {self.record.folder} was started.",
                "Restore the class folders, or start a new run in another folder.",
            )
        checkpoint = read_checkpoint(self.record.folder)
        if checkpoint:
            begun = self.stream[checkpoint.position.task - 1]
            if recorded["data"]["task_fingerprints"][begun.number - 1] != fingerprint(begun.train):
                raise UserError(
                    f"The photos of task {begun.number} are not the same as when it was begun.",
                    f"Restore them, or start the task anew by removing {self.record.folder / CHECKPOINT}.",
                )

    def _recorded_base_model(self) -> Path | None:
        recorded = self.record.run().get("base_model")
        return Path(recorded) if recorded else None

    def _facts(self, dataset_name: str) -> dict[str, Any]:
        test = self.stream[-1].test
        return {
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "config": to_dict(self.config),
            "commit": commit(),
            **environment(describe(self.device)),
            "data": {
                "name": dataset_name,
                "fingerprint": fingerprint([*(record for task in self.stream for record in task.train), *test]),
                "task_fingerprints": [fingerprint(task.train) for task in self.stream],
                "num_train": sum(len(task.train) for task in self.stream),
                "num_test": len(test),
            },
            "class_order": [name for task in self.stream for name in task.classes],
            "tasks": [list(task.classes) for task in self.stream],
            "seed": self.config.seed,
            "memory_images": self.config.memory.budget if self.method.uses_memory else 0,
        }


def _photos_of(config: Config) -> tuple[object, ...]:
    """What decides which photos a first task learns from, and which it is tested on."""
    data = config.data
    return data.path, data.format, data.size, data.crop, data.holdout, config.seed if data.holdout else None


def with_memory(pixels: Tensor, labels: Tensor, memory: ExemplarMemory) -> Photos:
    if not len(memory):
        return Photos(pixels, labels, torch.zeros(len(labels), dtype=torch.bool))
    return Photos(
        torch.cat([pixels, memory.all_pixels().to(pixels.device)]),
        torch.cat([labels, memory.all_labels()]),
        torch.arange(len(labels) + len(memory)) >= len(labels),
    )
