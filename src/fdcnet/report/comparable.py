"""Which runs may stand in one table: same data, same classes in the same order, same protocol. And what differs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fdcnet.errors import UserError
from fdcnet.report.runs import Run, finished

NOT_THE_MEASURE = ("threshold_source", "compensated")  # in a protocol: words, and what belongs to the method
SAID_ELSEWHERE = ("method", "device", "protocols", "data.path", "train.checkpoint_minutes")


def with_map(runs: Sequence[Run], map_: str | None) -> list[Run]:
    """Each run with the results of one protocol only: the first one, or the one with this map."""
    return [replace(run, results=_results(run, map_)) for run in runs]


def refuse_incomparable(runs: Sequence[Run]) -> None:
    first = next((run for run in runs if len(run.measured_tasks) > 1), runs[0])
    for run in runs:
        if len(run.measured_tasks) < run.num_tasks:
            raise UserError(
                f"{run.folder} has measured {len(run.measured_tasks)} of {run.num_tasks} tasks.",
                "Let it finish first ('fdcnet train --resume').",
            )
        whole = len(run.measured_tasks) == 1
        there = _facts(first, whole)
        for what, here in _facts(run, whole).items():
            if None not in (here, there[what]) and here != there[what]:
                raise UserError(
                    f"{run.label} and {first.label} cannot be compared: they have {what}.",
                    f"{run.folder}: {_told(here, there[what])}\n{first.folder}: {_told(there[what], here)}",
                )


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """The settings in which the runs differ, beside the method: dotted key -> a value for each run."""
    all_settings = [settings(run) for run in runs]
    keys = dict.fromkeys(key for known in all_settings for key in known)
    values = {key: ["–" if key not in known else str(known[key]) for known in all_settings] for key in keys}
    return {key: row for key, row in values.items() if len(set(row)) > 1}


def settings(run: Run) -> dict[str, Any]:
    """By dotted key, without the method and what has no part in the result."""
    leaves = _leaves(run.facts.get("config") or {})
    return {key: value for key, value in leaves if not key.startswith(SAID_ELSEWHERE)}


def _results(run: Run, map_: str | None) -> dict[str, dict[str, Any]]:
    own = {name: results for name, results in run.results.items() if finished(results)} or run.results
    maps = {name: str((results.get("protocol") or {}).get("map")) for name, results in own.items()}
    for name, found in maps.items():
        if map_ in (None, found):
            return {name: own[name]}
    if not maps:
        raise UserError(f"{run.folder} has no results yet.", "Let it finish its first task.")
    raise UserError(f"{run.folder} was not measured with the {map_} map.", f"There are: {', '.join(maps.values())}.")


def _facts(run: Run, whole: bool) -> dict[str, object]:
    """What must agree, by what to say if it does not; None where a run does not tell.

    `whole`: all classes at once may stand beside the same classes in tasks.
    """
    totals = [task.get("num_classes") for task in run.measured_tasks]
    return {
        "other data": run.main.get("dataset"),
        "other photos": (run.facts.get("data") or {}).get("fingerprint"),
        "another protocol": _protocol(run),
        "other tasks": totals[-1:] if whole else totals,
        "other classes": run.facts.get("class_order"),
        "another order of classes": _order(run),
    }


def _protocol(run: Run) -> dict[str, Any]:
    protocol = run.main.get("protocol") or {}
    return {key: value for key, value in protocol.items() if key not in NOT_THE_MEASURE}


def _order(run: Run) -> tuple[object, ...] | None:
    """For results without their run folder."""
    config = run.facts.get("config") or {}
    data = config.get("data") or {}
    if not data:
        return None
    drawn = data.get("order") == "seeded" or bool(data.get("holdout"))
    return data.get("order"), data.get("classes"), data.get("holdout"), config.get("seed") if drawn else None


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _told(value: object, other: object) -> str:
    """In a line; of two mappings only where they differ."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        value = ", ".join(f"{key} {value[key]}" for key in value if value[key] != other.get(key))
    text = str(value)
    return text if len(text) <= 120 else text[:119] + "…"
