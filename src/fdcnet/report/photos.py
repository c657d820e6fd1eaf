"""The same photos after each task, for each run: does the model still find what it has learned?"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from fdcnet.inference.drawing import data_uri, overlay
from fdcnet.report.charts import swatch
from fdcnet.report.markup import Markup, join, tag
from fdcnet.report.runs import Run
from fdcnet.report.tables import MISSING
from fdcnet.report.words import percent, readable, spread

TILE = 208  # side of a photo on the page, in pixels
MAX_TASKS = 8  # shown per photo: more would not fit a screen
MAX_PHOTOS = 3  # of each task's classes
MAX_TILES = 120  # keeps the page short, and below about 3 MB


def photos(runs: Sequence[Run]) -> Markup:
    last = max((t for run in runs for t in run.examples), default=0)
    tasks = spread(range(1, last + 1), MAX_TASKS)
    tiles = len(runs) * len(tasks) * (len(tasks) + 1) / 2
    per_group = max(1, min(MAX_PHOTOS, int(MAX_TILES / max(tiles, 1))))
    groups: list[Markup] = []
    for group in tasks:
        shown = [_photo(runs, image, group, tasks) for image in _photos_of(runs, group)[:per_group]]
        groups += [tag("h3", f"Classes of task {group}"), *shown] if shown else []
    if not groups:
        return Markup("")
    return join(
        tag(
            "p",
            "The same test photos after each task, in the order in which the run stored them. Under each photo: the "
            "class with the highest score, and the overlap (IoU) of the predicted box with the true one.",
        ),
        key(),
        groups,
    )


def key() -> Markup:
    return tag(
        "ul",
        tag("li", tag("i", class_="box predicted"), "predicted box"),
        tag("li", tag("i", class_="box true"), "true box"),
        tag("li", tag("i", class_="ramp"), "heat map, cold to hot"),
        tag("li", _mark(True), "right"),
        tag("li", _mark(False), "wrong"),
        class_="key",
    )


def _photos_of(runs: Sequence[Run], group: int) -> list[str]:
    """Photos of this task's classes, those that most runs share first."""
    shared: dict[str, int] = {}
    for run in runs:
        listed = [example for task in run.examples.values() for example in task if example.get("class_task") == group]
        for image in dict.fromkeys(str(example.get("image")) for example in listed):
            shared[image] = shared.get(image, 0) + 1
    return sorted(shared, key=lambda image: -shared[image])


def _photo(runs: Sequence[Run], image: str, group: int, tasks: Sequence[int]) -> Markup:
    """One photo: for each run, a strip of tiles over the tasks, blank before its class was learned."""
    before = sum(t < group for t in tasks)
    strips, label = [], ""
    for run in runs:
        found = [next((e for e in run.examples.get(t, []) if e.get("image") == image), None) for t in tasks[before:]]
        label = label or next((readable(example.get("label", "")) for example in found if example), "")
        blank = tag("div", "not yet learned", class_="unknown", style=f"--span:{before}") if before else None
        tiles = [_tile(run, example, t) for example, t in zip(found, tasks[before:], strict=True)]
        name = tag("p", swatch(run.style), " ", run.label) if len(runs) > 1 else None
        strip = [name, tag("div", blank, tiles, class_="tiles", tabindex="0")]
        strips.append(tag("div", strip, class_="strip", style=f"--tasks:{len(tasks)}"))
    return tag("div", tag("h4", tag("bdi", label)), tag("div", strips, class_="strips"), class_="photo")


def _tile(run: Run, example: dict[str, Any] | None, task: int) -> Markup:
    picture = painted(run, example) if example else None
    if example is None or picture is None:
        return tag("div", MISSING, class_="unknown")
    alt, caption = caption_of(run, example, task)
    return tag("figure", tag("img", src=data_uri(picture), alt=alt, width=TILE, height=TILE, loading="lazy"), caption)


def caption_of(run: Run, example: Mapping[str, Any], task: int | None = None) -> tuple[str, Markup]:
    """What stands for the photo and what stands below it: the predicted class and the overlap, right or wrong."""
    label, predicted = readable(example.get("label", "")), readable(example.get("predicted", ""))
    score, iou = example.get("score"), example.get("iou")
    sure = "" if score is None else f" {percent(100 * score, digits=0)}"
    overlap = "" if iou is None else f"IoU {iou:.2f}"
    limit = (run.main.get("protocol") or {}).get("iou", 0.5)
    when = f" after task {task}" if task else ""
    alt = f"{label}{when} ({run.label}): taken for {predicted}{sure}. {overlap}".strip()
    caption = tag(
        "figcaption",
        tag("small", f"after task {task}") if task else None,
        tag("span", _mark(label == predicted), tag("bdi", predicted), sure),
        tag("span", _mark(iou > limit), overlap) if iou is not None else None,
    )
    return alt, caption


def painted(run: Run, example: Mapping[str, Any]) -> Image.Image | None:
    """The overlay, or None where a file is missing, damaged, or not in the run folder."""
    root = run.folder.resolve()
    paths = [(root / str(example.get(key))).resolve() for key in ("image", "map")]
    if not all(path.is_relative_to(root) for path in paths):
        return None
    try:
        with Image.open(paths[0]) as photo, Image.open(paths[1]) as heat:
            scale = (TILE / photo.width, TILE / photo.height) * 2
            pixels = np.asarray(photo.convert("RGB").resize((TILE, TILE), Image.Resampling.LANCZOS))
            values = np.asarray(heat.convert("L").resize((TILE, TILE), Image.Resampling.BILINEAR)) / 255
    except (OSError, ValueError):
        return None
    true_boxes = [_scaled(box, scale) for box in example.get("true_boxes") or []]
    box = _scaled(example.get("box"), scale)
    return overlay(pixels, values, box, [true for true in true_boxes if true], opacity=0.6)


def _scaled(box: Sequence[float | None] | None, scale: Sequence[float]) -> list[float] | None:
    known = [value for value in box or [] if value is not None]
    return [value * factor for value, factor in zip(known, scale, strict=True)] if len(known) == 4 else None


def _mark(right: bool) -> Markup:
    return tag("b", "✓ " if right else "✗ ", class_="right" if right else "wrong")
