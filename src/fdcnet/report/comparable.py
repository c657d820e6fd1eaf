"""Which runs may stand in one table: same data, same classes in the same order, same protocol. And what differs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fdcnet.config import leaves
from fdcnet.errors import UserError
from fdcnet.report.runs import Run, finished

NOT_THE_MEASURE = ("threshold_source", "compensated")  # in a protocol: words, and what belongs to the method
SAID_ELSEWHERE = ("method", "device", "protocols", "data.path", "train.checkpoint_minutes")
OF_FIRST_TASK = ("seed", "data.zoom", "data.colour", "train.", "weights.")
NOT_OF_FIRST_TASK = ("train.step_epochs", "train.step_lr", "train.checkpoint_minutes")


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
    told = [[settings(facts) for facts in run.facts.get("seeds") or [run.facts]] for run in runs]
    keys = dict.fromkeys(key for seeds in told for known in seeds for key in known)
    rows = {key: [_listed(known.get(key, "–") for known in seeds) for seeds in told] for key in keys}
    return {key: row for key, row in rows.items() if len(set(row)) > 1}


def settings(facts: Mapping[str, Any]) -> dict[str, Any]:
    """By dotted key, without the method and what has no part in the result; and the commit."""
    if not facts.get("config"):
        return {}
    found = {key: value for key, value in leaves(facts.get("config") or {}) if not key.startswith(SAID_ELSEWHERE)}
    if "model.weights" in found:
        found["model.weights"] = Path(str(found["model.weights"])).name  # the same file may lie elsewhere
    found |= {f"{key} (first task)": value for key, value in first_task(facts).items()}
    commits = [sitting.get("commit") for sitting in (facts, *(facts.get("resumed") or []))]
    return found | {"first task": facts.get("base_model") or "its own", "commit": _listed(filter(None, commits))}


def first_task(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The settings under which a base model learned the first task, where the run has others."""
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
        "another choice of classes or held-out photos": _choice(run),
    }


def _protocol(run: Run) -> dict[str, Any]:
    protocol = run.main.get("protocol") or {}
    return {key: value for key, value in protocol.items() if key not in NOT_THE_MEASURE}


def _choice(run: Run) -> dict[str, Any] | None:
    """For results without their run folder."""
    config = run.facts.get("config") or {}
    data = config.get("data") or {}
    if not data:
        return None
    drawn = data.get("order") == "seeded" or bool(data.get("holdout"))
    return {key: data.get(key) for key in ("order", "classes", "holdout")} | {
        "seed": config.get("seed") if drawn else None
    }


def _listed(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def _told(value: object, other: object) -> str:
    """In a line; of two mappings only where they differ."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        value = ", ".join(f"{key} {value[key]}" for key in value if value[key] != other.get(key))
    text = str(value)
    return text if len(text) <= 120 else text[:119] + "…"
