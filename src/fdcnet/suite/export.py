"""From a run folder to the results that are kept: one JSON file per protocol, and one table of photos."""

from pathlib import Path
from typing import Any

from fdcnet.config import Config, from_dict, leaves, protocol_names, to_dict
from fdcnet.evaluation.table import Table
from fdcnet.files import creating
from fdcnet.methods import find_method
from fdcnet.store.bundle import settings_as_written
from fdcnet.store.record import RunRecord, read_mapping, write_json
from fdcnet.suite.drift import FILE as DRIFT
from fdcnet.suite.drift import measured_drift
from fdcnet.suite.photos import FILE, collect
from fdcnet.training.run import with_resolved_protocols

LOCAL = ("data.path", "model.weights", "device", "train.checkpoint_minutes")  # settings that differ between machines


def export_run(run_dir: Path, target: Path) -> None:
    """Write the results of a finished run to the folder `target`, whole or not at all."""
    record = RunRecord.open(run_dir)
    facts = record.run()
    names = protocol_names(from_dict(Config, facts["config"]).protocols)
    num_tasks = len(facts["tasks"])
    tables = {
        name: [Table.load(run_dir / "predictions" / f"task-{t}{suffix}.csv.gz") for t in range(1, num_tasks + 1)]
        for name, suffix in zip(names, _suffixes(names), strict=True)
    }
    photos, columns = collect(tables)
    results = record.results()
    with creating(target, replace=True) as folder:
        photos.save(folder / FILE)
        for name, suffix in zip(names, _suffixes(names), strict=True):
            made = results[f"results{suffix}"]["made"] | {"data": facts["data"]}
            own = results[f"results{suffix}"] | {"photos": columns[name], "made": _without_folders(made)}
            write_json(folder / f"{name}.json", own)
        if moved := measured_drift(run_dir):
            write_json(folder / DRIFT, moved)


def is_exported(target: Path) -> bool:
    return (target / FILE).is_file()


def exported_config(target: Path) -> dict[str, Any]:
    """The settings of an exported run."""
    config: dict[str, Any] = exported_results(target)[0]["made"]["config"]
    return config


def exported_results(target: Path) -> list[dict[str, Any]]:
    """The results under each protocol."""
    return [read_mapping(file) for file in sorted(target.glob("*.json")) if file.name != DRIFT]


def differences(recorded: dict[str, Any], planned: Config) -> list[str]:
    """`key was A, is B` for each setting that differs, except those of the machine. What did not exist then was off."""
    now = _comparable(with_resolved_protocols(planned, find_method(planned.method)))
    then = _comparable(from_dict(Config, settings_as_written(recorded)))
    return [f"{key} was {then[key]}, is {now.get(key)}" for key in then if then[key] != now.get(key)]


def _comparable(config: Config) -> dict[str, Any]:
    return {key: value for key, value in leaves(to_dict(config)) if key not in LOCAL}


def _suffixes(names: list[str]) -> list[str]:
    """The first protocol has no suffix in a run folder."""
    return ["", *(f"-{name}" for name in names[1:])]


def _without_folders(value: Any) -> Any:
    """Absolute paths are those of somebody's machine: only the last part is kept."""
    if isinstance(value, dict):
        return {key: _without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_folders(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
