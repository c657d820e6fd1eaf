"""Evaluate a saved model on test photos."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from fdcnet.config import Config, Protocol, from_dict, to_dict
from fdcnet.data.cache import default_cache_dir
from fdcnet.data.records import Record
from fdcnet.data.sources import open_dataset
from fdcnet.data.stream import make_stream
from fdcnet.errors import UserError, count
from fdcnet.evaluation.evaluator import SWEEP
from fdcnet.evaluation.incremental import build_results, score_task
from fdcnet.evaluation.measure import for_model, measure
from fdcnet.evaluation.table import Table
from fdcnet.methods import find_method
from fdcnet.methods.base import State
from fdcnet.runtime.listener import Listener
from fdcnet.runtime.progress import default_listener
from fdcnet.runtime.runtime import Runtime
from fdcnet.store.bundle import load_bundle
from fdcnet.store.photo_history import num_taught


def evaluate(
    model: str | Path,
    data: str | Path | None = None,
    *,
    protocol: Mapping[str, Any] | None = None,
    sweep: Sequence[float] = SWEEP,
    device: str = "auto",
    cache_dir: Path | None = None,
    progress: bool = True,
    listener: Listener | None = None,
) -> tuple[dict[str, Any], Table]:
    """Evaluate a model and return its results and a table with one row per photo.

    `data`: photos to evaluate on (default: the test set the model was trained with). `protocol`: changes to the model's
    own protocol. `progress`: show bars in a terminal or notebook, unless a `listener` is given.
    """
    state = load_bundle(Path(model))
    changes = dict(protocol or {})
    if "threshold" in changes:
        changes.setdefault("threshold_source", "given for this evaluation")
    changed = for_model(from_dict(Protocol, to_dict(state.config.protocols[0]) | changes), state)
    with closing(listener or default_listener(progress)) as shown:
        runtime = Runtime.of(replace(state.config, device=device), cache_dir or default_cache_dir(), shown)
        runtime.place(state.network)
        return _evaluate(state, changed, runtime, str(data) if data else None, sweep)


def _evaluate(
    state: State, protocol: Protocol, runtime: Runtime, data: str | None, sweep: Sequence[float]
) -> tuple[dict[str, Any], Table]:
    name, test = _test_photos(state.config, data, runtime.listener)
    known = set(state.classes)
    records = [record for record in test if record.label in known]
    if not records:
        raise UserError(
            f"None of the {len(test)} photos is of a class that the model knows.",
            f"It knows {len(known)} classes, such as {', '.join(state.classes[:3])}: name the folders like them.",
        )
    if foreign := len(test) - len(records):
        runtime.listener.note(f"Skipped {count(foreign, 'photo')} of classes the model does not know.")
    photos = runtime.decode("decoding photos", records, state.config.data.size)
    if data and (taught := num_taught(state, photos)):
        runtime.listener.note(
            f"{taught} of {len(photos)} photos were used in training; scores on them will be optimistic."
        )
    [table] = measure(state, find_method(state.config.method)(), runtime, photos, [protocol], sweep)
    results = build_results(
        dataset=name,
        method=state.config.method,
        backbone=state.config.model.backbone,
        seed=state.config.seed,
        protocol=protocol,
        tasks=[score_task(table, protocol, [len(state.classes)])],
    )
    return results | {"learned_in": len(state.task_sizes)}, table


def _test_photos(config: Config, data: str | None, listener: Listener) -> tuple[str, Sequence[Record]]:
    """Name and test photos of the data; the held-out photos if the model was trained with data.holdout."""
    source = replace(config.data, path=data, format="auto", classes=0) if data else config.data
    dataset = open_dataset(source)
    if not data and source.holdout:
        stream = make_stream(
            dataset, order=source.order, seed=config.seed, holdout=source.holdout, order_seed=source.order_seed
        )
        return dataset.name, stream[-1].test
    if not dataset.test:
        listener.note("There is no test set: evaluating on all photos.")
    return dataset.name, dataset.test or dataset.train
