"""Are the boxes of `fdcnet label` good enough to train a detector? A Faster R-CNN learns from them and from true boxes.

    python benchmarks/detector.py CUB_200_2011 --model MODEL --json results/detector.json
    python benchmarks/detector.py CUB_200_2011 --boxes boxes.csv --json results/detector.json

The detector finds objects of any class, on MobileNetV1. Both are measured with the true boxes of the test photos. The
errors are those of a bootstrap over these photos; a difference compares both detectors on the same photos.
`--boxes` takes what `fdcnet label --csv` writes, `--model` boxes the training photos here, each as its own class.
Needs torchvision. `--tiny` checks the script itself with a few photos; its numbers mean nothing and are not written.
"""

import argparse
import csv
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from average_precision import LEVELS, average_precision, bootstrap, find_correct
from rows import Row, made, merge
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign, box_iou

import fdcnet
from fdcnet import geometry
from fdcnet.data.batches import cycled_indices, normalise
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import BoxXYXY, Record
from fdcnet.inference.localizer import Localizer
from fdcnet.models.weights import pretrained_backbone
from fdcnet.runtime.device import autocast_for, find_device
from fdcnet.teaching.label_boxes import box_photos
from fdcnet.teaching.label_photos import KnownPhoto

SIDE = 256  # pixels
WIDTH = 128  # of the feature pyramid
HEAD_WIDTH = 256
ANCHORS = ((48, 96), (144, 224))  # pixels, at strides 8 and 16
RATIOS = (0.5, 1.0, 2.0)
DECAY = 1e-4
PRETRAINED_RATE = 0.2  # of the learning rate
WARM_UP = 0.1  # of all steps
MEASURES = {"ap50": (0.5,), "ap75": (0.75,), "ap": LEVELS}
SAMPLES = 500  # of the bootstrap
PART = 1500  # photos that a process boxes at a time
TINY = 12  # photos


class Detections(NamedTuple):
    """Of all test photos, best score first."""

    photos: np.ndarray
    overlaps: np.ndarray  # IoU with the true box
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="data set with true boxes")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, help="model that knows the classes")
    source.add_argument("--boxes", type=Path, help="table of boxes that 'fdcnet label --csv' wrote")
    parser.add_argument("--weights", default="auto", help="of MobileNetV1: a file, or auto")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--train-tail", action="store_true", help="freeze the backbone but its tail, for a CPU")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--jobs", type=int, default=4, help="processes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tiny", action="store_true", help="a few photos and one epoch, to test the script")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.tiny:
        options.epochs, options.batch = 1, 4
    train, test = photos_of(options)
    truth = [record.boxes_xyxy[0] for record in train]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        runs = {"true": start(pool, truth, options)}
        ours = boxes_of_table(options.boxes, train) if options.boxes else boxes_of_model(pool, train, options)
        runs["our"] = start(pool, ours, options)
        found = {kind: [run.result() for run in own] for kind, own in runs.items()}
    overlaps = np.array([geometry.iou([a], [b])[0, 0] for a, b in zip(ours, truth, strict=True)])
    facts = {
        "train_photos": len(train),
        "test_photos": len(test),
        "settings": {key: getattr(options, key) for key in ("epochs", "batch", "rate", "train_tail", "seeds")},
        "our_boxes_iou_above_0.5": percent((overlaps > 0.5).mean()),
        "our_boxes_iou_above_0.7": percent((overlaps > 0.7).mean()),
    }
    for row in compare(found, len(test)):
        print(row, flush=True)
        if options.json and not options.tiny:
            merge(options.json, [row | facts | made(find_device(options.device))])


def photos_of(options: argparse.Namespace) -> tuple[list[Record], list[Record]]:
    dataset = fdcnet.read_dataset(options.data)
    train, test = ([record for record in part if record.boxes_xyxy] for part in (dataset.train, dataset.test))
    return (train[:TINY], test[:TINY]) if options.tiny else (train, test)


# --- our boxes ---


def boxes_of_model(pool: ProcessPoolExecutor, records: Sequence[Record], options: argparse.Namespace) -> list[BoxXYXY]:
    """In several processes: reading boxes off the maps is the slower part, and not the GPU's."""
    parts = [records[first : first + PART] for first in range(0, len(records), PART)]
    boxed = pool.map(box_part, repeat(options.model), parts, repeat(options.device))
    return [box for part in boxed for box in part]


def box_part(model: Path, records: Sequence[Record], device: str) -> list[BoxXYXY]:
    def stop(name: str, reason: str) -> None:
        raise SystemExit(f"{name} cannot be read: {reason}")

    photos = [KnownPhoto(record.path, str(record.path), (record.label,)) for record in records]
    return [photo.annotations[0].box_xyxy for photo in box_photos(Localizer.load(model, device), photos, stop)]


def boxes_of_table(table: Path, records: Sequence[Record]) -> list[BoxXYXY]:
    """Photos are found by folder and file name: they may have moved since."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = {Path(row["path"]).parts[-2:]: row for row in csv.DictReader(file)}
    if missing := [record.path for record in records if record.path.parts[-2:] not in rows]:
        raise SystemExit(f"{table} has no box for {len(missing)} training photos, such as {missing[0]}.")
    own = [rows[record.path.parts[-2:]] for record in records]
    return [(float(row["x0"]), float(row["y0"]), float(row["x1"]), float(row["y1"])) for row in own]


# --- the detector ---


class Pyramid(nn.Module):
    """MobileNetV1 whose two maps become a feature pyramid."""

    out_channels = WIDTH

    def __init__(self, weights: str, train_tail: bool) -> None:
        super().__init__()
        self.body = pretrained_backbone("mobilenet_v1", weights)
        self.body.shared.requires_grad_(not train_tail)
        self.merge = FeaturePyramidNetwork([self.body.shared_channels, self.body.tail_channels], WIDTH)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        with autocast_for(images.device, "auto"):
            shared, tail = self.body(images)
            maps = self.merge(OrderedDict(fine=shared, coarse=tail))
        return {name: features.float() for name, features in maps.items()}  # bfloat16 boxes are off by up to a pixel

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.body.eval()  # batch norm keeps the statistics of ImageNet, as usual for detectors
        return self


class AsTheyAre(nn.Module):
    """Photos that already have their size and are normalised."""

    def forward(self, images: Tensor, targets: Any = None) -> tuple[ImageList, Any]:
        return ImageList(images, [(SIDE, SIDE)] * len(images)), targets

    def postprocess(self, found: Any, *_: Any) -> Any:
        return found


def make_detector(weights: str, train_tail: bool) -> FasterRCNN:
    detector = FasterRCNN(
        Pyramid(weights, train_tail),
        rpn_anchor_generator=AnchorGenerator(ANCHORS, (RATIOS,) * len(ANCHORS)),
        rpn_pre_nms_top_n_train=500,
        rpn_pre_nms_top_n_test=500,
        rpn_post_nms_top_n_train=200,
        rpn_post_nms_top_n_test=100,
        rpn_batch_size_per_image=64,
        box_roi_pool=MultiScaleRoIAlign(["fine", "coarse"], output_size=7, sampling_ratio=2),
        box_head=TwoMLPHead(WIDTH * 7 * 7, HEAD_WIDTH),
        box_predictor=FastRCNNPredictor(HEAD_WIDTH, num_classes=2),
        box_batch_size_per_image=64,
        box_detections_per_img=10,
    )
    detector.transform = AsTheyAre()
    return detector


def start(pool: ProcessPoolExecutor, boxes: Sequence[BoxXYXY], options: argparse.Namespace) -> list[Future[Detections]]:
    return [pool.submit(train_and_detect, boxes, seed, options) for seed in options.seeds]


def train_and_detect(boxes: Sequence[BoxXYXY], seed: int, options: argparse.Namespace) -> Detections:
    """Runs in a process of its own: detectors keep a processor core busier than a GPU."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(seed)
    device = find_device(options.device)
    train, test = (PixelCache.build(records, SIDE, None, device) for records in photos_of(options))
    detector = make_detector(options.weights, options.train_tail).to(device, memory_format=torch.channels_last)
    started = time.perf_counter()
    fit(detector, train, as_seen(train, boxes).to(device), seed, options)
    truth = as_seen(test, [record.boxes_xyxy[0] for record in test.records]).to(device)
    photos, overlaps = detect(detector, test, truth, options.batch)
    return Detections(photos, overlaps, time.perf_counter() - started)


def as_seen(cache: PixelCache, boxes: Sequence[BoxXYXY]) -> Tensor:
    """Boxes in the pixels of the cache: (N, 4)"""
    assert len(cache) == len(boxes), "a photo could not be read"
    seen = [
        geometry.scale(box, tuple(size), (SIDE, SIDE)) for box, size in zip(boxes, cache.sizes.tolist(), strict=True)
    ]
    return torch.from_numpy(np.concatenate(seen)).float()


def fit(detector: FasterRCNN, cache: PixelCache, boxes: Tensor, seed: int, options: argparse.Namespace) -> None:
    batches = cycled_indices(len(cache), options.epochs * len(cache), options.batch, (seed,), drop_last=True)
    pretrained = set(detector.backbone.body.parameters())
    groups = [
        [parameter for parameter in detector.parameters() if (parameter in pretrained) is old] for old in (True, False)
    ]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], weight_decay=DECAY)
    rates = [PRETRAINED_RATE * options.rate, options.rate]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, len(batches), pct_start=WARM_UP)
    label = torch.ones(1, dtype=torch.int64, device=boxes.device)
    detector.train()
    for step, rows in enumerate(batches):
        rows = rows.to(boxes.device)
        images, own = mirrored(as_input(detector, cache.gather(rows).to(boxes.device)), boxes[rows])
        losses = detector(images, [{"boxes": box, "labels": label} for box in own[:, None]])
        optimizer.zero_grad(set_to_none=True)
        sum(losses.values()).backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: {', '.join(f'{name} {loss:.3f}' for name, loss in losses.items())}", flush=True)


@torch.inference_mode()
def detect(detector: FasterRCNN, cache: PixelCache, truth: Tensor, batch: int) -> tuple[np.ndarray, np.ndarray]:
    detector.eval()
    photos, scores, overlaps = [], [], []
    for rows in torch.arange(len(cache)).split(batch):
        images = as_input(detector, cache.gather(rows).to(truth.device))
        for row, found in zip(rows.tolist(), detector(images), strict=True):
            photos += [row] * len(found["scores"])
            scores.append(found["scores"])
            overlaps.append(box_iou(found["boxes"], truth[row, None])[:, 0])
    best_first = torch.cat(scores).argsort(descending=True, stable=True).cpu().numpy()
    return np.array(photos)[best_first], torch.cat(overlaps).cpu().numpy()[best_first]


def as_input(detector: FasterRCNN, photos: Tensor) -> Tensor:
    lineage = detector.backbone.body.lineage
    return normalise(photos, lineage.mean, lineage.std)


def mirrored(images: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Mirror each photo (B, 3, S, S) and its box (B, 4) with probability 1/2."""
    flip = torch.rand(len(images), device=images.device) < 0.5
    x0, y0, x1, y1 = boxes.unbind(1)
    flipped = torch.stack([SIDE - x1, y0, SIDE - x0, y1], dim=1)
    return torch.where(flip[:, None, None, None], images.flip(3), images), torch.where(flip[:, None], flipped, boxes)


# --- average precision ---


def compare(found: dict[str, list[Detections]], num_photos: int) -> list[Row]:
    """A row for each kind of boxes, and one for the difference. Values are means over the seeds."""
    samples = np.vstack(
        [np.ones(num_photos, int), bootstrap(num_photos, SAMPLES, seed=0)]
    )  # the photos as they are first
    values = {
        (kind, measure): np.mean([precisions(run, levels, samples) for run in runs], axis=0)  # (1 + SAMPLES,)
        for kind, runs in found.items()
        for measure, levels in MEASURES.items()
    }
    rows = [
        {"name": f"detector, {kind} boxes"}
        | {key: value for measure in MEASURES for key, value in with_error(measure, values[kind, measure]).items()}
        | {"seconds": [round(run.seconds) for run in runs]}
        for kind, runs in found.items()
    ]
    difference = [with_error(measure, values["our", measure] - values["true", measure]) for measure in MEASURES]
    return [
        *rows,
        {"name": "detector, our - true boxes"} | {key: value for part in difference for key, value in part.items()},
    ]


def precisions(run: Detections, levels: Sequence[float], samples: np.ndarray) -> np.ndarray:
    correct = [find_correct(run.photos, run.overlaps, level) for level in levels]
    return np.array([np.mean([average_precision(run.photos, own, times) for own in correct]) for times in samples])


def with_error(measure: str, values: np.ndarray) -> Row:
    return {measure: percent(values[0]), f"{measure}_error": percent(values[1:].std())}


def percent(share: float) -> float:
    return round(100 * float(share), 2)


if __name__ == "__main__":
    main()
