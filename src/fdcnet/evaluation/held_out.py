"""Evaluate a model of `fdcnet learn` on the photos that it holds out, and write the results as a run folder."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from fdcnet.config import to_dict
from fdcnet.data.cache import PixelCache
from fdcnet.evaluation.incremental import TaskScores, build_results, score_task
from fdcnet.evaluation.measure import examples_of, for_model, measure, pick_examples
from fdcnet.methods import find_method
from fdcnet.methods.base import State
from fdcnet.runtime.device import device_name
from fdcnet.runtime.listener import Listener
from fdcnet.runtime.runtime import Runtime
from fdcnet.store.bundle import load_bundle
from fdcnet.store.record import RunRecord
from fdcnet.store.versions import Version, after_tasks, versions

LESSON = ("added", "more", "seconds", "old_before", "old_after", "new_after")  # of learned.json


def evaluate_held_out(model: Path, folder: Path, device: str = "auto", listener: Listener | None = None) -> None:
    """Evaluate the model after each task if all those versions are kept, and otherwise the current version only."""
    state = load_bundle(model)
    runtime = Runtime.of(replace(state.config, device=device), None, listener)
    record = RunRecord.create(folder, _facts(model, state, device_name(runtime.device)))
    if state.held_out is not None:
        photos = _with_unique_names(state.held_out)
        with closing(runtime.listener):
            _evaluate(state, _after_each_task(model, state), photos, runtime, record)
    lessons = [version.learned.get("seconds") for version in versions(model)]
    known = [seconds for seconds in lessons if seconds]
    record.write_run(finished=record.run()["started"], seconds=sum(known) if len(known) == len(lessons) else None)


def _evaluate(
    state: State, earlier: Sequence[Version], photos: PixelCache, runtime: Runtime, record: RunRecord
) -> None:
    own_protocol, num_tasks = state.config.protocols[0], len(state.task_sizes)
    protocol = for_model(own_protocol, state)
    scores: list[TaskScores] = []
    for known in (*(load_bundle(version.path) for version in earlier), state):
        method, task = find_method(known.config.method)(), len(known.task_sizes)
        runtime.place(known.network)
        own = photos.of_classes(known.classes)
        rows = pick_examples(own.records, known, every_class=known is state)
        [table] = measure(known, method, runtime, own, [own_protocol], keep=rows)
        record.write_examples(task, examples_of(known, own, table, protocol, rows))
        sizes = known.task_sizes if earlier else [len(known.classes)]
        scores.append(score_task(table, protocol, sizes))
        file = record.folder / "predictions" / f"task-{len(scores)}.csv.gz"
        file.parent.mkdir(exist_ok=True)
        table.save(file)
    results = build_results(
        dataset="held-out photos",
        method=state.config.method,
        backbone=state.config.model.backbone,
        seed=state.config.seed,
        protocol=protocol,
        tasks=scores,
    )
    record.write_results(results if len(scores) == num_tasks else results | {"learned_in": num_tasks})


def _after_each_task(model: Path, state: State) -> list[Version]:
    """The versions after each earlier task; none of them if one is no longer kept."""
    kept = after_tasks(model)
    tasks = range(1, len(state.task_sizes))
    return [kept[task] for task in tasks] if all(task in kept for task in tasks) else []


def _with_unique_names(photos: PixelCache) -> PixelCache:
    """Photos of different lessons may share a file name."""
    named = enumerate(photos.records)
    return replace(photos, records=tuple(replace(r, path=Path(f"{i:05d}-{r.path.name}")) for i, r in named))


def _facts(model: Path, state: State, device: str) -> dict[str, Any]:
    names = iter(state.classes)
    tasks = [list(islice(names, size)) for size in state.task_sizes]
    return {
        "model": model.resolve().name,
        "config": to_dict(state.config),
        "class_order": state.classes,
        "tasks": tasks,
        "device": device,
        "seed": state.config.seed,
        "memory_images": len(state.memory),
        "data": {"num_test": len(state.held_out) if state.held_out is not None else 0},
        "lessons": [_lesson(version) for version in versions(model)],
    }


def _lesson(version: Version) -> dict[str, Any]:
    known = {key: version.learned[key] for key in LESSON if key in version.learned}
    facts = {key: getattr(version, key) for key in ("number", "current", "added", "box_training")}
    return known | facts | {"created": version.created.isoformat(), "num_classes": len(version.classes)}
