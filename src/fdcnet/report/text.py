"""Numbers, settings and loss names in words, and a glossary of the terms in the report."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from fdcnet.errors import count

MISSING = "–"
GLOSSARY = {
    "Task": "A group of new classes learned together, from photos and class names but no boxes. "
    "Photos of earlier tasks are gone, except for a small memory of examples.",
    "Old and new classes": "New classes belong to the latest task. Old classes belong to all earlier tasks.",
    "Top-1 Cls": "Classification accuracy: the share of test photos whose highest-scoring class is the true one. "
    "Top-5 Cls: the true class is among the five highest scores.",
    "GT-known": "Box accuracy: the share of test photos in which the box drawn for the true class matches a true box. "
    "The predicted class does not matter.",
    "Top-1 Loc": "Class and box are both right. Top-5 Loc: the box is right and the true class is among the five "
    "highest scores.",
    "IoU": "Overlap of two boxes: the shared area divided by the area they cover together. 1 is a perfect match.",
    "Forgetting": "How many percentage points the classes of a task lost by the end, compared with their best earlier "
    "accuracy, averaged over the old tasks. 0 means nothing was forgotten.",
    "Average and last": "Average: mean of the accuracies after each task. "
    "Last: accuracy after the last task, over all classes.",
}
LOSSES = {
    "cls": "Classification",
    "cls_fg": "Classification of the foreground",
    "bas": "Background suppression",
    "area": "Mask area",
    "separation": "Object separation (lower is better)",
    "kd_cls": "Distillation of class scores",
    "kd_loc": "Distillation of masks",
    "kd_feat_cls": "Distillation of class features",
    "kd_feat_loc": "Distillation of shared features",
    "kd_mean": "Distillation of the mean mask",
    "dc_cls": "Drift compensation of class maps",
    "dc_loc": "Drift compensation of masks",
    "less_forget": "Distillation of normalized features",
    "margin": "Margin between old and new classes",
    "expert": "Classification by the new branch",
    "bkd": "Balanced distillation into one network",
    "shares": "Mixing of plastic and stable blocks",
}
MAPS = {"class": "the map of the true class", "topk-mean": "the mean map of all classes"}
SCALES = {"minmax": ", scaled from its lowest value to its highest,", "max": ", divided by its highest value,"}
VIEWS = {"crop": "the center crop", "image": "the whole photo"}
CROPS = {1: "that of {view}", 2: "the mean over {view} and its mirror image", 10: "the mean over ten crops"}
AVERAGES = {"class": "classes", "image": "photos"}


class Mean(NamedTuple):
    """Mean and standard deviation over several seeds."""

    value: float
    deviation: float


Cell = str | int | float | Mean | None


def show(value: Cell, digits: int = 1) -> str:
    """Format a number for people: a dash if it is missing, a true minus sign, and no minus before zero."""
    if value is None:
        return MISSING
    if isinstance(value, Mean):
        return f"{show(value.value, digits)} ±\N{NO-BREAK SPACE}{value.deviation:.{digits}f}"
    return f"{value:z.{digits}f}".replace("-", "−") if isinstance(value, float) else str(value)


def percent(value: float | None, digits: int = 1) -> str:
    return MISSING if value is None else f"{show(float(value), digits)}\xa0%"


def protocol_in_words(protocol: Mapping[str, Any]) -> str:
    """Describe an evaluation protocol for a reader who does not know the names of the settings."""
    said = []
    if "map" in protocol:
        top = protocol.get("topk") if protocol["map"] == "topk-mean" else None
        source = f" (threshold source: {protocol['threshold_source']})" if protocol.get("threshold_source") else ""
        heat = f"the mean map of the {top} classes with the highest scores" if top else MAPS.get(protocol["map"])
        heat = f"{heat or protocol['map']}{SCALES.get(protocol.get('normalization', ''), '')}"
        said.append(f"The box encloses the largest region in which {heat} exceeds {protocol.get('threshold')}{source}.")
        if protocol.get("map_views") == 2:
            said.append("The map is averaged with that of the mirror image.")
    if "iou" in protocol:
        pixels = ", counting both border pixels" if protocol.get("inclusive_pixels") else ""
        said.append(f"It is right if its overlap (IoU{pixels}) with a true box is above {protocol['iou']}.")
    view = VIEWS["image" if protocol.get("frame") == "image" else "crop"]
    if "iou" in protocol and "frame" in protocol:
        clipped = ", and true boxes are clipped to it" if protocol["frame"] == "crop" else ""
        said.append(f"Boxes are predicted in {view}{clipped}.")
    if protocol.get("crops") in CROPS:
        said.append(f"The class score is {CROPS[protocol['crops']].format(view=view)}.")
    if protocol.get("classifier") == "lda":
        said.append("The class is decided by a linear discriminant (LDA) on the features of the network.")
    if not protocol.get("compensated", True):
        said.append("Only the network is measured, without the method's correction of its outputs for old classes.")
    if protocol.get("average") in AVERAGES:
        said.append(f"Percentages are means over {AVERAGES[protocol['average']]}.")
    return " ".join(said)


def classes(amount: int) -> str:
    return count(amount, "class")


def duration(seconds: float) -> str:
    """41 s, 12 min, 3 h 05 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def moment(text: object) -> str:
    """15 November 2026, 20:11 UTC."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return str(text)
    return f"{time.day} {time:%B %Y, %H:%M %Z}".strip()


def readable(name: object) -> str:
    """A class name without underscores and without the three-digit number that some datasets put first."""
    return re.sub(r"^\d{3}\.", "", str(name)).replace("_", " ")


def listing(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def spread(values: Sequence[int], most: int) -> list[int]:
    """At most `most` of the values, evenly spaced, including the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
