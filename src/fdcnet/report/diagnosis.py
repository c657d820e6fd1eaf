"""What went wrong: problems with their remedies, confused classes, accuracy of each class, and wrong boxes."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple, get_args

import numpy as np
from markupsafe import Markup

from fdcnet.config import Protocol
from fdcnet.errors import count
from fdcnet.evaluation.metrics import BoxError, box_error, box_errors, by_class, confusions
from fdcnet.report.curves import box_threshold_curve, threshold_points
from fdcnet.report.photos import has_true_boxes, photos_by_class, tile
from fdcnet.report.rendering import render
from fdcnet.report.runs import Run, key_metrics
from fdcnet.report.tables import METRICS, measured
from fdcnet.report.text import listing, percent, readable

DIVERGED = 2.0  # last loss of a phase over its first
EMPTY_MASK, FULL_MASK = 0.01, 0.9  # mean of the masks
WHOLE_PHOTO = 0.95  # share of the photo that a box covers
FEWEST_PHOTOS = 3  # a class with fewer test photos may be missed by chance
FAR_FROM_BEST = 5.0  # points of GT-known that the threshold costs, and photos
MAX_PAIRS = 6
MAX_WRONG_BOXES = 4  # photos of each kind
MAX_NAMES = 6


class Problem(NamedTuple):
    what: str
    remedy: str


def problems(runs: Sequence[Run]) -> Markup:
    """A banner for runs in which something went wrong."""
    found = [(run, problems_of(run)) for run in runs]
    shown = [(run, own) for run, own in found if own]
    return render("banner.html", runs=shown, several=len(runs) > 1) if shown else Markup("")


def problems_of(run: Run) -> list[Problem]:
    found = (_diverged(run), _poor_masks(run), _never_predicted(run), _poor_threshold(run))
    return [problem for problem in found if problem]


def classes(runs: Sequence[Run]) -> Markup:
    """The most confused classes, a table of all classes, and photos of each."""
    shown = []
    metrics = key_metrics(runs)
    for run in runs:
        rows = _class_rows(run, metrics)
        photos = photos_by_class(run, len(runs))
        if rows or photos:
            shown.append({"run": run, "pairs": _pairs(run), "rows": rows, "photos": photos})
    if not shown:
        return Markup("")
    names, has_boxes = [METRICS[metric] for metric in metrics], has_true_boxes(runs)
    return render("sections/classes.html", runs=shown, several=len(runs) > 1, metrics=names, has_boxes=has_boxes)


def boxes(runs: Sequence[Run]) -> Markup:
    """How many boxes are too small, too large or elsewhere, and accuracy at each threshold."""
    shown: list[dict[str, Any]] = []
    for run in runs:
        errors = box_errors(run.table, run.protocol.get("iou", 0.5)) if run.table else None
        if run.table and threshold_points(run):
            shown.append(
                {
                    "run": run,
                    "errors": errors,
                    "num_boxes": int((run.table.num_boxes > 0).sum()),
                    "examples": _wrong_boxes(run),
                    "threshold": _threshold(run),
                }
            )
    if not shown:
        return Markup("")
    chart = box_threshold_curve(runs)
    wrong = any(sum((own["errors"] or {}).values()) for own in shown)
    return render("sections/boxes.html", runs=shown, several=len(runs) > 1, chart=chart, wrong=wrong)


def _diverged(run: Run) -> Problem | None:
    remedy = "Train again with a lower train.optim.lr, or with train.optim.clip_norm=5."
    if run.facts.get("failed"):
        return Problem(str(run.facts["failed"]), remedy)
    for (task, phase), lines in groupby(run.metrics, key=lambda line: (line["task"], line["phase"])):
        where = f"in task {task}, phase “{phase}”"
        sums = [_total(line.get("losses") or {}) for line in lines]
        if None in sums:
            return Problem(f"The loss is NaN or infinite {where}.", remedy)
        first, last = sums[0] or 0.0, sums[-1] or 0.0
        if last > DIVERGED * first > 0:
            return Problem(f"The loss rose from {first:.3g} to {last:.3g} {where}.", remedy)
    return None


def _total(losses: dict[str, float | None]) -> float | None:
    values = [value for value in losses.values() if value is not None]
    return sum(values) if len(values) == len(losses) else None


def _poor_masks(run: Run) -> Problem | None:
    mean, weight = _mean_mask(run), ((run.facts.get("config") or {}).get("weights") or {}).get("area") or 0.0
    if mean is not None and mean < EMPTY_MASK:
        what = f"The masks are almost empty: they cover {percent(100 * mean)} of a photo on average."
        remedy = f"Lower weights.area (now {weight:g}) and train again." if weight else "Train for more epochs."
        return Problem(what, remedy)
    if mean is not None and mean > FULL_MASK:
        what = f"The masks cover almost the whole photo: {percent(100 * mean)} on average."
        return Problem(what, f"Raise weights.area (now {weight:g}) and train again.")
    share = _share_of_whole_photos(run)
    if share > 0.5:
        what = f"{percent(100 * share, 0)} of the boxes are wrong because they cover the whole photo."
        remedy = "The masks are empty or full at this threshold. See the heat maps and the threshold curve below."
        return Problem(what, remedy)
    return None


def _mean_mask(run: Run) -> float | None:
    """The mean of the masks in the last epoch that trained them."""
    areas = [value for line in run.metrics if (value := (line.get("unweighted") or {}).get("area")) is not None]
    return areas[-1] if areas else None


def _share_of_whole_photos(run: Run) -> float:
    """The share of photos with a wrong box that covers the whole photo."""
    table = run.table
    if table is None or not (table.num_boxes > 0).any():
        return 0.0
    side = ((run.facts.get("config") or {}).get("data") or {}).get("crop", 224)
    sizes = (table.box[:, 2:] - table.box[:, :2]).clip(0)
    wrong = ~(table.iou > run.protocol.get("iou", 0.5))
    whole = sizes.prod(axis=1) >= WHOLE_PHOTO * side**2
    return float((wrong & whole)[table.num_boxes > 0].mean())


def _never_predicted(run: Run) -> Problem | None:
    if run.table is None:
        return None
    predicted = set(run.table.top5[:, 0].tolist())
    labels, counts = np.unique(run.table.label, return_counts=True)
    tested = [int(label) for label, number in zip(labels, counts, strict=True) if number >= FEWEST_PHOTOS]
    missed = [_name(run, label) for label in tested if label not in predicted]
    if not missed:
        return None
    names = missed if len(missed) <= MAX_NAMES else [*missed[: MAX_NAMES - 1], f"{len(missed) - MAX_NAMES + 1} more"]
    verb = "is" if len(missed) == 1 else "are"
    return Problem(
        f"{len(missed)} of {count(len(tested), 'class')} {verb} never predicted: {listing(names)}.",
        "Check the names and photos of these classes, and add photos. For old classes, raise memory.budget, or use a "
        "method that forgets less.",
    )


def _poor_threshold(run: Run) -> Problem | None:
    last = run.measured_tasks[-1] if run.measured_tasks else {}
    used, best = measured(last, "gt_known"), measured(last, "gt_known_best")
    if used is None or best is None or best - used < FAR_FROM_BEST:
        return None
    if run.table and (best - used) / 100 * (run.table.num_boxes > 0).sum() < FAR_FROM_BEST:
        return None
    threshold = last.get("best_threshold")
    return Problem(
        f"The box threshold costs {best - used:.1f} points: GT-known is {percent(used)} at "
        f"{run.protocol.get('threshold')}, and {percent(best)} at {threshold}.",
        f"Set protocols.0.threshold={threshold}, or try it with 'fdcnet evaluate MODEL --threshold {threshold}'. The "
        "best threshold was found on the test photos, so confirm it on other photos.",
    )


def _pairs(run: Run) -> list[dict[str, Any]]:
    """The most confused classes, each with a photo of the true class and one of the predicted class."""
    if run.table is None:
        return []
    numbers = np.bincount(run.table.label)
    return [
        {
            "true": _name(run, true),
            "predicted": _name(run, predicted),
            "count": number,
            "of": count(int(numbers[true]), "photo"),
            "tiles": [
                item
                for item in (_photo_of(run, true, predicted), _photo_of(run, predicted, predicted))
                if item is not None
            ],
        }
        for true, predicted, number in confusions(run.table)[:MAX_PAIRS]
    ]


def _photo_of(run: Run, label: int, predicted: int) -> dict[str, Any] | None:
    """A photo of a class, preferably one with this prediction."""
    names = run.classes
    if max(label, predicted) >= len(names):
        return None
    own = [example for example in run.last_examples if example.get("label") == names[label]]
    own.sort(key=lambda example: example.get("predicted") != names[predicted])
    return tile(run, own[0]) if own else None


def _class_rows(run: Run, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Every class learned so far, also those without test photos."""
    if run.table is None:
        return []
    scores = by_class(run.table, Protocol(iou=run.protocol.get("iou", 0.5)))
    num_learned = run.measured_tasks[-1].get("num_classes") or 0
    numbers = np.bincount(run.table.label, minlength=num_learned)
    task_of = {name: task for task, names in enumerate(run.facts.get("tasks") or [], 1) for name in names}
    mistaken: dict[int, str] = {}
    for true, predicted, number in confusions(run.table):
        mistaken.setdefault(true, f"{_name(run, predicted)} ({number})")
    return [
        {
            "name": _name(run, label),
            "task": task_of.get(run.classes[label]) if label < len(run.classes) else None,
            "photos": int(numbers[label]),
            "scores": [scores[label][metric] if label in scores else None for metric in metrics],
            "mistaken": mistaken.get(label, ""),
        }
        for label in sorted({*range(num_learned), *scores})
    ]


def _wrong_boxes(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Photos of each kind of wrong box, among the examples after the last task."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in get_args(BoxError)}
    for example in run.last_examples:
        box, true_boxes, iou = example.get("box") or [], example.get("true_boxes") or [], example.get("iou")
        if iou is None or None in box or len(true_boxes) != 1 or iou > run.protocol.get("iou", 0.5):
            continue  # with several true boxes, the example does not say which one was meant
        kind = found[box_error(box, true_boxes[0])]
        if len(kind) < MAX_WRONG_BOXES and (item := tile(run, example)):
            kind.append(item)
    return {kind: tiles for kind, tiles in found.items() if tiles}


def _threshold(run: Run) -> str:
    last = run.measured_tasks[-1] if run.measured_tasks else {}
    used, best = measured(last, "gt_known"), measured(last, "gt_known_best")
    if used is None or best is None:
        return ""
    reached = f"GT-known is {percent(used)} at {run.protocol.get('threshold')}"
    if percent(used) == percent(best):
        return f"{reached}, which is the best."
    return f"{reached}; the best is {percent(best)} at {last.get('best_threshold')}."


def _name(run: Run, label: int) -> str:
    return readable(run.classes[label]) if label < len(run.classes) else f"class {label}"
