"""Which boxes are wrong, and how: a contact sheet of the photos with the worst boxes, and how many fail in which way.

    python benchmarks/failures.py MODEL --data CUB_200_2011 --sheet worst.jpg --json results/masks/failures.json

The box of the true class is compared with the true box of a test photo at the default threshold (GT-known). On the
sheet, predicted boxes are green and true boxes red and dashed; below are the class and the IoU.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rows import made, merge

import fdcnet
from fdcnet.config import Protocol
from fdcnet.data.cache import PixelCache, default_cache_dir
from fdcnet.evaluation.evaluator import map_view, show
from fdcnet.evaluation.measure import measure
from fdcnet.evaluation.table import Table
from fdcnet.inference.drawing import draw_label, overlay
from fdcnet.methods import find_method
from fdcnet.runtime.runtime import Runtime
from fdcnet.store.bundle import load_bundle

RIGHT = 0.5  # IoU
MOST = 0.8  # of a box inside the other one
COLUMNS, SIDE = 8, 224


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--photos", type=int, default=40, help="on the sheet")
    parser.add_argument("--sheet", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    state = load_bundle(options.model)
    runtime = Runtime.of(state.config)
    runtime.place(state.network)
    method, protocol = find_method(state.config.method)(), Protocol(classifier="head", crops=1)
    known = [record for record in fdcnet.read_dataset(options.data).test if record.label in state.classes]
    photos = PixelCache.build(known, state.config.data.size, default_cache_dir(), runtime.device)
    [table] = measure(state, method, runtime, photos, [protocol])
    worst = np.argsort(table.iou, kind="stable")[: options.photos].tolist()
    [shown] = measure(state, method, runtime, photos.rows(sorted(worst)), [protocol], keep=range(len(worst)))
    seen = [
        show(photos.gather(torch.tensor([row])), map_view(protocol), state.config.data.crop)[0].cpu().numpy()
        for row in sorted(worst)
    ]
    pictures = [draw(seen[i], shown, i, state.classes) for i in np.argsort(shown.iou, kind="stable").tolist()]
    options.sheet.parent.mkdir(parents=True, exist_ok=True)
    sheet_of(pictures).save(options.sheet, quality=85)
    row = {"name": f"wrong boxes, {state.config.model.backbone}, {state.config.method}"} | counts(table)
    print(row)
    if options.json:
        merge(options.json, [row | made(runtime.device)])


def counts(table: Table) -> dict[str, object]:
    """How many boxes are wrong in which way, and how many would be right at another threshold or in another region."""
    wrong = table.iou <= RIGHT
    kinds = Counter(map(kind_of, table.box[wrong], true_boxes(table)[wrong]))
    return {
        "photos": len(table),
        "wrong": int(wrong.sum()),
        "wrong_by_kind": dict(kinds.most_common()),
        "right_at_another_threshold": int((wrong & (table.iou_largest.max(axis=1) > RIGHT)).sum()),
        "right_in_another_region": int((wrong & (table.iou_any[:, at_default(table)] > RIGHT)).sum()),
        "iou_above_0.4": int((wrong & (table.iou > 0.4)).sum()),
    }


def at_default(table: Table) -> int:
    return table.thresholds.index(Protocol().threshold)


def true_boxes(table: Table) -> NDArray[np.float32]:
    assert table.true_box is not None, "a new table has the true boxes"
    return table.true_box


def kind_of(box: NDArray[np.float32], true_box: NDArray[np.float32]) -> str:
    low, high = np.maximum(box[:2], true_box[:2]), np.minimum(box[2:], true_box[2:])
    shared = float(np.prod(np.clip(high - low, 0, None)))
    inside, covered = shared / max(area(box), 1), shared / max(area(true_box), 1)
    if inside >= MOST:
        return "part of the object"
    if covered >= MOST:
        return "object and background"
    return "part of the object and background" if shared else "elsewhere"


def area(box: NDArray[np.float32]) -> float:
    return float(np.prod(box[2:] - box[:2]))


def draw(photo: NDArray[np.uint8], table: Table, row: int, classes: list[str]) -> Image.Image:
    drawn = overlay(photo, table.maps[row], table.box[row].tolist(), [true_boxes(table)[row].tolist()])
    draw_label(drawn, f"{classes[int(table.label[row])]} {table.iou[row]:.2f}", (0, SIDE))
    return drawn


def sheet_of(pictures: list[Image.Image]) -> Image.Image:
    lines = -(-len(pictures) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * SIDE, lines * SIDE), "white")
    for number, picture in enumerate(pictures):
        sheet.paste(picture.resize((SIDE, SIDE)), (number % COLUMNS * SIDE, number // COLUMNS * SIDE))
    return sheet


if __name__ == "__main__":
    main()
