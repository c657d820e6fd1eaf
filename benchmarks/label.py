"""How good the boxes of `fdcnet label` are, whether its confidence finds the wrong ones, and what checked boxes teach.

    python benchmarks/label.py --cub CUB_200_2011 --pets oxford_pets --imagenet ILSVRC --json results/label.json

The confidence was not chosen on ImageNet's photos. Labels are used for learning. True boxes measure, and five of each
class play the part of a person's corrections. `--work DIR` keeps what was learned and boxed. `--skip N` leaves out the
first N classes. Rows of other names are kept.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from rows import Row, made, merge

import fdcnet
from fdcnet import geometry
from fdcnet.cli.console import console
from fdcnet.data.records import Dataset, Record
from fdcnet.runtime.progress import Lines
from fdcnet.store.bundle import has_bundle
from fdcnet.teaching.label import LabelReport, label

WORST = 0.2
CORRECTED = 5  # photos per class
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cub", type=Path)
    parser.add_argument("--pets", type=Path)
    parser.add_argument("--imagenet", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "fdcnet-label")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--skip", type=int, default=0)
    options = parser.parse_args()
    for row in measured_rows(options):
        print(row, flush=True)
        merge(options.json, [row | {"seed": SEED} | made(torch.device("cpu"))])


def measured_rows(options: argparse.Namespace) -> Iterator[Row]:
    sets = {"cub": (options.cub, 20, 30), "pets": (options.pets, 10, None), "imagenet": (options.imagenet, 20, None)}
    for name, (source, num_classes, per_class) in sets.items():
        if source is not None:
            dataset = without_first(fdcnet.read_dataset(source), options.skip).first(num_classes)
            title = f"{name}, classes {options.skip + 1} to {options.skip + len(dataset.classes)}"
            folder, records = options.work / title, first_photos(dataset.train, per_class)
            if name == "imagenet":  # only its validation photos have boxes
                yield {"name": title} | measure([*records, *dataset.test], folder, None, options.cache)
                continue
            yield {"name": title} | measure(records, folder, None, options.cache)
            model, test = folder / "out" / "model", options.work / f"{title}, test"
            yield {"name": f"{title}, test photos"} | measure(dataset.test, test, model, options.cache)
            yield {"name": f"{title}, learn boxes"} | measure_learning(records, folder, options.cache)


def measure(records: Sequence[Record], folder: Path, model: Path | None, cache: Path | None) -> Row:
    """Label photos with the model that is learned from them, or with a model that has not seen them."""
    for record in records:
        place = folder / "photos" / record.label / record.path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.symlink_to(record.path.resolve())
    learns = model is None and not has_bundle(folder / "out" / "model")
    started, watch = time.process_time(), Stopwatch(console)
    report = label(
        folder / "photos",
        folder / "out",
        model=model,
        learn_options={"seed": SEED},
        device="cpu",
        cache_dir=cache,
        listener=watch,
    )
    facts: Row = {"classes": len(report.classes), "photos": len(report.photos)}
    if learns:
        facts["cpu_seconds_learning"] = round(watch.started - started)
    if watch.num_photos:
        facts["cpu_seconds_per_photo_boxing"] = round(watch.cpu_seconds / watch.num_photos, 3)
    return summarize(scored(report, records)) | facts


def measure_learning(records: Sequence[Record], folder: Path, cache: Path | None) -> Row:
    """Correct a few photos of each class, drawn at random, and measure the others before and after learning."""
    draw = np.random.default_rng(SEED).permutation(len(records))
    boxed = [records[i] for i in draw if records[i].boxes_xyxy]
    corrected = first_photos(boxed, CORRECTED)
    others = [record for record in boxed if record not in corrected]
    write_coco(folder / "corrections.json", corrected)
    before = label(folder / "photos", folder / "out", device="cpu")  # boxed already
    started = time.process_time()
    after = label(
        folder / "photos",
        folder / "taught",
        model=folder / "out" / "model",
        corrections=folder / "corrections.json",
        learn_boxes=True,
        device="cpu",
        cache_dir=cache,
    )
    return {
        "corrected_photos": len(corrected),
        "other_photos": len(others),
        "before": summarize(scored(before, others)),
        "after": summarize(scored(after, others)),
        "cpu_seconds": round(time.process_time() - started),  # learning, and boxing all photos again
    }


def write_coco(file: Path, records: Sequence[Record]) -> None:
    classes = sorted({record.label for record in records})
    images, annotations = [], []
    for number, record in enumerate(records, 1):
        images.append({"id": number, "file_name": photo_name(record)})
        for x0, y0, x1, y1 in record.boxes_xyxy:
            category = classes.index(record.label) + 1
            annotations.append({"image_id": number, "category_id": category, "bbox": [x0, y0, x1 - x0, y1 - y0]})
    categories = [{"id": number, "name": name} for number, name in enumerate(classes, 1)]
    file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))


def photo_name(record: Record) -> str:
    return f"{record.label}/{record.path.name}"


def scored(report: LabelReport, records: Sequence[Record]) -> np.ndarray:
    """Confidence, and IoU with the nearest true box, of photos with true boxes: (N, 2)"""
    photos = {photo.name: photo for photo in report.photos}
    pairs = [(photos[photo_name(record)], record.boxes_xyxy) for record in records if record.boxes_xyxy]
    overlap = geometry.iou
    return np.array([(p.confidence, float(overlap([p.annotations[0].box_xyxy], true).max())) for p, true in pairs])


class Stopwatch(Lines):
    """CPU time from the first boxed photo to the last. Wall time says nothing on a shared machine."""

    num_photos = 0
    started = cpu_seconds = 0.0

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


def without_first(dataset: Dataset, number: int) -> Dataset:
    classes = dataset.classes[number:]
    train, test = (tuple(r for r in part if r.label in classes) for part in (dataset.train, dataset.test))
    return Dataset(dataset.name, classes, train, test)


def summarize(rows: np.ndarray) -> Row:
    """rows: (N, 2), confidence and IoU with the true box."""
    confidence, iou = rows.T
    wrong = iou <= 0.5
    worst = np.argsort(confidence, kind="stable")[: round(WORST * len(rows))]
    num_wrong = max(int(wrong.sum()), 1)
    found = float(wrong[worst].sum() / num_wrong)
    return {
        "with_true_box": len(rows),
        "iou_above_0.5": round(100 * float((iou > 0.5).mean()), 1),
        "iou_above_0.7": round(100 * float((iou > 0.7).mean()), 1),
        "wrong_boxes": int(wrong.sum()),
        "wrong_boxes_in_worst_fifth": round(100 * found, 1),
        "standard_error": round(100 * (found * (1 - found) / num_wrong) ** 0.5, 1),  # of the line above, binomial
    }


if __name__ == "__main__":
    main()
