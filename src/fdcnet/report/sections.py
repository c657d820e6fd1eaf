"""The sections of the report, in the order in which a reader wants them. Each is a function from runs to markup."""

import re
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from fdcnet.report.charts import Series, line_chart, swatch
from fdcnet.report.markup import Markup, join, tag
from fdcnet.report.overlay import data_uri, overlay
from fdcnet.report.tables import (
    METRICS,
    MISSING,
    group_matrix,
    group_sizes,
    measured,
    old_and_new,
    results_table,
    show,
    summary_table,
    to_html,
)

TILE = 208  # side of a photo on the page, in pixels
MAX_PHOTOS = 3  # of each task's classes
MAX_COLUMNS = 8  # tasks shown per photo: more would not fit a screen
MAX_TILES = 120  # keeps the page short, and below about 3 MB
GLOSSARY = {
    "Task": "One lesson: a few new classes arrive with photos and class names, but no boxes. The photos of earlier tasks are gone, except for a small memory of examples.",
    "Old and new classes": "New: the classes of the latest task. Old: those of all earlier tasks, which the model must not forget.",
    "GT-known": "How well objects are found: the share of test photos in which the box drawn for the true class matches a true box. Whether the class was recognised does not matter.",
    "Top-1 Loc": "Found and recognised: the box is right, and the class with the highest score is the true one. Top-5 Loc: one of the five highest.",
    "Top-1 Cls": "Recognised only: the class with the highest score is the true one, wherever the box may be.",
    "IoU": "Overlap of two boxes: the shared area divided by the area that they cover together. 1 is a perfect match.",
    "Forgetting": "How many percentage points the classes of a task have lost by the end, compared with the best they ever had, on average over the old tasks. 0: nothing forgotten.",
    "Average and last": "Average: the mean of the accuracies after each task. Last: the accuracy after the last task, over all classes.",
}


@dataclass(frozen=True)
class Run:
    """One run as the report sees it."""

    label: str
    style: int
    facts: dict[str, Any]  # run.json
    metrics: list[dict[str, Any]]
    results: dict[str, dict[str, Any]]
    examples: dict[int, list[dict[str, Any]]]
    folder: Path

    @property
    def main(self) -> dict[str, Any]:
        """The results under the first protocol, empty when nothing has been measured yet."""
        return next(iter(self.results.values()), {})

    @property
    def measured_tasks(self) -> list[dict[str, Any]]:
        return self.main.get("tasks") or []

    @property
    def num_tasks(self) -> int:
        return max(len(self.facts.get("tasks") or []), len(self.measured_tasks))

    @property
    def num_classes(self) -> int:
        return max(len(self.facts.get("class_order") or []), sum(group_sizes(self.main)))


# 1. Headline


def verdict(runs: Sequence[Run]) -> Markup:
    """What was done and how it ended in two sentences, made from the record alone."""
    return tag("p", " ".join(filter(None, (_learned(runs[0]), _outcome(runs)))), class_="lead")


def task_line(runs: Sequence[Run]) -> str:
    classes, tasks = max((run.num_classes, run.num_tasks) for run in runs)
    return f"{count(classes, 'class', 'classes')} learned in {count(tasks, 'task')}"


def headline(runs: Sequence[Run]) -> Markup:
    cards = tag("div", [_card(run, _key_metrics(runs)) for run in runs], class_="cards")
    notes = [] if _has_boxes(runs) else [tag("p", "The test photos have no boxes, so localization could not be measured.", class_="note")]
    terms = [join(tag("dt", term), tag("dd", meaning)) for term, meaning in GLOSSARY.items()]
    return join(cards, notes, tag("details", tag("summary", "What do these words mean?"), tag("dl", terms, class_="glossary")))


def _learned(run: Run) -> str:
    data = (run.facts.get("data") or {}).get("name") or run.main.get("dataset")
    photos = f"the photos of {data}" if data else "photos"
    return f"The model learned from {photos} and their class names alone{', task after task' if run.num_tasks > 1 else ''}; it was never shown a box."


def _outcome(runs: Sequence[Run]) -> str:
    metric = _key_metrics(runs)[0]
    finds, things = ("finds", "objects") if metric == "gt_known" else ("recognises", "photos")
    known = [(run.label, *old_and_new(run.main, metric)) for run in runs]
    old = [(label, percent(value)) for label, value, _ in known if value is not None]
    if old and len(runs) > 1:
        (first, share), *others = old
        parts = [f"{first} still {finds} {share} of the {things} of old classes", *(f"{label} {share}" for label, share in others)]
        return f"After the last task, {_listing(parts)}."
    if old:
        return f"After the last task, it {finds} {old[0][1]} of the {things} of old classes and {percent(known[0][2])} of the new ones."
    parts = [f"{label} {finds} {percent(value)} of the {things}" for label, _, value in known if value is not None]
    return f"{_listing(parts)}." if parts else ""


def _card(run: Run, metrics: Sequence[str]) -> Markup:
    sizes = group_sizes(run.main)
    rows = []
    if len(sizes) > 1:
        old = f"{count(sum(sizes[:-1]), 'class', 'classes')}, {_task_span(len(sizes) - 1)}"
        rows.append(_key_row("Old classes", old, [old_and_new(run.main, metric)[0] for metric in metrics]))
        new = f"{count(sizes[-1], 'class', 'classes')}, task\xa0{len(sizes)}"
        rows.append(_key_row("New classes", new, [old_and_new(run.main, metric)[1] for metric in metrics]))
    elif sizes:
        rows.append(_key_row("All classes", count(sizes[0], "class", "classes"), [measured(run.measured_tasks[0], metric) for metric in metrics]))
    if len(sizes) > 1:
        lost = [measured(run.main.get("forgetting"), metric) for metric in metrics]
        cells = [tag("td", show(value), tag("small", " points") if value is not None else None) for value in lost]
        rows.append(tag("tr", tag("th", _term("Forgetting"), scope="row"), cells, class_="minor"))
    head = tag("tr", tag("td"), [tag("th", _term(METRICS[metric]), scope="col") for metric in metrics])
    return tag(
        "article",
        tag("h3", swatch(run.style), " ", run.label),
        tag("p", _circumstances(run), _badge(run), class_="facts"),
        tag("table", tag("thead", head), tag("tbody", rows)) if rows else tag("p", "Nothing has been measured yet.", class_="note"),
        class_="card",
    )


def _key_row(name: str, detail: str, values: Sequence[float | None]) -> Markup:
    cells = [tag("td", show(value), tag("small", " %") if value is not None else None, class_="big") for value in values]
    return tag("tr", tag("th", name, tag("small", detail), scope="row"), cells)


def _circumstances(run: Run) -> str:
    backbone = (run.facts.get("config") or {}).get("model", {}).get("backbone") or run.main.get("backbone")
    data = (run.facts.get("data") or {}).get("name") or run.main.get("dataset")
    seconds = run.facts.get("seconds")
    return " · ".join(str(fact) for fact in (data, backbone, run.facts.get("device"), duration(seconds) if seconds else None) if fact)


def _badge(run: Run) -> Markup | None:
    if run.facts.get("finished"):
        return None
    return tag("span", f"unfinished: {len(run.measured_tasks)} of {count(run.num_tasks, 'task')} measured", class_="badge")


def _has_boxes(runs: Sequence[Run]) -> bool:
    measured_runs = [run for run in runs if run.measured_tasks]
    return not measured_runs or any(measured(task, "gt_known") is not None for run in measured_runs for task in run.measured_tasks)


def _key_metrics(runs: Sequence[Run]) -> tuple[str, ...]:
    return ("gt_known", "top1_loc") if _has_boxes(runs) else ("top1_cls", "top5_cls")


# 2. Task by task


def over_tasks(runs: Sequence[Run]) -> Markup:
    """Accuracy after each task, and what became of each task's classes."""
    if max(len(run.measured_tasks) for run in runs) < 2:
        return Markup("")
    metrics = _key_metrics(runs)
    curves = [tag("figure", tag("figcaption", METRICS[metric], " after each task"), _accuracy_chart(runs, metric)) for metric in metrics]
    heat = [tag("div", [_heat_table(run, metric) for run in runs], class_="pair") for metric in metrics]
    return join(
        tag("p", "Accuracy over all classes seen so far, in percent. More classes are harder to tell apart, so Top-1 Loc falls a little even when nothing is forgotten."),
        tag("div", curves, class_="pair"),
        tag("h3", "What became of each task’s classes"),
        tag("p", "Each row follows the classes of one task through all later tasks, in percent. A row that fades has been forgotten; the change is counted from the task in which its classes were learned."),
        heat,
    )


def _accuracy_chart(runs: Sequence[Run], metric: str) -> Markup:
    series = [
        Series(run.label, [(task.get("task", i + 1), measured(task, metric)) for i, task in enumerate(run.measured_tasks)], run.style)
        for run in runs
    ]
    last = max(run.num_tasks for run in runs)
    return line_chart(
        series,
        f"{METRICS[metric]} after each task",
        x_label="after task",
        x_ticks=[(t, str(t)) for t in spread(range(1, last + 1), 12)],
        y_range=(0, 100),
        end_values=True,
    )


def _heat_table(run: Run, metric: str) -> Markup | None:
    matrix = group_matrix(run.main, metric)
    if not any(value is not None for row in matrix for value in row):
        return None
    last = len(matrix)
    head = tag("tr", tag("td", "after task"), [tag("th", t, scope="col") for t in range(1, last + 1)], tag("th", "change", scope="col"))
    rows = []
    for j, size in zip(range(last), group_sizes(run.main), strict=False):
        values = [row[j] if j < len(row) else None for row in matrix]
        cells = [tag("td")] * j + [_heat_cell(value) for value in values[j:]]
        change = None if j == last - 1 or values[j] is None or values[-1] is None else values[-1] - values[j]
        sign = "+" if change is not None and round(change, 1) > 0 else ""
        cells.append(tag("td", "" if j == last - 1 else sign + show(change), class_="change"))
        rows.append(tag("tr", tag("th", f"Task {j + 1}", tag("small", count(size, "class", "classes")), scope="row"), cells))
    caption = tag("caption", swatch(run.style), " ", run.label, ", ", METRICS[metric])
    table = tag("table", caption, tag("thead", head), tag("tbody", rows), class_="heat")
    return tag("div", table, class_="scroll", tabindex="0")


def _heat_cell(value: float | None) -> Markup:
    return tag("td", show(value), style=None if value is None else f"--heat:{min(max(value, 0), 100) / 100:.3f}")


# 3. Photos


def photos(runs: Sequence[Run]) -> Markup:
    """The same photos after each task: does the model still find them?"""
    last = max((t for run in runs for t in run.examples), default=0)
    shown = spread(range(1, last + 1), MAX_COLUMNS)
    tiles = len(runs) * len(shown) * (len(shown) + 1) / 2
    per_group = max(1, min(MAX_PHOTOS, int(MAX_TILES / max(tiles, 1))))
    groups = []
    for group in shown:
        rows = [_photo(runs, image, group, shown) for image in _photos_of(runs, group)[:per_group]]
        if rows:
            groups += [tag("h3", f"Classes of task {group}"), *rows]
    if not groups:
        return Markup("")
    key = tag(
        "ul",
        tag("li", tag("i", class_="box predicted"), "predicted box"),
        tag("li", tag("i", class_="box true"), "true box"),
        tag("li", tag("i", class_="ramp"), "heat map, cold to hot"),
        tag("li", _mark(True), "right"),
        tag("li", _mark(False), "wrong"),
        class_="key",
    )
    return join(
        tag("p", "The same test photos after each task, in the order in which the run stored them. Under each photo: the class with the highest score, and the overlap (IoU) of the predicted box with the true one."),
        key,
        groups,
    )


def _photos_of(runs: Sequence[Run], group: int) -> list[str]:
    """Photos of this task's classes, those that most runs share first."""
    shared: dict[str, int] = {}
    for run in runs:
        for image in {e.get("image", ""): None for listed in run.examples.values() for e in listed if e.get("class_task") == group}:
            shared[image] = shared.get(image, 0) + 1
    return sorted(shared, key=lambda image: -shared[image])


def _photo(runs: Sequence[Run], image: str, group: int, tasks: Sequence[int]) -> Markup:
    """One photo: for each run, a strip of tiles over the tasks."""
    strips, label = [], ""
    for run in runs:
        found = {t: next((e for e in run.examples.get(t, []) if e.get("image") == image), None) for t in tasks}
        label = label or next((str(e.get("label", "")) for e in found.values() if e), "")
        before = sum(t < group for t in tasks)
        blank = tag("div", "not yet learned", class_="unknown", style=f"--span:{before}") if before else None
        tiles = tag("div", blank, [_tile(run, found[t], t) for t in tasks[before:]], class_="tiles", tabindex="0")
        who = tag("p", swatch(run.style), " ", run.label) if len(runs) > 1 else None
        strips.append(tag("div", who, tiles, class_="strip", style=f"--tasks:{len(tasks)}"))
    return tag("div", tag("h4", tag("bdi", readable(label))), tag("div", strips, class_="strips"), class_="photo")


def _tile(run: Run, example: dict[str, Any] | None, task: int) -> Markup:
    picture = _picture(run, example) if example else None
    if example is None or picture is None:
        return tag("div", MISSING, class_="unknown")
    label, predicted = str(example.get("label", "")), str(example.get("predicted", ""))
    score, iou = example.get("score"), example.get("iou")
    limit = (run.main.get("protocol") or {}).get("iou", 0.5)
    sure = f" {percent(100 * score, 0)}" if score is not None else ""
    alt = f"{readable(label)} after task {task} ({run.label}): taken for {readable(predicted)}{sure}"
    alt += f", box overlap {iou:.2f}" if iou is not None else ""
    caption = tag(
        "figcaption",
        tag("small", f"after task {task}"),
        tag("span", _mark(label == predicted), tag("bdi", readable(predicted)), sure),
        tag("span", _mark(iou > limit), f"IoU {iou:.2f}") if iou is not None else None,
    )
    return tag("figure", tag("img", src=picture, alt=alt, width=TILE, height=TILE, loading="lazy"), caption)


def _picture(run: Run, example: Mapping[str, Any]) -> str | None:
    """The overlay, or None where a file is missing, damaged, or not in the run folder."""
    root = run.folder.resolve()
    paths = [(root / str(example.get(key))).resolve() for key in ("image", "map")]
    if not all(path.is_relative_to(root) for path in paths):
        return None
    try:
        with Image.open(paths[0]) as photo, Image.open(paths[1]) as heat:
            x, y = TILE / photo.width, TILE / photo.height
            pixels = np.asarray(photo.convert("RGB").resize((TILE, TILE), Image.Resampling.LANCZOS))
            values = np.asarray(heat.convert("L").resize((TILE, TILE), Image.Resampling.BILINEAR), dtype=np.float32) / 255
    except (OSError, ValueError):
        return None
    boxes = [(b[0] * x, b[1] * y, b[2] * x, b[3] * y) for b in [*(example.get("true_boxes") or []), example.get("box")] if b]
    predicted = boxes.pop() if example.get("box") else None
    return data_uri(overlay(pixels, values, predicted, boxes, opacity=0.6))


def _mark(right: bool) -> Markup:
    return tag("b", "✓ " if right else "✗ ", class_="right" if right else "wrong")


# 4. Losses


def losses(runs: Sequence[Run]) -> Markup:
    """One small chart per named loss; the phases of all runs share one axis."""
    names = list(dict.fromkeys(name for run in runs for line in run.metrics for name in line.get("losses") or {}))
    if not names:
        return Markup("")
    slots = _phase_slots(runs)
    tasks = [(task, [spans for _, spans in members]) for task, members in groupby(slots.items(), key=lambda item: item[0][0])]
    ticks = [(statistics.mean((spans[0][0], spans[-1][1])), str(task)) for task, spans in tasks]
    later = [span for (_, phase), span in slots.items() if phase != "main"]
    charts = [
        tag(
            "figure",
            tag("figcaption", tag("code", name)),
            line_chart(
                [Series(run.label, _loss_points(run, name, slots), run.style) for run in runs],
                f"Loss {name} over the epochs of all tasks",
                x_ticks=[ticks[i] for i in spread(range(len(ticks)), 10)],
                x_range=(0, max(end for _, end in slots.values())),
                bands=later,
                dividers=[spans[0][0] for _, spans in tasks[1:]],
                markers=False,
                legend=False,
                width=300,
                height=190,
            ),
        )
        for name in names
    ]
    phases = list(dict.fromkeys(phase for _, phase in slots if phase != "main"))
    shaded = f" Shaded: the phase{'s' if len(phases) > 1 else ''} {_listing([f'“{phase}”' for phase in phases])} that follow{'' if len(phases) > 1 else 's'} the main one." if phases else ""
    who = tag("ul", [tag("li", swatch(run.style), run.label) for run in runs], class_="key") if len(runs) > 1 else None
    return join(
        tag("p", f"Each named loss, weighted as it enters the sum, epoch by epoch. The numbers below each chart are the tasks.{shaded}"),
        who,
        tag("div", charts, class_="multiples"),
    )


def _phase_slots(runs: Sequence[Run]) -> dict[tuple[int, str], tuple[float, float]]:
    """Give each (task, phase) its own stretch of the common axis, as long as its longest run."""
    longest: dict[tuple[int, str], int] = {}
    for run in runs:
        for line in run.metrics:
            key = (line["task"], line["phase"])
            longest[key] = max(longest.get(key, 1), line["epoch"])
    slots, start = {}, 0.0
    for key in sorted(longest, key=lambda slot: slot[0]):  # stable: phases stay in the order in which they ran
        slots[key] = (start, start + longest[key])
        start += longest[key]
    return slots


def _loss_points(run: Run, name: str, slots: Mapping[tuple[int, str], tuple[float, float]]) -> list[tuple[float, float | None]]:
    points: list[tuple[float, float | None]] = []
    for key, lines in groupby(run.metrics, key=lambda line: (line["task"], line["phase"])):
        start = slots[key][0]
        points += [(start + line["epoch"] - 0.5, line["losses"][name]) for line in lines if name in (line.get("losses") or {})]
        points.append((start, None))
    return points


# 5. All numbers


def numbers(runs: Sequence[Run]) -> Markup:
    measured_runs = [run for run in runs if run.results]
    if not measured_runs:
        return Markup("")
    named = {_result_label(run, name, results): results for run in measured_runs for name, results in run.results.items()}
    compared = to_html(summary_table(named), "Side by side; average over the tasks, all else after the last one") if len(named) > 1 else None
    protocols = {label: _protocol(results) for label, results in named.items()}
    common = len(set(protocols.values())) == 1
    full = []
    for label, results in named.items():
        table = results_table({label: results})
        full += [tag("h3", label), to_html(table.select(range(1, len(table.columns)))), None if common else protocols[label]]
    note = "All in percent, forgetting in percentage points. Old and new: the classes of all earlier tasks, and those of the task just learned; groups of old classes are averaged with their number of classes as weights."
    return join(tag("p", note), next(iter(protocols.values())) if common else None, compared, full)


def protocol_in_words(protocol: Mapping[str, Any]) -> str:
    """How the numbers came about, for a reader who does not know the settings' names."""
    words = []
    maps = {"class": "the map of the true class", "topk-mean": _topk_words(protocol.get("topk"))}
    scales = {"minmax": ", scaled from its lowest value to its highest,", "max": ", divided by its highest value,"}
    crops = {1: "the centre crop", 2: "the centre crop and its mirror image", 10: "ten crops"}
    if "map" in protocol:
        source = f" (from {protocol['threshold_source']})" if protocol.get("threshold_source") else ""
        scale = scales.get(protocol.get("normalization", ""), "")
        words.append(f"The box encloses the largest region in which {maps.get(protocol['map'], protocol['map'])}{scale} exceeds {protocol.get('threshold')}{source}.")
    if "iou" in protocol:
        pixels = ", counting both border pixels" if protocol.get("inclusive_pixels") else ""
        words.append(f"It is right if its overlap (IoU{pixels}) with a true box is above {protocol['iou']}.")
    if "frame" in protocol:
        words.append("The model sees the centre crop, and true boxes are clipped to it." if protocol["frame"] == "crop" else "The model sees the whole photo.")
    if "crops" in protocol:
        words.append(f"The class score is the mean over {crops.get(protocol['crops'], protocol['crops'])}." if protocol["crops"] != 1 else "The class score is that of the centre crop.")
    if "average" in protocol:
        words.append("Percentages are means over classes." if protocol["average"] == "class" else "Percentages are means over photos.")
    return " ".join(words)


def _topk_words(topk: int | None) -> str:
    return f"the mean map of the {topk} classes with the highest scores" if topk else "the mean map of all classes"


def _result_label(run: Run, name: str, results: Mapping[str, Any]) -> str:
    kind = (results.get("protocol") or {}).get("map") or name
    return f"{run.label}, {kind} map" if len(run.results) > 1 else run.label


def _protocol(results: Mapping[str, Any]) -> Markup | None:
    words = protocol_in_words(results.get("protocol") or {})
    return tag("p", tag("b", "How it was measured. "), words) if words else None


# 6. How it was made


def making(runs: Sequence[Run]) -> Markup:
    return join([tag("article", tag("h3", swatch(run.style), " ", run.label), _facts(run), _folded(run), class_="making") for run in runs])


def _facts(run: Run) -> Markup:
    facts, data = run.facts, run.facts.get("data") or {}
    speeds = [line["images_per_second"] for line in run.metrics if line.get("images_per_second")]
    peak = max((line["gpu_memory_mb"] for line in run.metrics if line.get("gpu_memory_mb")), default=None)
    counts = [f"{data[key]:,} {name}" for key, name in (("num_train", "training photos"), ("num_test", "test photos")) if data.get(key) is not None]
    rows = {
        "Command": tag("code", shlex.join(map(str, facts["command"]))) if facts.get("command") else None,
        "Commit": tag("code", facts["commit"]) if facts.get("commit") else None,
        "Seed": facts.get("seed"),
        "Device": facts.get("device"),
        "Started": moment(facts["started"]) if facts.get("started") else None,
        "Duration": duration(facts["seconds"]) if facts.get("seconds") else "not finished",
        "Resumed": ", ".join(moment(note.get("time")) for note in facts.get("resumed") or []) or None,
        "Speed": f"{statistics.median(speeds):,.0f} images/s (median over epochs)" if speeds else None,
        "GPU memory": f"{peak / 1024:.1f} GiB at most" if peak else None,
        "Memory of old photos": f"{facts['memory_images']:,} photos" if facts.get("memory_images") is not None else None,
        "Data": ", ".join(filter(None, (str(data.get("name") or ""), *counts))) or None,
        "Data fingerprint": tag("code", data["fingerprint"]) if data.get("fingerprint") else None,
        "Versions": ", ".join(f"{name} {version}" for name, version in (facts.get("versions") or {}).items()) or None,
    }
    return tag("dl", [join(tag("dt", name), tag("dd", value)) for name, value in rows.items() if value is not None], class_="facts-list")


def _folded(run: Run) -> Markup:
    """Long lists that only some readers want."""
    tasks, broken = run.facts.get("tasks") or [], (run.facts.get("data") or {}).get("broken") or []
    config = yaml.safe_dump(run.facts["config"], sort_keys=False, allow_unicode=True) if run.facts.get("config") else None
    classes = [tag("li", _comma_names(names)) for names in tasks]
    return join(
        tag("details", tag("summary", "Settings"), tag("pre", config, tabindex="0")) if config else None,
        tag("details", tag("summary", "Classes, task by task"), tag("ol", classes, class_="classes")) if classes else None,
        tag("details", tag("summary", f"Unreadable files: {len(broken)}"), tag("ul", [tag("li", str(item)) for item in broken])) if broken else None,
    )


def _comma_names(names: Iterable[str]) -> Markup:
    parts: list[object] = []
    for name in names:
        parts += [", " if parts else None, tag("bdi", readable(name))]
    return join(parts)


# Words and numbers


def count(amount: int, one: str, many: str | None = None) -> str:
    return f"{amount} {one if amount == 1 else many or one + 's'}"


def percent(value: float | None, digits: int = 1) -> str:
    return MISSING if value is None else f"{show(value, digits)}\xa0%"


def duration(seconds: float) -> str:
    """41 s, 12 min, 3 h 05 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def moment(text: Any) -> str:
    """15 November 2026, 20:11 UTC."""
    try:
        return datetime.fromisoformat(str(text)).strftime("%-d %B %Y, %H:%M %Z").strip()
    except ValueError:
        return str(text)


def readable(name: str) -> str:
    """A class name as a person would write it: without a data set's three-digit number and underscores."""
    return re.sub(r"^\d{3}\.", "", str(name)).replace("_", " ")


def spread(values: Sequence[int], most: int) -> list[int]:
    """At most `most` of the values, evenly spaced, first and last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _listing(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _task_span(last: int) -> str:
    return "task\xa01" if last == 1 else f"tasks\xa01–{last}"


def _term(name: str) -> Markup:
    meaning = GLOSSARY.get(name)
    return tag("abbr", name, title=meaning) if meaning else join(name)
