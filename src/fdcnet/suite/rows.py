"""The rows of a table of results: runs that differ only in the seed or the class order, under one protocol."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdcnet.report.text import Mean
from fdcnet.suite.export import exported_results
from fdcnet.suite.photos import FILE, PhotoResults, right

Results = Mapping[str, Any]  # the content of a results file


@dataclass(frozen=True)
class ProtocolKey:
    """The part of a protocol that tells the tables of a suite apart."""

    map: str
    classifier: str  # lda: of runs that have none, the head
    threshold: float
    topk: int = 0
    map_views: int = 1

    @property
    def title(self) -> str:
        map_ = {"class": "True-class map", "topk-mean": "Class-averaged map"}.get(self.map, self.map)
        details = [*([f"top {self.topk}"] if self.topk else []), *(["one view"] if self.map_views == 1 else [])]
        map_ += f" ({', '.join(details)})" if details else ""
        classifier = {"head": "classifier head", "lda": "LDA"}[self.classifier]
        return f"{map_}, {classifier}, threshold {self.threshold:g}"


@dataclass(frozen=True, eq=False)
class Measured:
    """One run under all its protocols."""

    recipe: str
    variant: str  # runs with equal recipe and variant are repeats of each other
    repeat: tuple[int | None, int]  # class order, seed
    results: Sequence[Results]
    folder: Path | None = None

    @cached_property
    def photos(self) -> PhotoResults | None:
        return PhotoResults.load(self.folder / FILE) if self.folder else None

    def find(self, protocol: ProtocolKey, compensated: bool = True) -> Results | None:
        """The results under this protocol. `lda` falls back to the head where a method has no other classifier."""
        own = {protocol_key(one).classifier: one for one in self.results if _matches(one, protocol, compensated)}
        return own.get(protocol.classifier) or (own.get("head") if not self.has_lda else None)

    @property
    def has_lda(self) -> bool:
        return any(protocol_key(one).classifier == "lda" for one in self.results)

    @property
    def protocols(self) -> list[ProtocolKey]:
        return list(dict.fromkeys(map(protocol_key, self.results)))


@dataclass(frozen=True, eq=False)
class Row:
    """Repeats of one run, with or without the compensation of the method."""

    label: str
    recipe: str
    variant: str
    compensated: bool
    runs: Sequence[Measured]
    results: Sequence[Results]  # of each run

    @property
    def repeats(self) -> str:
        """3 seeds, 2 orders, seed 0"""
        orders, seeds = ({run.repeat[i] for run in self.runs} for i in range(2))
        if orders != {None}:
            return f"{len(orders)} orders" if len(orders) > 1 else f"order {next(iter(orders))}"
        return f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {next(iter(seeds))}"

    @property
    def commits(self) -> list[str]:
        """The commits of the runs, short; `-dirty` is kept."""
        found = [str(one.get("made", {}).get("commit") or "unknown") for one in self.results]
        return list(dict.fromkeys(name[:7] + ("-dirty" if name.endswith("-dirty") else "") for name in found))

    @property
    def class_counts(self) -> list[int]:
        """Classes learned after each task."""
        return [task["num_classes"] for task in self.results[0]["tasks"]]

    @property
    def at_once(self) -> bool:
        return len(self.class_counts) == 1

    def value(self, part: str, metric: str) -> Mean | float | None:
        """Mean of a summary, and its standard deviation if there are several repeats."""
        values = [one[part].get(metric) for one in self.results]
        if any(value is None for value in values):
            return None
        return Mean(mean(values), stdev(values)) if len(values) > 1 else float(values[0])

    def right(self, repeat: tuple[int | None, int], metric: str) -> "PhotoOutcomes | None":
        """Which photos are right after the last task in one of the repeats."""
        for run, results in zip(self.runs, self.results, strict=True):
            if run.repeat == repeat and run.photos is not None and "photos" in results:
                last = run.photos.select(run.photos.task == run.photos.task.max())
                order = np.argsort(last.path)
                outcome = right(last, results["photos"], metric, results["protocol"]["iou"])
                return PhotoOutcomes(tuple(last.path[i] for i in order), last.label[order], outcome[order])
        return None


@dataclass(frozen=True, eq=False)
class PhotoOutcomes:
    """Sorted by path."""

    path: tuple[str, ...]
    label: NDArray[np.int64]
    right: NDArray[np.bool_]


def read_run(folder: Path, recipe: str, variant: str) -> Measured:
    """An exported run. Its first protocol comes first."""
    files = exported_results(folder)
    asked = [_key(protocol) for protocol in files[0]["made"]["config"]["protocols"]]
    files.sort(key=lambda one: asked.index(_key(one["protocol"])))
    data = files[0]["made"]["config"]["data"]
    order = data.get("order_seed") if data.get("order") == "seeded" else None
    return Measured(recipe, variant, (order, files[0]["seed"]), files, folder)


def rows_of(runs: Sequence[Measured], protocol: ProtocolKey) -> list[Row]:
    """A row per group of repeats, followed by the same weights without compensation where that was measured."""
    groups: dict[tuple[str, str], list[Measured]] = {}
    for run in runs:
        groups.setdefault((run.recipe, run.variant), []).append(run)
    labels = short_labels(["-".join(filter(None, group)) for group in groups])
    return [row for label, own in zip(labels, groups.values(), strict=True) for row in _rows(label, own, protocol)]


def _rows(label: str, runs: Sequence[Measured], protocol: ProtocolKey) -> Iterator[Row]:
    head = " (head)" if protocol.classifier == "lda" and not runs[0].has_lda else ""
    for compensated, addition in ((True, ""), (False, ", network alone")):
        found = {run: results for run in runs if (results := run.find(protocol, compensated))}
        if found:
            name = f"{label}{addition}{head}"
            yield Row(name, runs[0].recipe, runs[0].variant, compensated, list(found), list(found.values()))


def short_labels(names: Sequence[str]) -> list[str]:
    """Names without the words that all of them start with."""
    words = [name.split("-") for name in names]
    common = 0
    while all(len(own) > common + 1 and own[common] == words[0][common] for own in words):
        common += 1
    return ["-".join(own[common:]) for own in words]


def protocol_key(results: Results) -> ProtocolKey:
    old = {"classifier": "head", "topk": 0, "map_views": 1}  # results of earlier versions lack these keys
    protocol = old | results["protocol"]
    return ProtocolKey(**{field.name: protocol[field.name] for field in fields(ProtocolKey)})


def _matches(results: Results, protocol: ProtocolKey, compensated: bool) -> bool:
    same = replace(protocol_key(results), classifier=protocol.classifier) == protocol
    return same and results["protocol"].get("compensated", True) == compensated


def _key(protocol: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(protocol.get(key) for key in ("map", "topk", "map_views", "classifier", "threshold", "compensated"))
