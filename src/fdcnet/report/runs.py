"""Run folders and results files, read once, each with a label and a line style."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fdcnet.errors import UserError
from fdcnet.evaluation.table import Table
from fdcnet.report.charts import swatch
from fdcnet.report.tables import group_sizes, measured
from fdcnet.store.record import SCHEMA, RunRecord, read_mapping

CLASSIFIERS = {"head": "classifier head", "lda": "LDA"}


@dataclass(frozen=True, eq=False)
class Run:
    label: str
    style: int  # index of colour, dash and marker
    folder: Path
    facts: dict[str, Any]  # run.json
    metrics: list[dict[str, Any]]
    results: dict[str, dict[str, Any]]
    examples: dict[int, list[dict[str, Any]]]

    @property
    def main(self) -> dict[str, Any]:
        """The results under the first protocol; empty if nothing has been evaluated yet."""
        return next(iter(self.results.values()), {})

    @property
    def seeds(self) -> list[dict[str, Any]]:
        """The results of each seed, if this is the mean of several."""
        return self.main.get("seeds") or [self.main]

    @property
    def measured_tasks(self) -> list[dict[str, Any]]:
        return self.main.get("tasks") or []

    @property
    def last_examples(self) -> list[dict[str, Any]]:
        """The example photos after the last task."""
        return self.examples.get(max(self.examples, default=0), [])

    @property
    def swatch(self) -> Markup:
        return swatch(self.style)

    @cached_property
    def table(self) -> Table | None:
        """The predictions after the last evaluated task; None if their file is missing or damaged."""
        try:
            return Table.load(self.folder / "predictions" / f"task-{len(self.measured_tasks)}.csv.gz")
        except UserError:
            return None

    @property
    def protocol(self) -> dict[str, Any]:
        return self.main.get("protocol") or {}

    @property
    def classes(self) -> list[str]:
        return self.facts.get("class_order") or []

    @property
    def is_complete(self) -> bool:
        """Whether all tasks were evaluated, or all classes once after the last task."""
        return "learned_in" in self.main or len(self.measured_tasks) == self.num_tasks

    @property
    def num_tasks(self) -> int:
        return max(len(self.facts.get("tasks") or []), len(self.measured_tasks))

    @property
    def num_classes(self) -> int:
        return max(len(self.classes), sum(group_sizes(self.main)))

    @property
    def backbone(self) -> str | None:
        return self.main.get("backbone") or ((self.facts.get("config") or {}).get("model") or {}).get("backbone")

    @property
    def data_name(self) -> str | None:
        return (self.facts.get("data") or {}).get("name") or self.main.get("dataset")


@contextlib.contextmanager
def refusing_altered_files(paths: Sequence[Path]) -> Iterator[None]:
    """Inside, an error means that the files of a run are not as fdcnet wrote them."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        names, reason = ", ".join(map(str, paths)), f"{type(error).__name__}: {error}"[:200]
        raise UserError(
            f"Cannot make sense of {names} ({reason}).", "Restore the JSON files of the run, or train again."
        ) from error


def load(paths: Sequence[Path]) -> list[Run]:
    """Open run folders or results files. Each is named by its method, and by its file if two share a method."""
    return distinct(opened(paths))


def opened(paths: Sequence[Path]) -> list[Run]:
    return [_from_file(path) if path.is_file() else _from_folder(path) for path in map(_results_alone, paths)]


def distinct(runs: Sequence[Run]) -> list[Run]:
    """Give each run a unique label and style. A mean over seeds is labelled with their number."""
    names = [run.label for run in runs]
    for part in (lambda i: f" ({runs[i].folder.resolve().stem})", lambda i: f" #{i + 1}"):
        shared = {name for name, number in Counter(names).items() if number > 1}
        names = [name + part(i) if name in shared else name for i, name in enumerate(names)]
    seeds = [f", {len(run.main['seeds'])} seeds" if "seeds" in run.main else "" for run in runs]
    return [replace(run, label=names[i] + seeds[i], style=i) for i, run in enumerate(runs)]


def _results_alone(path: Path) -> Path:
    """`fdcnet evaluate` writes a folder with results but no run."""
    results = path / "results.json"
    return results if results.is_file() and not (path / "run.json").exists() else path


def _from_folder(folder: Path) -> Run:
    record = RunRecord.open(folder)
    facts = record.run()
    label = str(facts.get("model") or (facts.get("config") or {}).get("method") or "run")
    return Run(label, 0, folder, facts, record.metrics(), record.results(), record.examples())


def _from_file(file: Path) -> Run:
    results = read_mapping(file)
    if results.get("schema") != SCHEMA or not results.get("tasks"):
        raise UserError(f"{file} is not a results file.", "Name a results.json or a run folder.")
    label = f"{results.get('method')}{'' if finished(results) else ', network alone'}"
    return Run(label, 0, file, results.get("made") or {}, [], {file.stem: results}, {})


def all_results(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Every results file under the label of its run, and its protocol if the run has several."""
    named = {}
    for run in runs:
        maps = Counter(_map(results, file) for file, results in run.results.items())
        for file, results in run.results.items():
            kind = _map(results, file)
            kind = ", ".join([kind, *_details(results)]) if maps[kind] > 1 else kind
            named[f"{run.label}, {kind}" if len(run.results) > 1 else run.label] = results
    return named


def _map(results: dict[str, Any], file: str) -> str:
    protocol = results.get("protocol") or {}
    return f"{protocol.get('map') or file} map" + ("" if finished(results) else ", network alone")


def _details(results: dict[str, Any]) -> list[str]:
    """What else distinguishes protocols with the same map."""
    protocol = results.get("protocol") or {}
    classifier = CLASSIFIERS.get(protocol.get("classifier", ""))
    return [*([classifier] if classifier else []), f"threshold {protocol.get('threshold')}"]


def finished(results: dict[str, Any]) -> bool:
    """Whether these are results of the method, and not of its network without the method's corrections."""
    return bool((results.get("protocol") or {}).get("compensated", True))


def key_metrics(runs: Sequence[Run]) -> tuple[str, ...]:
    """The metrics of the headline. Without boxes in the test set, only classes can be evaluated."""
    tasks = [task for run in runs for task in run.measured_tasks]
    found = not tasks or any(measured(task, "gt_known") is not None for task in tasks)
    return ("top1_cls", "gt_known", "top1_loc") if found else ("top1_cls", "top5_cls")
