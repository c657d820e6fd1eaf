"""Runs that differ in the seed alone, as one: their mean. What each of them measured stays below `seeds`."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

from fdcnet.report.comparable import settings
from fdcnet.report.runs import Run

AVERAGED = ("tasks", "matrix", "average", "last", "forgetting")  # of a results.json
NOT_A_KIND = ("seed", "seed (first task)", "first task", "commit")  # of runs that differ in the seed alone
NO_MEAN = "best_threshold"  # the mean of several is one at which nobody has measured


def merge_seeds(runs: Sequence[Run]) -> list[Run]:
    """In the order of the first run of each kind. A seed that comes twice is a repetition: those stay apart."""
    kinds: dict[Hashable, list[Run]] = {}
    for run in runs:
        kinds.setdefault(_all_but_the_seed(run), []).append(run)
    merged: list[Run] = []
    for same in kinds.values():
        seeds = {run.main.get("seed") for run in same} - {None}
        merged += [_as_one(same)] if 1 < len(seeds) == len(same) else same
    return merged


def _all_but_the_seed(run: Run) -> Hashable:
    if not run.facts.get("config"):
        return id(run)
    told = {key: value for key, value in settings(run.facts).items() if key not in NOT_A_KIND}
    return run.label, repr(sorted(told.items()))


def _as_one(runs: Sequence[Run]) -> Run:
    """The photos, and all that is no number, are the first run's."""
    first, each = runs[0], [run.main for run in runs]
    results = each[0] | {part: _mean([one.get(part) for one in each]) for part in AVERAGED} | {"seeds": each}
    facts = first.facts | {"seeds": [run.facts for run in runs]}
    return replace(first, facts=facts, results=dict.fromkeys(first.results, results))


def _mean(values: Sequence[Any]) -> Any:
    """Of numbers, or of each number in equal structures; nothing where one of them has nothing."""
    if any(value is None for value in values):
        return None
    if isinstance(values[0], Mapping):
        found = {key: [value.get(key) for value in values] for key in values[0]}
        return {key: _mean(parts) for key, parts in found.items() if key != NO_MEAN or len(set(parts)) == 1}
    if isinstance(values[0], list):
        return [_mean(parts) for parts in zip(*values, strict=True)]
    return values[0] if len(set(values)) == 1 else mean(values)
