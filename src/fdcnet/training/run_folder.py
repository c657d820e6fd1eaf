"""The files of a run beside its model: facts, epochs, tables and results. Also checks whether a run may be resumed."""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from fdcnet.config import Config, Protocol, from_dict, leaves, protocol_names, to_dict
from fdcnet.data.records import Task
from fdcnet.data.stream import fingerprint, task_bounds
from fdcnet.errors import UserError
from fdcnet.evaluation.incremental import TaskScores, build_results, rounded, score_task
from fdcnet.evaluation.table import Table, Texts, write_compressed
from fdcnet.files import remove_leftovers, write_bytes
from fdcnet.methods.base import Method, Phase, State
from fdcnet.models.discriminant import Discriminant
from fdcnet.runtime.clock import Clock
from fdcnet.runtime.listener import Epoch
from fdcnet.store.bundle import has_bundle, read_description, settings_as_written
from fdcnet.store.record import RunRecord, commit, environment, truncate_metrics
from fdcnet.training import checkpoint
from fdcnet.training.checkpoint import Checkpoint, Position
from fdcnet.training.journal import CheckpointJournal
from fdcnet.training.loop import Sums
from fdcnet.training.stop import StopRequest, deferred_signals

# facts that are copied into each result
MADE = (
    *("command", "commit", "device", "versions", "config", "base_model", "base_config", "resumed"),
    *("seconds", "seconds_by_phase", "peak_memory_mb"),
)
PHASES = ("decode", "train", "herd", "fit", "evaluate", "write")


class RunFolder(CheckpointJournal):
    def __init__(
        self, path: Path, config: Config, method: Method, stream: Sequence[Task], dataset_name: str, clock: Clock
    ) -> None:
        super().__init__(path, config.train.checkpoint_minutes)
        self.config, self.method, self.stream = config, method, stream
        self.dataset_name, self.clock = dataset_name, clock
        self.record = RunRecord(path)
        self.model = path / "model"
        self.started = time.monotonic()
        self.before: dict[str, Any] = {}  # costs of earlier sessions of a resumed run
        self.scores: dict[tuple[int, int], TaskScores] = {}  # by protocol and task; reading a table takes as long

    def open(self, resume: bool, device: str, base_model: Path | None, encoded: bool = False) -> None:
        """Create the record, or continue it. `encoded`: photos are stored as JPEG."""
        facts = self._facts(device) | {"cache": "jpeg" if encoded else "raw"}
        if base_model and not self.record.exists():
            facts |= {"base_model": str(base_model), "base_config": read_description(base_model)["config"]}
        self.record = RunRecord.create(self.path, facts, resume=resume)
        remove_leftovers(self.path, older_than=0, inside=True)  # of a killed session
        self.before = self.record.run()

    def seconds(self) -> float:
        """Training time so far, including earlier sessions of a resumed run."""
        return (self.before.get("seconds") or 0.0) + time.monotonic() - self.started

    def costs(self) -> dict[str, Any]:
        """Time and memory so far, including earlier sessions of a resumed run."""
        earlier, memory = self.before.get("seconds_by_phase") or {}, self.before.get("peak_memory_mb") or {}
        spent = {phase: earlier.get(phase, 0.0) + self.clock.seconds.get(phase, 0.0) for phase in PHASES}
        return {
            "seconds": round(self.seconds(), 1),
            "seconds_by_phase": {phase: round(seconds, 1) for phase, seconds in spent.items()},
            "peak_memory_mb": {kind: max(peak, memory.get(kind, 0)) for kind, peak in peak_memory().items()},
        }

    def base_model(self) -> Path | None:
        recorded = self.record.run().get("base_model")
        return Path(recorded) if recorded else None

    def refuse_other_run(self, base_model: Path | None) -> None:
        recorded = self.record.run()
        if recorded.get("finished"):
            raise self.record.is_complete()
        if other := _other_settings(_started_with(recorded["config"]), to_dict(self.config)):
            raise UserError(
                f"{self.path} was started with different settings: {', '.join(other)}.",
                "Resume with the same recipe and flags ('fdcnet report' shows them), or choose another folder.",
            )
        started_from = self.base_model()
        if base_model and (started_from is None or started_from.resolve() != base_model.resolve()):
            how = f"was started from {started_from}" if started_from else "was started without a base model"
            raise UserError(f"{self.path} {how}.", "Resume without --base-model.")
        if recorded["tasks"] != [list(task.classes) for task in self.stream]:
            raise UserError(
                f"The classes of the photos have changed since {self.path} was started.",
                "Restore the class folders, or start a new run in another folder.",
            )
        test = fingerprint(self.stream[-1].test)
        if recorded["data"].get("test_fingerprint", test) != test:
            raise UserError(
                f"The test photos have changed since {self.path} was started.",
                "Restore them, or start a new run in another folder, because its tasks could not be compared.",
            )
        saved = checkpoint.read_checkpoint(self.path)
        if saved:
            begun = self.stream[saved.position.task - 1]
            if recorded["data"]["task_fingerprints"][begun.number - 1] != fingerprint(begun.train):
                raise UserError(
                    f"The photos of task {begun.number} have changed since it was started.",
                    f"Restore them, or restart the task by deleting {self.path / checkpoint.FILE}.",
                )

    def resume(self, task: Task) -> Checkpoint | None:
        saved = super().resume(task)
        self._cut_metrics(saved.position if saved else Position(task.number, 0, 0))
        return saved

    def save(self, state: State, position: Position, momenta: Mapping[str, Tensor], sums: Sums) -> None:
        with self.clock("write"):
            super().save(state, position, momenta, sums)

    def record_epoch(self, task: int, phase: Phase, epoch: Epoch) -> None:
        self.record.append_metrics(
            {
                "task": task,
                "phase": phase.name,
                "epoch": epoch.number,
                "epochs": phase.epochs,
                "losses": epoch.losses,
                "unweighted": epoch.unweighted,
                "lr": epoch.lr,
                "images_per_second": round(epoch.images_per_second, 1),
                "seconds": round(epoch.seconds, 2),
                "parameters": sum(parameter.numel() for parameter in phase.parameters.values()),
                "gpu_memory_mb": torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_initialized() else None,
            }
        )

    def _cut_metrics(self, position: Position) -> None:
        """Remove the epochs that will be repeated."""
        names: list[str] = []  # the phases of this task in order

        def keep(line: dict[str, Any]) -> bool:
            if line["task"] != position.task:
                return bool(line["task"] < position.task)
            if line["phase"] not in names:
                names.append(line["phase"])
            return (names.index(line["phase"]), line["epoch"]) <= (position.phase, position.epochs_done)

        truncate_metrics(self.path, keep)

    def is_measured(self, task: int) -> bool:
        return self._table_file(0, task).exists()

    def save_tables(self, task: int, tables: Sequence[Table]) -> None:
        texts: Texts = {}
        first, *others = [self._table_file(number, task) for number in range(len(tables))]
        with self.clock("write"):
            first.parent.mkdir(exist_ok=True)
            with ThreadPoolExecutor() as pool:  # compressing takes most of the time, and no interpreter lock
                contents = (table.as_csv(texts) for table in tables[1:])
                list(pool.map(write_compressed, others, contents))
            tables[0].save(first)  # last: if it exists, all do
            for number, table in enumerate(tables):
                self.scores[number, task] = self._score(number, task, table)

    def save_class_means(self, task: int, discriminant: Discriminant | None) -> None:
        """The mean features of each class under the network of this task, as the classifier estimates them."""
        if discriminant:
            means = discriminant.sums / discriminant.counts[:, None]
            file = self.path / "features" / f"task-{task}.safetensors"
            write_bytes(file, save({"means": means.half().cpu().contiguous()}))

    def write_results(self, num_tasks: int) -> dict[str, Any]:
        """Write the results of the tasks so far. Returns those of the first protocol."""
        self.record.write_run(**self.costs())
        facts = self.record.run()
        all_results = []
        for number, protocol in enumerate(self.config.protocols):
            results = build_results(
                dataset=self.dataset_name,
                method=self.method.name,
                backbone=self.config.model.backbone,
                seed=self.config.seed,
                protocol=protocol,
                tasks=[self._scores_of(number, task) for task in range(1, num_tasks + 1)],
            )
            if self.method.one_task and 0 < self.config.data.base_classes < len(self.stream[0].classes):
                results["groups"] = self._groups(Table.load(self._table_file(number, num_tasks)), protocol)
            results["made"] = {key: facts[key] for key in MADE if key in facts}
            self.record.write_results(results, f"results{self._suffix(number)}")
            all_results.append(results)
        return all_results[0]

    def _scores_of(self, protocol: int, task: int) -> TaskScores:
        """In a resumed run, the scores of earlier sessions are computed from the tables on disk."""
        if (protocol, task) not in self.scores:
            table = Table.load(self._table_file(protocol, task))
            self.scores[protocol, task] = self._score(protocol, task, table)
        return self.scores[protocol, task]

    def _score(self, protocol: int, task: int, table: Table) -> TaskScores:
        sizes = [len(earlier.classes) for earlier in self.stream[:task]]
        return score_task(table, self.config.protocols[protocol], sizes)

    def _groups(self, table: Table, protocol: Protocol) -> list[dict[str, Any]]:
        """Scores of joint training on the classes of each task that other methods would learn one by one."""
        data, total = self.config.data, self.stream[-1].num_classes
        sizes = [last - first for first, last in task_bounds(total, data.base_classes, data.step_classes)]
        scores = score_task(table, protocol, sizes).groups
        return [{"num_classes": size, **rounded(group)} for size, group in zip(sizes, scores, strict=True)]

    def _table_file(self, protocol: int, task: int) -> Path:
        return self.path / "predictions" / f"task-{task}{self._suffix(protocol)}.csv.gz"

    def _suffix(self, protocol: int) -> str:
        return f"-{protocol_names(self.config.protocols)[protocol]}" if protocol else ""

    def _facts(self, device: str) -> dict[str, Any]:
        test = self.stream[-1].test
        return {
            "command": ["fdcnet" if Path(sys.argv[0]).stem == "__main__" else Path(sys.argv[0]).name, *sys.argv[1:]],
            "config": to_dict(self.config),
            "commit": commit(),
            **environment(device),
            "data": {
                "name": self.dataset_name,
                "fingerprint": fingerprint([*(record for task in self.stream for record in task.train), *test]),
                "task_fingerprints": [fingerprint(task.train) for task in self.stream],
                "test_fingerprint": fingerprint(test),
                "num_train": sum(len(task.train) for task in self.stream),
                "num_test": len(test),
            },
            "class_order": [name for task in self.stream for name in task.classes],
            "tasks": [list(task.classes) for task in self.stream],
            "seed": self.config.seed,
            "memory_images": self.config.memory.budget if self.method.uses_memory else 0,
        }


class ReadOnlyRunFolder(RunFolder):
    """The folder as the other processes of a run see it: the first one writes."""

    def open(self, resume: bool, device: str, base_model: Path | None, encoded: bool = False) -> None: ...

    def resume(self, task: Task) -> Checkpoint | None:
        return CheckpointJournal.resume(self, task)

    @contextlib.contextmanager
    def stopping(self) -> Iterator[StopRequest]:
        """Signals are left to the first process, which still needs this one for its last step."""
        with deferred_signals():
            yield StopRequest()

    def is_due(self) -> bool:
        return False

    def save(self, state: State, position: Position, momenta: Mapping[str, Tensor], sums: Sums) -> None: ...

    def record_epoch(self, task: int, phase: Phase, epoch: Epoch) -> None: ...


def _started_with(recorded: dict[str, Any]) -> dict[str, Any]:
    """All settings of a run, also those that were added after it started. It was then evaluated with the head."""
    written = settings_as_written(recorded)
    protocols = [{"classifier": "head"} | protocol for protocol in written["protocols"]]
    return to_dict(from_dict(Config, written | {"protocols": protocols}))


def peak_memory() -> dict[str, int]:
    """Peak memory of this process in megabytes."""
    peaks = {}
    if torch.cuda.is_initialized():
        peaks["gpu"] = round(torch.cuda.max_memory_allocated() / 1e6)
    with contextlib.suppress(ImportError):  # Windows
        import resource

        unit = 1 if sys.platform == "darwin" else 1024  # bytes
        peaks["host"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6)
    return peaks


def _other_settings(recorded: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """`key was A, is B` for each setting that affects training. Different paths to the same data are equal."""
    old, new = dict(leaves(recorded)), dict(leaves(given))
    for settings in (old, new):
        settings.pop("train.checkpoint_minutes", None)
        settings["data.path"] = str(Path(str(settings["data.path"])).resolve())
    keys = [key for key in old | new if old.get(key) != new.get(key)]
    return [f"{key} was {old.get(key)}, is {new.get(key)}" for key in keys]


def resume_point(run_dir: Path) -> str | None:
    """Where `resume` continues a run, in words. None if there is no run yet."""
    if not RunRecord(run_dir).exists():
        return None
    model = run_dir / "model"
    task = 1 + (len(read_description(model)["task_sizes"]) if has_bundle(model) else 0)
    position = checkpoint.read_position(run_dir)
    if position and position.task == task:
        return str(position)
    if task > 1 and not (run_dir / "predictions" / f"task-{task - 1}.csv.gz").exists():
        return f"the evaluation of task {task - 1}"
    return f"the start of task {task}" if task <= len(RunRecord(run_dir).run()["tasks"]) else "the results"
