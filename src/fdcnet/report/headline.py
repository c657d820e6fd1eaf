"""The head of the report: what was learned, and the numbers that matter, for each run."""

from collections.abc import Sequence

from fdcnet.errors import count
from fdcnet.report.charts import swatch
from fdcnet.report.markup import Markup, join, tag
from fdcnet.report.runs import Run, key_metrics
from fdcnet.report.tables import METRICS, group_sizes, measured, old_and_new, show
from fdcnet.report.words import classes, duration, glossary, listing, percent, term


def task_line(runs: Sequence[Run]) -> str:
    num_classes, num_tasks = max((run.num_classes, run.num_tasks) for run in runs)
    return f"{classes(num_classes)} learned in {count(num_tasks, 'task')}"


def verdict(runs: Sequence[Run]) -> Markup:
    """What was done and how it ended in two sentences, made from the record alone."""
    names = list(dict.fromkeys(str(run.data_name) for run in runs if run.data_name))
    photos = f"the photos of the data set{'s' if len(names) > 1 else ''} {listing(names)}" if names else "photos"
    pace = ", task after task" if runs[0].num_tasks > 1 else ""
    learned = f"The model learned from {photos} and their class names alone{pace}; it was never shown a box."
    return tag("p", f"{learned} {_outcome(runs)}", class_="lead")


def headline(runs: Sequence[Run]) -> Markup:
    metrics = key_metrics(runs)
    unmeasured = "The test photos have no boxes, so localization could not be measured."
    return join(
        tag("div", [_card(run, metrics) for run in runs], class_="cards"),
        None if "gt_known" in metrics else tag("p", unmeasured, class_="note"),
        glossary(),
    )


def _outcome(runs: Sequence[Run]) -> str:
    metric = "top1_loc" if "top1_loc" in key_metrics(runs) else "top1_cls"
    finds, things = ("names and finds", "objects") if metric == "top1_loc" else ("recognises", "photos")
    known = [(run.label, *old_and_new(run.main, metric)) for run in runs]
    old = [(label, percent(value)) for label, value, _ in known if value is not None]
    complete = all(len(run.measured_tasks) == run.num_tasks for run in runs)
    when = "After the last task" if complete else "So far"
    if old and len(runs) > 1:
        (first, share), *others = old
        parts = [f"{first} still {finds} {share} of the {things} of old classes"]
        return f"{when}, {listing(parts + [f'{label} {share}' for label, share in others])}."
    if old:
        new = percent(known[0][2])
        return f"{when}, it {finds} {old[0][1]} of the {things} of old classes and {new} of the new ones."
    parts = [f"{label} {finds} {percent(value)} of the {things}" for label, _, value in known if value is not None]
    return f"{listing(parts)}." if parts else ""


def _card(run: Run, metrics: Sequence[str]) -> Markup:
    rows = _rows(run, metrics)
    head = tag("tr", tag("td"), [tag("th", term(METRICS[metric]), scope="col") for metric in metrics])
    numbers = tag("table", tag("thead", head), tag("tbody", rows))
    return tag(
        "article",
        tag("h3", swatch(run.style), " ", run.label),
        tag("p", _circumstances(run), _badge(run), class_="facts"),
        numbers if rows else tag("p", "Nothing has been measured yet.", class_="note"),
        class_="card",
    )


def _rows(run: Run, metrics: Sequence[str]) -> list[Markup]:
    sizes = group_sizes(run.main)
    if not sizes:
        return []
    if len(sizes) == 1:
        return [_row("All classes", classes(sizes[0]), [measured(run.measured_tasks[0], metric) for metric in metrics])]
    old, new = zip(*(old_and_new(run.main, metric) for metric in metrics), strict=True)
    old_tasks = "task\xa01" if len(sizes) == 2 else f"tasks\xa01–{len(sizes) - 1}"
    lost = [measured(run.main.get("forgetting"), metric) for metric in metrics]
    points = [tag("td", show(value), None if value is None else tag("small", " points")) for value in lost]
    return [
        _row("Old classes", f"{classes(sum(sizes[:-1]))}, {old_tasks}", old),
        _row("New classes", f"{classes(sizes[-1])}, task\xa0{len(sizes)}", new),
        tag("tr", tag("th", term("Forgetting"), scope="row"), points, class_="minor"),
    ]


def _row(name: str, detail: str, values: Sequence[float | None]) -> Markup:
    cells = [tag("td", show(value), None if value is None else tag("small", " %"), class_="big") for value in values]
    return tag("tr", tag("th", name, tag("small", detail), scope="row"), cells)


def _circumstances(run: Run) -> str:
    time = duration(run.facts["seconds"]) if run.facts.get("seconds") else None
    return " · ".join(str(fact) for fact in (run.data_name, run.backbone, run.facts.get("device"), time) if fact)


def _badge(run: Run) -> Markup | None:
    if run.facts.get("finished"):
        return None
    done = f"unfinished: {len(run.measured_tasks)} of {count(run.num_tasks, 'task')} measured"
    return tag("span", done, class_="badge")
