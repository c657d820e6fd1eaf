"""A model against test photos: tables for every protocol, and a few photos with their maps to look at."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fdcnet import geometry
from fdcnet.config import Protocol
from fdcnet.data.batches import normalise
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Record
from fdcnet.errors import UserError
from fdcnet.evaluation.evaluator import SWEEP, Answer, Forward, Target, evaluate, map_view, show
from fdcnet.evaluation.table import Table
from fdcnet.methods.base import Method, State
from fdcnet.runtime.runtime import Runtime
from fdcnet.store.record import Example

EXAMPLES_PER_TASK = 3


def measure(
    state: State,
    method: Method,
    runtime: Runtime,
    photos: PixelCache,
    protocols: Sequence[Protocol],
    sweep: Sequence[float] = SWEEP,
    keep: Sequence[int] = (),
) -> list[Table]:
    """One table per protocol; the maps of the rows in `keep` stay with them."""
    return evaluate(
        forward_of(state, method, runtime, {protocol.compensated for protocol in protocols}),
        photos.gather,
        targets_of(photos, state.classes),
        protocols,
        crop=state.config.data.crop,
        batch_size=state.config.train.batch_size,
        sweep=sweep,
        keep=keep,
        progress=lambda done, total: runtime.listener.progress("measuring", done, total),
    )


def forward_of(
    state: State, method: Method, runtime: Runtime, compensated: Collection[bool] = frozenset({True})
) -> Forward:
    """One pass of the network for the answers of either kind."""
    lineage = state.network.lineage

    @torch.inference_mode()
    def forward(crops: Tensor, want_maps: bool) -> dict[bool, Answer]:
        images = normalise(crops.to(runtime.device), lineage.mean, lineage.std)
        answers: dict[bool, Answer] = {}
        with runtime.autocast:
            plain = state.network(images, maps=want_maps)
            for kind in compensated:
                outputs = method.finish(state, plain) if kind else plain
                answers[kind] = state.class_scores(outputs), outputs.masks if want_maps else None
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


def pick_examples(records: Sequence[Record], state: State) -> list[int]:
    """The same few photos after every task: the first of some classes of each task, spread over its classes."""
    first_row: dict[str, int] = {}
    for row, record in enumerate(records):
        first_row.setdefault(record.label, row)
    rows, start = [], 0
    for size in state.task_sizes:
        known = [name for name in state.classes[start : start + size] if name in first_row]
        spread = sorted({round(i) for i in np.linspace(0, len(known) - 1, EXAMPLES_PER_TASK)}) if known else []
        rows += [first_row[known[i]] for i in spread]
        start += size
    return rows


def examples_of(
    state: State, photos: PixelCache, table: Table, protocol: Protocol, rows: Sequence[int]
) -> list[Example]:
    """Photo, map and facts of each row, in the frame of the protocol."""
    task_of = dict(zip(state.classes, state.task_numbers, strict=True))
    crop, size = state.config.data.crop, state.config.data.size
    examples: list[Example] = []
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
        examples.append((f"{record.label}-{record.path.stem}", shown.cpu().numpy(), table.maps[row], facts))
    return examples
