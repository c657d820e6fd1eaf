"""Which runs can be compared, which settings differ, and the mean of runs that differ only in the seed."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from fdcnet.config import leaves
from fdcnet.errors import UserError
from fdcnet.report.runs import Run, finished

MAY_DIFFER = ("threshold_source", "compensated", "classifier")  # parts of a protocol
NOT_LISTED = ("method", "device", "protocols", "data.path", "train.checkpoint_minutes")  # settings
OF_FIRST_TASK = ("seed", "data.zoom", "data.colour", "train.", "weights.")
NOT_OF_FIRST_TASK = ("train.step_epochs", "train.step_lr", "train.checkpoint_minutes")
OF_SEED = ("seed", "seed (first task)", "first task", "commit")  # settings that may differ between seeds
AVERAGED = ("tasks", "matrix", "average", "last", "forgetting")  # parts of results.json
NOT_AVERAGED = "best_threshold"  # nothing was evaluated at the mean of several thresholds


def with_map(runs: Sequence[Run], map_: str | None) -> list[Run]:
    """Each run with the results of one protocol: the first, or the one with this map."""
    return [replace(run, results=_results(run, map_)) for run in runs]


def refuse_incomparable(runs: Sequence[Run]) -> None:
    first = next((run for run in runs if len(run.measured_tasks) > 1), runs[0])
    for run in runs:
        if len(run.measured_tasks) < run.num_tasks:
            raise UserError(
                f"{run.folder} has evaluated {len(run.measured_tasks)} of {run.num_tasks} tasks.",
                "Finish it first with 'fdcnet train --resume'.",
            )
        whole = len(run.measured_tasks) == 1
        there = _facts(first, whole)
        for what, here in _facts(run, whole).items():
            if None not in (here, there[what]) and here != there[what]:
                raise UserError(
                    f"{run.label} and {first.label} cannot be compared: different {what}.",
                    f"{run.folder}: {_short(here, there[what])}\n{first.folder}: {_short(there[what], here)}",
                )


def merge_seeds(runs: Sequence[Run]) -> list[Run]:
    """Replace runs that differ only in the seed by their mean. Runs that repeat a seed are not merged."""
    kinds: dict[Hashable, list[Run]] = {}
    for run in runs:
        kinds.setdefault(_all_but_the_seed(run), []).append(run)
    merged: list[Run] = []
    for same in kinds.values():
        seeds = {run.main.get("seed") for run in same} - {None}
        merged += [_merged(same)] if 1 < len(seeds) == len(same) else same
    return merged


def differing_settings(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Settings that differ between the runs, except the method: dotted key -> a value for each run."""
    known = [[settings(facts) for facts in run.facts.get("seeds") or [run.facts]] for run in runs]
    keys = dict.fromkeys(key for seeds in known for own in seeds for key in own)
    rows = {key: [_listed(own.get(key, "–") for own in seeds) for seeds in known] for key in keys}
    return {key: row for key, row in rows.items() if len(set(row)) > 1}


def settings(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that can change the result, by dotted key, and the commit. The method is left out."""
    if not facts.get("config"):
        return {}
    found = {key: value for key, value in leaves(facts.get("config") or {}) if not key.startswith(NOT_LISTED)}
    if "model.weights" in found:
        found["model.weights"] = Path(str(found["model.weights"])).name  # its folder does not matter
    found |= {f"{key} (first task)": value for key, value in first_task(facts).items()}
    commits = [session.get("commit") for session in (facts, *(facts.get("resumed") or []))]
    return found | {"first task": facts.get("base_model") or "its own", "commit": _listed(filter(None, commits))}


def first_task(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the base model that learned the first task, if they differ from those of the run."""
    own = dict(leaves(facts.get("config") or {}))
    base = {key: value for key, value in leaves(facts.get("base_config") or {}) if key.startswith(OF_FIRST_TASK)}
    return {key: value for key, value in base.items() if key not in NOT_OF_FIRST_TASK and value != own.get(key)}


def _results(run: Run, map_: str | None) -> dict[str, dict[str, Any]]:
    own = {name: results for name, results in run.results.items() if finished(results)} or run.results
    maps = {name: str((results.get("protocol") or {}).get("map")) for name, results in own.items()}
    for name, found in maps.items():
        if map_ in (None, found):
            return {name: own[name]}
    if not maps:
        raise UserError(f"{run.folder} has no results yet.", "Wait until its first task is finished.")
    raise UserError(
        f"{run.folder} was not evaluated with the {map_} map.", f"Available maps: {', '.join(maps.values())}."
    )


def _facts(run: Run, whole: bool) -> dict[str, object]:
    """What must be the same in all runs. None if it is unknown.

    `whole`: a run that learned all classes at once can be compared with one that learned them in tasks.
    """
    totals = [task.get("num_classes") for task in run.measured_tasks]
    return {
        "data": run.main.get("dataset"),
        "photos": (run.facts.get("data") or {}).get("fingerprint"),
        "protocol": _protocol(run),
        "tasks": totals[-1:] if whole else totals,
        "classes": run.facts.get("class_order"),
        "choice of classes or held-out photos": _choice(run),
    }


def _protocol(run: Run) -> dict[str, Any]:
    protocol = run.main.get("protocol") or {}
    return {key: value for key, value in protocol.items() if key not in MAY_DIFFER}


def _choice(run: Run) -> dict[str, Any] | None:
    """How classes and held-out photos were chosen, for results without a run folder."""
    config = run.facts.get("config") or {}
    data = config.get("data") or {}
    if not data:
        return None
    drawn = data.get("order") == "seeded" or bool(data.get("holdout"))
    return {key: data.get(key) for key in ("order", "classes", "holdout")} | {
        "seed": config.get("seed") if drawn else None
    }


def _all_but_the_seed(run: Run) -> Hashable:
    if not run.facts.get("config"):
        return id(run)
    own = {key: value for key, value in settings(run.facts).items() if key not in OF_SEED}
    return run.label, repr(sorted(own.items()))


def _merged(runs: Sequence[Run]) -> Run:
    """The mean of the results, with the results of each run under `seeds`. Photos and facts are the first run's."""
    first, each = runs[0], [run.main for run in runs]
    results = each[0] | {part: _mean([one.get(part) for one in each]) for part in AVERAGED} | {"seeds": each}
    facts = first.facts | {"seeds": [run.facts for run in runs]}
    return replace(first, facts=facts, results=dict.fromkeys(first.results, results))


def _mean(values: Sequence[Any]) -> Any:
    """The mean of numbers, or of each number in equal structures. None if one of them is None."""
    if any(value is None for value in values):
        return None
    if isinstance(values[0], Mapping):
        found = {key: [value.get(key) for value in values] for key in values[0]}
        return {key: _mean(parts) for key, parts in found.items() if key != NOT_AVERAGED or len(set(parts)) == 1}
    if isinstance(values[0], list):
        return [_mean(parts) for parts in zip(*values, strict=True)]
    return values[0] if len(set(values)) == 1 else mean(values)


def _listed(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def _short(value: object, other: object) -> str:
    """One line. Of two mappings, only the keys whose values differ."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        value = ", ".join(f"{key} {value[key]}" for key in value if value[key] != other.get(key))
    text = str(value)
    return text if len(text) <= 120 else text[:119] + "…"
