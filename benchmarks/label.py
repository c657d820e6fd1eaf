"""How good the boxes of `fdcnet label` are, and whether its confidence finds the wrong ones.

    python benchmarks/label.py --cub CUB_200_2011 --pets oxford_pets --out results/label.json

Labels are used for learning, true boxes only for measuring. `--work DIR` keeps what was learned and boxed.
"""

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fdcnet
from fdcnet import geometry
from fdcnet.cli.console import Lines
from fdcnet.data.records import Record
from fdcnet.store.record import commit, write_json
from fdcnet.teaching.label import label

WORST = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cub", type=Path, required=True)
    parser.add_argument("--pets", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "fdcnet-label")
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    facts = {
        "command": "python benchmarks/label.py --cub CUB_200_2011 --pets oxford_pets --out results/label.json",
        "commit": commit(),
        "device": f"CPU, {os.cpu_count()} cores, shared with other programs; {torch.get_num_threads()} torch threads",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    sets = {"cub": (options.cub, 20, 30), "pets": (options.pets, 10, None)}
    results = {}
    for name, (source, num_classes, per_class) in sets.items():
        dataset = fdcnet.read_dataset(source, classes=num_classes)
        model = options.work / name / "out" / "model"
        results[name] = measure(first_photos(dataset.train, per_class), options.work / name, None, options.cache)
        results[f"{name}, test photos"] = measure(dataset.test, options.work / f"{name}-test", model, options.cache)
    write_json(options.out, facts | {"results": results})


def measure(records: Sequence[Record], folder: Path, model: Path | None, cache: Path | None) -> dict[str, Any]:
    """Label photos with the model that is learned from them, or with a model that has not seen them."""
    for record in records:
        place = folder / "photos" / record.label / record.path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.symlink_to(record.path)
    watch = Stopwatch()
    report = label(folder / "photos", folder / "out", model=model, device="cpu", cache_dir=cache, listener=watch)
    true_boxes = {f"{record.label}/{record.path.name}": record.boxes_xyxy for record in records}
    rows = [
        (photo.confidence, max_iou(photo.annotations[0].box_xyxy, true_boxes[photo.name]))
        for photo in report.photos
        if true_boxes[photo.name]
    ]
    return summarize(np.array(rows)) | {
        "classes": len(report.classes),
        "photos": len(report.photos),
        "cpu_seconds_per_photo_boxing": round(watch.cpu_seconds / max(watch.num_photos, 1), 3),
    }


class Stopwatch(Lines):
    """CPU time from the first boxed photo to the last. Wall time says nothing on a shared machine."""

    num_photos = 0
    cpu_seconds = 0.0

    def progress(self, what: str, done: int, total: int) -> None:
        super().progress(what, done, total)
        if what == "boxing" and done == 1:
            self.started = time.process_time()
        elif what == "boxing":
            self.num_photos, self.cpu_seconds = done - 1, time.process_time() - self.started


def first_photos(records: Sequence[Record], per_class: int | None) -> list[Record]:
    kept: dict[str, list[Record]] = {}
    for record in records:
        own = kept.setdefault(record.label, [])
        if per_class is None or len(own) < per_class:
            own.append(record)
    return [record for own in kept.values() for record in own]


def max_iou(box: Any, true_boxes: Any) -> float:
    return float(geometry.iou([box], true_boxes).max())


def summarize(rows: np.ndarray) -> dict[str, Any]:
    """rows: (N, 2), confidence and IoU with the true box."""
    confidence, iou = rows.T
    wrong = iou <= 0.5
    worst = np.argsort(confidence, kind="stable")[: round(WORST * len(rows))]
    return {
        "with_true_box": len(rows),
        "iou_above_0.5": round(100 * float((iou > 0.5).mean()), 1),
        "iou_above_0.7": round(100 * float((iou > 0.7).mean()), 1),
        "wrong_boxes": int(wrong.sum()),
        "wrong_boxes_in_worst_fifth": round(100 * float(wrong[worst].sum() / max(wrong.sum(), 1)), 1),
    }


if __name__ == "__main__":
    main()
