"""Numbers and settings in words, and what the words mean."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from fdcnet.errors import count
from fdcnet.report.markup import Markup, join, tag
from fdcnet.report.tables import MISSING, show

GLOSSARY = {
    "Task": "One lesson: a few new classes arrive with photos and class names, but no boxes. "
    "The photos of earlier tasks are gone, except for a small memory of examples.",
    "Old and new classes": "New: the classes of the latest task. "
    "Old: those of all earlier tasks, which the model must not forget.",
    "GT-known": "How well objects are found: the share of test photos in which the box drawn for the true class "
    "matches a true box. Whether the class was recognised does not matter.",
    "Top-1 Loc": "Found and recognised: the box is right, and the class with the highest score is the true one. "
    "Top-5 Loc: one of the five highest.",
    "Top-1 Cls": "Recognised only: the class with the highest score is the true one, wherever the box may be.",
    "IoU": "Overlap of two boxes: the shared area divided by the area that they cover together. 1 is a perfect match.",
    "Forgetting": "How many percentage points the classes of a task have lost by the end, compared with the best "
    "they ever had before, on average over the old tasks. 0: nothing forgotten.",
    "Average and last": "Average: the mean of the accuracies after each task. "
    "Last: the accuracy after the last task, over all classes.",
}
MAPS = {"class": "the map of the true class", "topk-mean": "the mean map of all classes"}
SCALES = {"minmax": ", scaled from its lowest value to its highest,", "max": ", divided by its highest value,"}
CROPS = {
    1: "that of the centre crop",
    2: "the mean over the centre crop and its mirror image",
    10: "the mean over ten crops",
}
FRAMES = {"crop": "the centre crop, and true boxes are clipped to it", "image": "the whole photo"}
AVERAGES = {"class": "classes", "image": "photos"}


def term(name: str) -> Markup:
    """A word with its meaning on hover; the page's glossary says the same."""
    return tag("abbr", name, title=GLOSSARY[name]) if name in GLOSSARY else join(name)


def glossary() -> Markup:
    terms = [join(tag("dt", name), tag("dd", meaning)) for name, meaning in GLOSSARY.items()]
    return tag("details", tag("summary", "What do these words mean?"), tag("dl", terms, class_="glossary"))


def protocol_in_words(protocol: Mapping[str, Any]) -> str:
    """How the numbers came about, for a reader who does not know the settings' names."""
    said = []
    if "map" in protocol:
        top = protocol.get("topk") if protocol["map"] == "topk-mean" else None
        source = f" (from {protocol['threshold_source']})" if protocol.get("threshold_source") else ""
        heat = f"the mean map of the {top} classes with the highest scores" if top else MAPS.get(protocol["map"])
        heat = f"{heat or protocol['map']}{SCALES.get(protocol.get('normalization', ''), '')}"
        said.append(f"The box encloses the largest region in which {heat} exceeds {protocol.get('threshold')}{source}.")
    if "iou" in protocol:
        pixels = ", counting both border pixels" if protocol.get("inclusive_pixels") else ""
        said.append(f"It is right if its overlap (IoU{pixels}) with a true box is above {protocol['iou']}.")
    if protocol.get("frame") in FRAMES:
        said.append(f"The box is sought in {FRAMES[protocol['frame']]}.")
    if protocol.get("crops") in CROPS:
        said.append(f"The class score is {CROPS[protocol['crops']]}.")
    if not protocol.get("compensated", True):
        said.append("The network alone is measured, without what the method adds to its outputs for old classes.")
    if protocol.get("average") in AVERAGES:
        said.append(f"Percentages are means over {AVERAGES[protocol['average']]}.")
    return " ".join(said)


def classes(amount: int) -> str:
    return count(amount, "class")


def percent(value: float | None, digits: int = 1) -> str:
    return MISSING if value is None else f"{show(float(value), digits)}\xa0%"


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
    """A class name as a person would write it: without a data set's three-digit number and underscores."""
    return re.sub(r"^\d{3}\.", "", str(name)).replace("_", " ")


def listing(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def spread(values: Sequence[int], most: int) -> list[int]:
    """At most `most` of the values, evenly spaced, first and last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
