"""Runs that differ in the seed alone, as one: their mean, and how far they scatter."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from fdcnet.report.comparable import settings
from fdcnet.report.runs import Run
from fdcnet.report.tables import SUMMARIES

AVERAGED = ("tasks", "matrix", *SUMMARIES)  # of a results.json


def merge_seeds(runs: Sequence[Run]) -> list[Run]:
    """In the order of the first run of each kind. A seed that comes twice is a repetition: those stay apart."""
    kinds: dict[Hashable, list[Run]] = {}
    for run in runs:
        kinds.setdefault(_all_but_the_seed(run), []).append(run)
    merged: list[Run] = []
    for same in kinds.values():
        seeds = {run.main.get("seed") for run in same}
        merged += [_as_one(same)] if 1 < len(seeds) == len(same) else same
    return merged


def _all_but_the_seed(run: Run) -> Hashable:
    told = {key: value for key, value in settings(run).items() if key != "seed"}
    return (run.label, repr(sorted(told.items()))) if told else id(run)


def _as_one(runs: Sequence[Run]) -> Run:
    """The photos, and all that is no number, are the first run's."""
    each = [run.main for run in runs]
    results = dict(each[0])
    results |= {part: _mean([of_one.get(part) for of_one in each]) for part in AVERAGED}
    results["spread"] = {part: _spread([of_one.get(part) or {} for of_one in each]) for part in SUMMARIES}
    first, name = runs[0], next(iter(runs[0].results))
    seeds = ", ".join(str(of_one.get("seed")) for of_one in each)
    facts = first.facts | {"config": first.facts["config"] | {"seed": seeds}}
    return replace(first, label=f"{first.label} ({len(runs)} seeds)", facts=facts, results={name: results})


def _mean(values: Sequence[Any]) -> Any:
    """Of numbers, or of each number in equal structures; nothing where one of them has nothing."""
    first = values[0]
    if any(value is None for value in values):
        return None
    if isinstance(first, Mapping):
        return {key: _mean([value.get(key) for value in values]) for key in first}
    if isinstance(first, list):
        return [_mean(parts) for parts in zip(*values, strict=True)]
    return first if len(set(values)) == 1 else mean(values)


def _spread(values: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    found = {metric: [value.get(metric) for value in values] for metric in values[0]}
    return {metric: None if None in numbers else stdev(numbers) for metric, numbers in found.items()}  # type: ignore[type-var]
