"""Photos with heat maps and boxes: after each task, for each run of a comparison, and of every class."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image, ImageDraw

from fdcnet.inference.drawing import data_uri, overlay
from fdcnet.inference.fonts import draw_line, line_length, shortened
from fdcnet.report.rendering import render
from fdcnet.report.runs import Run
from fdcnet.report.text import percent, readable, spread

TILE = 208  # side of a photo on the page, in pixels
SMALL_TILE = 144
MAX_TASKS = 8  # per photo: more would not fit a screen
MAX_PHOTOS = 3  # per task
MAX_TILES = 120  # keeps the section below about 3 MB
MAX_SMALL_TILES = 480  # keeps photos of every class below about 4 MB
MAX_COLUMNS = 8  # photos side by side in a comparison
GAP, HEAD, SIDE = 8, 34, 150  # of photos.png: between photos, above them for the class, next to them for the run
FONT_SIZE, SMALL_FONT_SIZE = 17, 14
INK, WRONG = (29, 31, 36), (179, 38, 30)

Example = Mapping[str, Any]


def photos(runs: Sequence[Run]) -> Markup:
    """The same test photos after each task, for each run."""
    tasks = spread(sorted({task for run in runs for task in run.examples}), MAX_TASKS)
    tiles = len(runs) * len(tasks) * (len(tasks) + 1) / 2
    per_task = max(1, min(MAX_PHOTOS, int(MAX_TILES / max(tiles, 1))))
    groups = {
        task: [_strips(runs, image, task, tasks) for image in _photos_of(runs, task)[:per_task]]
        for task in spread(range(1, max(tasks, default=0) + 1), MAX_TASKS)
    }
    groups = {task: strips for task, strips in groups.items() if strips}
    if not groups:
        return Markup("")
    return render("sections/photos.html", groups=groups, num_tasks=len(tasks), has_boxes=has_true_boxes(runs))


def gallery(runs: Sequence[Run]) -> Markup:
    """The same photos after the last task, one row per run."""
    images, shown = _shared(runs)
    if not images:
        return Markup("")
    rows = [
        (run, [tile(run, found[image]) if image in found else None for image in images])
        for run, found in zip(runs, shown, strict=True)
        if found
    ]
    labels = _labels(images, shown)
    return render("sections/gallery.html", labels=labels, rows=rows, has_boxes=has_true_boxes(runs))


def gallery_picture(runs: Sequence[Run]) -> bytes | None:
    """The gallery as a PNG for a paper or a README."""
    images, shown = _shared(runs)
    if not images:
        return None
    rows = [(run, found) for run, found in zip(runs, shown, strict=True) if found]
    side = max(SIDE, *(int(line_length(run.label, FONT_SIZE)) + 2 * GAP for run, _ in rows))
    width, height = side + len(images) * (TILE + GAP), HEAD + len(rows) * (TILE + GAP + HEAD)
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    for row, (run, _) in enumerate(rows):
        left = (4, HEAD + row * (TILE + GAP + HEAD) + TILE / 2)
        draw_line(draw, left, run.label, FONT_SIZE, INK, centred=False)
    for column, (image, label) in enumerate(zip(images, _labels(images, shown), strict=True)):
        x = side + column * (TILE + GAP)
        draw_line(draw, (x + TILE / 2, HEAD / 2), shortened(label, FONT_SIZE, TILE), FONT_SIZE, INK)
        for row, (run, found) in enumerate(rows):
            example = found.get(image)
            painted = paint(run, example) if example else None
            if example is None or painted is None:
                continue
            y = HEAD + row * (TILE + GAP + HEAD)
            sheet.paste(painted, (x, y))
            predicted, right = readable(example.get("predicted", "")), example.get("predicted") == example.get("label")
            said = shortened(predicted, SMALL_FONT_SIZE, TILE)
            draw_line(draw, (x + TILE / 2, y + TILE + 15), said, SMALL_FONT_SIZE, INK if right else WRONG)
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def has_true_boxes(runs: Sequence[Run]) -> bool:
    """Whether any photo of the report has a true box."""
    return any(e.get("true_boxes") for run in runs for examples in run.examples.values() for e in examples)


def photos_by_class(run: Run, num_runs: int = 1) -> dict[str, list[dict[str, Any]]]:
    """Small photos of every class after the last task, by class name."""
    found: dict[str, list[Example]] = {name: [] for name in run.classes}
    for example in run.last_examples:
        found.setdefault(str(example.get("label")), []).append(example)
    found = {name: examples for name, examples in found.items() if examples}
    per_class = max(1, MAX_SMALL_TILES // max(1, num_runs * len(found)))
    tiles = {name: [tile(run, e, side=SMALL_TILE) for e in examples[:per_class]] for name, examples in found.items()}
    return {readable(name): shown for name, own in tiles.items() if (shown := [item for item in own if item])}


def tile(run: Run, example: Example | None, task: int | None = None, side: int = TILE) -> dict[str, Any] | None:
    """A photo with its caption for the template `parts.html`; None if the photo cannot be shown."""
    picture = paint(run, example, side) if example else None
    if example is None or picture is None:
        return None
    label, predicted = readable(example.get("label", "")), readable(example.get("predicted", ""))
    score, iou = example.get("score"), example.get("iou")
    confidence = "" if score is None else f" {percent(100 * score, digits=0)}"
    overlap = "" if iou is None else f"IoU {iou:.2f}"
    when = f"after task {task}" if task else ""
    return {
        "source": data_uri(picture),
        "side": side,
        "alt": f"{' '.join([label, when]).strip()} ({run.label}): predicted {predicted}{confidence}. {overlap}".strip(),
        "when": when,
        "label": label,
        "predicted": predicted,
        "score": confidence,
        "overlap": overlap,
        "class_right": label == predicted,
        "box_right": iou is not None and iou > run.protocol.get("iou", 0.5),
    }


def paint(run: Run, example: Example, side: int = TILE) -> Image.Image | None:
    """The photo with map and boxes; None if a file is missing, damaged, or outside the run folder."""
    root = run.folder.resolve()
    paths = [(root / str(example.get(key))).resolve() for key in ("image", "map")]
    if not all(path.is_relative_to(root) for path in paths):
        return None
    try:
        with Image.open(paths[0]) as photo, Image.open(paths[1]) as heat:
            scale = (side / photo.width, side / photo.height) * 2
            pixels = np.asarray(photo.convert("RGB").resize((side, side), Image.Resampling.LANCZOS))
            values = np.asarray(heat.convert("L").resize((side, side), Image.Resampling.BILINEAR)) / 255
    except (OSError, ValueError):
        return None
    true_boxes = [_scaled(box, scale) for box in example.get("true_boxes") or []]
    box = _scaled(example.get("box"), scale)
    return overlay(pixels, values, box, [true for true in true_boxes if true], opacity=0.6)


def _strips(runs: Sequence[Run], image: str, group: int, tasks: Sequence[int]) -> dict[str, Any]:
    """One photo: a strip of tiles for each run, which starts with the task that its class belongs to."""
    shown = [task for task in tasks if task >= group]
    strips, label = [], ""
    for run in runs:
        found = [next((e for e in run.examples.get(t, []) if e.get("image") == image), None) for t in shown]
        label = label or next((readable(example.get("label", "")) for example in found if example), "")
        strips.append((run, [tile(run, example, t) for example, t in zip(found, shown, strict=True)]))
    return {"label": label, "before": len(tasks) - len(shown), "strips": strips}


def _photos_of(runs: Sequence[Run], group: int) -> list[str]:
    """Photos of this task's classes, starting with those that most runs share. Those shown after every task, if any."""
    shared: Counter[str] = Counter()
    for run in runs:
        stored = [
            [str(example.get("image")) for example in examples if example.get("class_task") == group]
            for task, examples in sorted(run.examples.items())
            if task >= group
        ]
        counts = Counter(image for images in stored for image in set(images))
        images = dict.fromkeys(image for images in stored for image in images)
        complete = [image for image in images if counts[image] == len(stored)]
        shared.update(complete or images)
    return sorted(shared, key=lambda image: -shared[image])


def _shared(runs: Sequence[Run]) -> tuple[list[str], list[dict[str, Example]]]:
    """Photos that most runs show after their last task, of different classes; and each run's examples of them."""
    last = [_first_of_each_class(run) for run in runs]
    counts: dict[str, int] = {}
    for examples in last:
        for image in examples:
            counts[image] = counts.get(image, 0) + 1
    common = [image for image, number in counts.items() if number == max(counts.values())]
    chosen = [common[i] for i in spread(range(len(common)), MAX_COLUMNS)]
    return chosen, [{image: examples[image] for image in chosen if image in examples} for examples in last]


def _first_of_each_class(run: Run) -> dict[str, Example]:
    found: dict[object, Example] = {}
    for example in run.last_examples:
        found.setdefault(example.get("label"), example)
    return {str(e.get("image")): e for e in sorted(found.values(), key=lambda e: e.get("class_task") or 0)}


def _labels(images: Sequence[str], shown: Sequence[Mapping[str, Example]]) -> list[str]:
    return [readable(next(found[image] for found in shown if image in found)["label"]) for image in images]


def _scaled(box: Sequence[float | None] | None, scale: Sequence[float]) -> list[float] | None:
    known = [value for value in box or [] if value is not None]
    return [value * factor for value, factor in zip(known, scale, strict=True)] if len(known) == 4 else None
