"""From a suite file to runs: recipes x settings x class orders x seeds, and the first tasks that they share."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from fdcnet import config as settings
from fdcnet.config import Config, Section, number
from fdcnet.errors import UserError
from fdcnet.files import parse_yaml
from fdcnet.methods import find_method
from fdcnet.methods.base import Method

ONLY_LATER = (  # settings without an effect on the first task
    *("method", "device", "protocols", "memory.", "lda.", "weights.kd_", "data.step_classes", "data.tasks"),
    *("train.step_epochs", "train.step_lr", "train.sampling", "train.imprint", "train.separate_softmax"),
    "train.checkpoint_minutes",
)
Values = dict[str, Any]
FIRST_TASK = ("data.tasks=1", "protocols=[{crops: 1}]")  # its own accuracy is measured by the runs that take it over


@dataclass(frozen=True)
class Entry(Section):
    """Runs of several recipes."""

    recipes: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    orders: tuple[int, ...] = ()
    """Seeds of shuffled class orders. None: the natural order."""
    set: dict = field(default_factory=dict)
    """Settings. A list stands for one run per value."""


@dataclass(frozen=True)
class TableSpec(Section):
    """Runs that are shown in one table."""

    name: str = ""
    title: str = ""
    about: str = ""
    """A paragraph above the table."""
    runs: tuple[Entry, ...] = ()
    protocols: tuple[dict, ...] = ()
    """Default: those of the suite."""
    compare: str = ""
    """Recipe of the row that is compared with every other one. Default: none."""


@dataclass(frozen=True)
class SuiteFile(Section):
    title: str = ""
    jobs: int = number(1, at_least=1)
    """Runs at the same time."""
    share_first_task: bool = True
    protocols: tuple[dict, ...] = ()
    """Default: those of the recipes."""
    set: dict = field(default_factory=dict)
    tables: tuple[TableSpec, ...] = ()


@dataclass(frozen=True)
class PlannedRun:
    name: str
    arguments: tuple[str, ...]  # of `fdcnet train`
    config: Config
    recipe: str = ""
    variant: str = ""  # what was set in addition, in short
    first_task: str | None = None  # the run whose first task it takes over


@dataclass(frozen=True)
class Suite:
    name: str
    title: str
    jobs: int
    tables: tuple[TableSpec, ...]
    runs: Mapping[str, PlannedRun]  # by name, the most important first
    first_tasks: Mapping[str, PlannedRun]
    rows: Mapping[str, Sequence[str]]  # the runs of each table, by its name


def read_suite(path: Path, overrides: Sequence[str] = (), data: str | None = None) -> Suite:
    """Plan all runs. `overrides` and `data` change the settings of every run."""
    content = read_file(path)
    runs: dict[str, PlannedRun] = {}
    rows: dict[str, list[str]] = {}
    for table in content.tables:
        for run in _runs_of(table, content, overrides, data):
            if run.name in runs and runs[run.name].config != run.config:
                raise UserError(f"{path} has two different runs '{run.name}'.", "Give one of them a different setting.")
            runs.setdefault(run.name, run)
            rows.setdefault(table.name, []).append(run.name)
    if not runs:
        raise UserError(f"{path} has no runs.", "Add tables with runs, as docs/experiments.md shows.")
    first_tasks = _first_tasks(runs) if content.share_first_task else {}
    return Suite(path.stem, content.title or path.stem, content.jobs, content.tables, runs, first_tasks, rows)


def read_file(path: Path) -> SuiteFile:
    if not path.is_file():
        raise UserError(f"There is no suite {path}.", "Name a YAML file, for instance one of those under suites/.")
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid YAML: {error}", "Correct the file.") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} does not hold a suite.", "A suite is a YAML mapping with 'tables'.")
    return settings.from_dict(SuiteFile, values)


def _runs_of(table: TableSpec, content: SuiteFile, overrides: Sequence[str], data: str | None) -> Iterator[PlannedRun]:
    for entry in table.runs:
        yield from _runs(entry, content.set, table.protocols or content.protocols, overrides, data)


def _runs(
    entry: Entry, common: Mapping[str, Any], protocols: Sequence[Values], overrides: Sequence[str], data: str | None
) -> Iterator[PlannedRun]:
    """Seeds change slowest: whatever is finished first can be compared."""
    for seed, order, recipe in itertools.product(entry.seeds, entry.orders or (None,), entry.recipes):
        for own in _combinations(entry.set):
            changes = {**common, **own}
            if order is not None:
                changes |= {"data.order": "seeded", "data.order_seed": order}
            sets = [f"{key}={_inline(value)}" for key, value in changes.items()]
            method = settings.load(recipe, [*sets, *overrides]).method
            if fitting := _fitting(protocols, method):
                sets.append(f"protocols={_inline(fitting)}")
            sets += overrides
            arguments = [*([data] if data else []), "-r", recipe, "--seed", str(seed)]
            arguments += [word for change in sets for word in ("--set", change)]
            stem, variant = Path(recipe).stem, "-".join(_short(key, value) for key, value in own.items())
            repeat = f"s{seed}" if order is None else f"o{order}-s{seed}"
            name = "-".join(filter(None, (stem, variant, repeat)))
            config = settings.load(recipe, sets, seed=seed, data={"path": data})
            yield PlannedRun(name, tuple(arguments), config, stem, variant)


def _short(key: str, value: Any) -> str:
    """A setting in the name of a run, without its section: `budget400`, `old_classes=exemplars`."""
    return key.split(".")[-1] + ("=" if isinstance(value, str) else "") + str(value)


def _combinations(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    listed = [value if isinstance(value, list) else [value] for value in values.values()]
    for chosen in itertools.product(*listed):
        yield dict(zip(values, chosen, strict=True))


def _fitting(protocols: Sequence[Values], method: str) -> list[Values]:
    """Protocols without compensation are left out for methods that have none."""
    compensates = find_method(method).finish is not Method.finish
    return [protocol for protocol in protocols if compensates or protocol.get("compensated", True)]


def _inline(value: Any) -> str:
    """One line of YAML."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).removesuffix("\n...\n").strip()


def _first_tasks(runs: dict[str, PlannedRun]) -> dict[str, PlannedRun]:
    """First tasks that several runs have in common, by name. Those runs are changed to take them over."""
    keys = {name: _first_task_of(run.config) for name, run in runs.items()}
    shared = {key for key, times in Counter(keys.values()).items() if key and times > 1}
    names: dict[str, str] = {}
    found: dict[str, PlannedRun] = {}
    for run, key in zip(list(runs.values()), keys.values(), strict=True):
        if key not in shared:
            continue
        if key not in names:
            model, data = run.config.model, run.config.data
            order = "" if data.order_seed is None else f"-o{data.order_seed}"
            name = f"first-task-{model.backbone}-{model.classifier}{order}-s{run.config.seed}"
            names[key] = name if name not in found else f"{name}-{len(found) + 1}"
            changes = [word for change in FIRST_TASK for word in ("--set", change)]
            arguments = (*run.arguments, "--method", "finetune", *changes)
            config = settings.changed(run.config, {"method": "finetune", **settings.parse_overrides(FIRST_TASK)})
            found[names[key]] = PlannedRun(names[key], arguments, config)
        runs[run.name] = replace(run, first_task=names[key])
    return found


def _first_task_of(config: Config) -> str:
    """The settings of the first task; empty for a method that trains it in a way of its own."""
    method = find_method(config.method)
    if method.one_task or method.closed_form:
        return ""
    sections = tuple(f"{name}." for name in config.sections)
    known = settings.leaves(settings.to_dict(config))
    return json.dumps({key: value for key, value in known if not key.startswith((*ONLY_LATER, *sections))})
