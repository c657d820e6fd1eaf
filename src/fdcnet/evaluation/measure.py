"""Evaluate a model in memory: a table for each protocol, and example photos with their maps."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fdcnet import geometry
from fdcnet.config import ClassifierChoice, Protocol
from fdcnet.data.batches import normalise
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Record
from fdcnet.errors import UserError
from fdcnet.evaluation.evaluator import SWEEP, Answer, Forward, Target, evaluate, map_view, show
from fdcnet.evaluation.table import Table
from fdcnet.float64 import float64_device
from fdcnet.methods.base import Method, State
from fdcnet.runtime.distributed import is_shared, joined_objects, own_share
from fdcnet.runtime.runtime import Runtime
from fdcnet.store.record import Example

EXAMPLES_PER_TASK = 3
MANY = 1000  # classes; with more, fewer photos at a time, because each has the maps of all classes
EXAMPLES_AT_END = 240  # photos after the last task, shared by all classes
MOST_PER_CLASS = 6


def measure(
    state: State,
    method: Method,
    runtime: Runtime,
    photos: PixelCache,
    protocols: Sequence[Protocol],
    sweep: Sequence[float] = SWEEP,
    keep: Sequence[int] = (),
) -> list[Table]:
    """One table per protocol. `keep`: rows whose maps are kept. Several processes share the photos."""
    targets = targets_of(photos, state.classes)
    share = own_share(len(targets))
    tables = evaluate(
        forward_of(state, method, runtime, {protocol.compensated for protocol in protocols}),
        lambda rows: photos.gather(rows + share.start),
        targets[share.start : share.stop],
        [for_model(protocol, state) for protocol in protocols],
        crop=state.config.data.crop,
        batch_size=eval_batch_size(runtime.device, len(state.classes)),
        sweep=sweep,
        keep=[row - share.start for row in keep if row in share],
        progress=lambda done, total: runtime.listener.progress("measuring", done, total),
    )
    if not is_shared(len(targets)):
        return tables
    return [Table.joined(parts) for parts in zip(*joined_objects(tables), strict=True)]


def eval_batch_size(device: torch.device, num_classes: int) -> int:
    most = 256 if device.type == "cuda" else 32
    return max(1, most * MANY // max(num_classes, MANY))


def for_model(protocol: Protocol, state: State) -> Protocol:
    """Replace `auto` by the classifier that this model has."""
    if protocol.classifier == "lda" and state.discriminant is None:
        raise UserError(
            "This model has no closed-form classifier.",
            "Set classifier=head, or train a new model with a method that keeps exemplars.",
        )
    if protocol.classifier == "auto":
        return replace(protocol, classifier="lda" if state.discriminant else "head")
    return protocol


def forward_of(
    state: State, method: Method, runtime: Runtime, compensated: Collection[bool] = frozenset({True})
) -> Forward:
    """One forward pass for the outputs with and without compensation."""
    lineage = state.network.lineage
    classifiers: tuple[ClassifierChoice, ...] = ("head", "lda") if state.discriminant else ("head",)
    found_on = float64_device(runtime.device)  # where boxes are found

    def forward(crops: Tensor, want_maps: bool) -> dict[bool, Answer]:
        images = normalise(crops.to(runtime.device), lineage.mean, lineage.std)
        answers: dict[bool, Answer] = {}
        with runtime.inference():
            plain = state.network(images, maps=want_maps)
            for kind in compensated:
                outputs = method.finish(state, plain) if kind else plain
                scores = {name: state.class_scores(outputs, name).to(found_on) for name in classifiers}
                answers[kind] = Answer(scores, outputs.masks.to(found_on) if want_maps else None)
        return answers

    return forward


def targets_of(photos: PixelCache, classes: Sequence[str]) -> list[Target]:
    if not photos.records:
        return []
    label_of = {name: label for label, name in enumerate(classes)}
    unknown = next((record for record in photos.records if record.label not in label_of), None)
    if unknown:
        raise UserError(
            f"The model does not know the class '{unknown.label}' of {unknown.path}.",
            f"It knows {len(classes)} classes, such as {', '.join(classes[:3])}. Leave the others out.",
        )
    top = Path(os.path.commonpath([record.path.parent for record in photos.records]))
    return [
        Target(
            record.path.relative_to(top).as_posix(),
            label_of[record.label],
            (int(size[0]), int(size[1])),
            record.boxes_xyxy,
        )
        for record, size in zip(photos.records, photos.sizes, strict=True)
    ]


def pick_examples(records: Sequence[Record], state: State, every_class: bool = False) -> list[int]:
    """Rows of the photos to keep: the same few of each task after every task, and photos of every class at the end."""
    rows_of: dict[str, list[int]] = {}
    for row, record in enumerate(records):
        rows_of.setdefault(record.label, []).append(row)
    chosen, start = [], 0
    for size in state.task_sizes:
        known = [name for name in state.classes[start : start + size] if name in rows_of]
        chosen += [rows_of[name][0] for name in _spread(known, EXAMPLES_PER_TASK)]
        start += size
    if every_class and rows_of:
        shown = _spread([name for name in state.classes if name in rows_of], EXAMPLES_AT_END)
        per_class = min(MOST_PER_CLASS, EXAMPLES_AT_END // len(shown))
        chosen += [row for name in shown for row in rows_of[name][:per_class]]
    return list(dict.fromkeys(chosen))


def _spread(names: Sequence[str], most: int) -> list[str]:
    return [names[i] for i in sorted({round(i) for i in np.linspace(0, len(names) - 1, most)})] if names else []


def examples_of(
    state: State, photos: PixelCache, table: Table, protocol: Protocol, rows: Sequence[int]
) -> list[Example]:
    """Photo, map and facts of each row, in the frame of the protocol."""
    task_of = dict(zip(state.classes, state.task_numbers, strict=True))
    crop, size = state.config.data.crop, state.config.data.size
    examples: dict[str, Example] = {}
    for row in rows:
        record = photos.records[row]
        image_size = (int(photos.sizes[row][0]), int(photos.sizes[row][1]))
        if protocol.frame == "crop":
            true_boxes = geometry.to_crop_frame(record.boxes_xyxy, image_size, size, crop)
        else:
            true_boxes = geometry.to_image_frame(record.boxes_xyxy, image_size, crop)
        shown = show(photos.gather(torch.tensor([row])), map_view(protocol), crop)[0]
        facts = {
            "label": record.label,
            "class_task": task_of[record.label],
            "predicted": state.classes[int(table.top5[row, 0])],
            "score": float(table.p_top1[row]),
            "box": table.box[row].tolist(),
            "true_boxes": np.asarray(true_boxes).tolist(),
            "iou": float(table.iou[row]),
        }
        name = f"{record.label}-{record.path.stem}"
        name = f"{record.label}-{table.path[row]}" if name in examples else name  # in another folder, or another format
        examples[name] = (name, shown.cpu().numpy(), table.maps[row], facts)
    return list(examples.values())
