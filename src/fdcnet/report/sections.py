"""The sections of the report of one or more runs and of a comparison, one function each.

Each function prepares the content of the template of the same name in `templates/sections`. It returns empty markup if
there is nothing to show. The sections with photos are in `photos`.
"""

import shlex
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from markupsafe import Markup

from fdcnet.errors import count
from fdcnet.report.comparable import differing_settings, first_task
from fdcnet.report.curves import accuracy_curve, forgetting_curve, loss_curve, phase_slots, points_lost
from fdcnet.report.rendering import render
from fdcnet.report.runs import Run, all_results, key_metrics
from fdcnet.report.tables import (
    METRICS,
    Table,
    at_once,
    comparison_table,
    group_matrix,
    group_sizes,
    measured,
    old_and_new,
    results_table,
    summary_table,
    to_html,
)
from fdcnet.report.text import LOSSES, classes, duration, listing, moment, protocol_in_words, readable, show


class Row(NamedTuple):
    """A row of a table: its name, a detail below the name, and its numbers."""

    name: str
    detail: str
    numbers: Sequence[float | None]


def result(runs: Sequence[Run]) -> Markup:
    """The headline numbers of each run."""
    metrics = key_metrics(runs)
    cards = [
        {
            "run": run,
            "facts": _circumstances(run),
            "unfinished": None if run.facts.get("finished") else _progress(run),
            "rows": _headline(run, metrics),
            "forgetting": [measured(run.main.get("forgetting"), metric) for metric in metrics],
        }
        for run in runs
    ]
    return render(
        "sections/result.html",
        cards=cards,
        names=[METRICS[metric] for metric in metrics],
        has_boxes="gt_known" in metrics,
        unmeasured=any(_has_unmeasured(_headline(run, metrics)) for run in runs),
    )


def lessons(runs: Sequence[Run]) -> Markup:
    """The versions of models made by `fdcnet learn`: what each lesson added, and how well it went."""
    tables = [(run, to_html(_lesson_table(own), digits=1)) for run in runs if (own := run.facts.get("lessons"))]
    return render("sections/lessons.html", tables=tables, several=len(runs) > 1) if tables else Markup("")


def tasks(runs: Sequence[Run]) -> Markup:
    """Accuracy after each task, and how the accuracy on each task's classes changed."""
    if max(len(run.measured_tasks) for run in runs) < 2:
        return Markup("")
    heat = [[table for run in runs if (table := _heat_table(run, metric))] for metric in key_metrics(runs)]
    if len(runs) == 1:
        heat = [[table for tables in heat for table in tables]]
    return render("sections/tasks.html", charts=_accuracy_charts(runs), joint="", heat=heat)


def comparison(runs: Sequence[Run]) -> Markup:
    """The main table of a comparison."""
    caption = "In percent; forgetting in percentage points. Average: over the tasks. Last: after the last task."
    if any(at_once(run.main) for run in runs):
        caption += " Below joint: how far the run ends below training on all classes at once."
    if any("seeds" in run.main for run in runs):
        caption += " Several seeds: mean ± standard deviation; curves show the mean, photos the first seed."
    table = to_html(comparison_table({run.label: run.main for run in runs}), caption)
    return render("sections/comparison.html", table=table, protocol=_shared_protocol(runs))


def accuracy(runs: Sequence[Run]) -> Markup:
    """Accuracy after each task, without a table for each run."""
    joint = listing([run.label for run in runs if at_once(run.main)] or [""])
    return render("sections/tasks.html", charts=_accuracy_charts(runs), joint=joint, heat=[])


def forgetting(runs: Sequence[Run]) -> Markup:
    metrics = key_metrics(runs)
    curves = [(f"{METRICS[metric]}: points lost", forgetting_curve(runs, metric)) for metric in metrics]
    charts = [(caption, chart) for caption, chart in curves if chart]
    if not charts:
        return Markup("")
    lost = [(METRICS[metric], [(run, points_lost(run, metric)) for run in runs]) for metric in metrics]
    rows = {name: [(run, row) for run, row in found if any(value is not None for value in row)] for name, found in lost}
    return render("sections/forgetting.html", charts=charts, tables={k: v for k, v in rows.items() if v})


def losses(runs: Sequence[Run]) -> Markup:
    """One small chart per loss. The phases of all runs share one axis."""
    names = list(dict.fromkeys(name for run in runs for line in run.metrics for name in line.get("losses") or {}))
    if not names:
        return Markup("")
    slots = phase_slots(runs)
    charts = [(name, LOSSES.get(name), loss_curve(runs, name, slots)) for name in names]
    phases = list(dict.fromkeys(f"“{phase}”" for _, phase in slots if phase != "main"))
    return render("sections/losses.html", runs=runs, charts=charts, shaded=listing(phases or [""]), num=len(phases))


def numbers(runs: Sequence[Run]) -> Markup:
    """Every number of the results, and how they were measured."""
    named = all_results(runs)
    if not named:
        return Markup("")
    protocols = {label: protocol_in_words(_applied_protocol(results)) for label, results in named.items()}
    shared = next(iter(protocols.values())) if len(set(protocols.values())) == 1 else None
    caption = "Side by side: average over the tasks, all other columns after the last task"
    tables = [
        (label, to_html(_without_run(results_table({label: results}))), None if shared else protocols[label])
        for label, results in named.items()
    ]
    summary = to_html(summary_table(named), caption) if len(named) > 1 else None
    return render("sections/numbers.html", protocol=shared, summary=summary, tables=tables)


def _applied_protocol(results: Mapping[str, Any]) -> dict[str, Any]:
    """Without what applies to true boxes, if there were none."""
    has_boxes = any(task.get("gt_known") is not None for task in results.get("tasks") or [])
    skipped = () if has_boxes else ("iou",)
    return {key: value for key, value in (results.get("protocol") or {}).items() if key not in skipped}


def making(runs: Sequence[Run]) -> Markup:
    """Everything needed to repeat each run."""
    return render("sections/making.html", runs=[_made(run) for run in runs])


def differences(runs: Sequence[Run]) -> Markup:
    """Settings that differ between the runs of a comparison."""
    if len([run for run in runs if run.facts.get("config")]) < 2:
        return Markup("")
    return render("sections/differences.html", runs=runs, settings=differing_settings(runs))


def _shared_protocol(runs: Sequence[Run]) -> str:
    """How all runs were measured, then what was different for some of them."""
    shared = {key: value for key, value in runs[0].protocol.items() if all(r.protocol.get(key) == value for r in runs)}
    said = [protocol_in_words(shared)]
    for run in runs:
        own = protocol_in_words({key: value for key, value in run.protocol.items() if key not in shared})
        said += [f"{run.label}: {own}"] if own else []
    return " ".join(said)


def _headline(run: Run, metrics: Sequence[str]) -> list[Row]:
    sizes = group_sizes(run.main)
    if not sizes:
        return []
    if len(sizes) == 1:
        return [Row("All classes", classes(sizes[0]), [measured(run.measured_tasks[0], metric) for metric in metrics])]
    old, new = zip(*(old_and_new(run.main, metric) for metric in metrics), strict=True)
    old_tasks = "task\xa01" if len(sizes) == 2 else f"tasks\xa01–{len(sizes) - 1}"
    return [
        Row("Old classes", f"{classes(sum(sizes[:-1]))}, {old_tasks}", old),
        Row("New classes", f"{classes(sizes[-1])}, task\xa0{len(sizes)}", new),
    ]


def _has_unmeasured(rows: Sequence[Row]) -> bool:
    """Whether old or new classes have no test photos, but the others do."""
    return {set(row.numbers) == {None} for row in rows} == {True, False}


def _lesson_table(lessons: Sequence[Mapping[str, Any]]) -> Table:
    kinds = (("old_before", "old, before"), ("old_after", "old, after"), ("new_after", "new"))
    metrics = ("top1_cls", "gt_known")
    columns = [("Version", ""), ("Learned", ""), ("Classes", ""), ("Added", ""), ("Time", "")]
    columns += [(METRICS[metric], name) for metric in metrics for _, name in kinds]
    rows = []
    for lesson in lessons:
        added = [readable(name) for name in lesson["added"]]
        added += [f"more photos of {readable(name)}" for name in lesson.get("more") or []]
        added += [lesson["box_training"]] if lesson.get("box_training") else []
        version = f"{lesson['number']}{' (current)' if lesson['current'] else ''}"
        facts = (version, moment(lesson["created"]), lesson["num_classes"], ", ".join(added))
        time = duration(lesson["seconds"]) if lesson.get("seconds") else ""
        rows.append((*facts, time, *(measured(lesson.get(key), metric) for metric in metrics for key, _ in kinds)))
    return Table(tuple(columns), tuple(rows)).without_empty_columns()


def _circumstances(run: Run) -> str:
    time = duration(run.facts["seconds"]) if run.facts.get("seconds") else None
    return " · ".join(str(fact) for fact in (run.data_name, run.backbone, run.facts.get("device"), time) if fact)


def _progress(run: Run) -> str:
    return f"unfinished: {len(run.measured_tasks)} of {count(run.num_tasks, 'task')} evaluated"


def _accuracy_charts(runs: Sequence[Run]) -> list[tuple[str, Markup]]:
    return [(f"{METRICS[metric]} after each task", accuracy_curve(runs, metric)) for metric in key_metrics(runs)]


def _heat_table(run: Run, metric: str) -> dict[str, Any] | None:
    matrix = group_matrix(run.main, metric)
    if all(value is None for row in matrix for value in row):
        return None
    histories = [[row[t] for row in matrix[t:]] for t in range(len(matrix))]
    rows = [
        (Row(f"Task {t}", classes(size), history), _change(history))
        for t, (size, history) in enumerate(zip(group_sizes(run.main), histories, strict=False), 1)
    ]
    return {"run": run, "metric": METRICS[metric], "rows": rows}


def _change(history: Sequence[float | None]) -> str:
    first, last = history[0], history[-1]
    change = "" if len(history) == 1 or first is None or last is None else show(last - first)
    return f"+{change}" if change and not change.startswith("−") and float(change) else change


def _without_run(table: Table) -> Table:
    return table.select(range(1, len(table.columns)))


def _made(run: Run) -> dict[str, Any]:
    facts, data = run.facts, run.facts.get("data") or {}
    code = {
        "Command": shlex.join(map(str, facts["command"])) if facts.get("command") else None,
        "Commit": facts.get("commit"),
        "First task taken from": facts.get("base_model"),
        "Data fingerprint": data.get("fingerprint"),
    }
    speeds = [line["images_per_second"] for line in run.metrics if line.get("images_per_second")]
    peak = max((line["gpu_memory_mb"] for line in run.metrics if line.get("gpu_memory_mb")), default=None)
    kinds = (("num_train", "training photo"), ("num_test", "test photo"))
    photos = [count(data[key], kind) for key, kind in kinds if data.get(key) is not None]
    base = [f"{key} {value}" for key, value in first_task(facts).items()] if facts.get("base_model") else []
    memory, is_model = facts.get("memory_images"), bool(facts.get("model"))
    time = duration(facts["seconds"]) if facts.get("seconds") else _unfinished(facts)
    plain = {
        "Settings of the first task": ", ".join(base),
        "Seed": facts.get("seed"),
        "Device": facts.get("device"),
        "Evaluated" if is_model else "Started": moment(facts["started"]) if facts.get("started") else None,
        "Resumed": ", ".join(moment(note.get("time")) for note in facts.get("resumed") or []),
        "Time of all lessons" if is_model else "Duration": time,
        "Speed": f"{statistics.median(speeds):,.0f} images/s (median over epochs)" if speeds else None,
        "Phases": _phases(run),
        "GPU memory": f"{peak / 1000:.1f} GB at most" if peak else None,
        "Exemplar memory": count(memory, "photo") if memory is not None else None,
        "Data": ", ".join([str(name) for name in [run.data_name] if name] + photos),
        "Versions": ", ".join(f"{name} {version}" for name, version in (facts.get("versions") or {}).items()),
    }
    config = facts.get("config")
    return {
        "run": run,
        "code": {name: value for name, value in code.items() if value},
        "facts": {name: value for name, value in plain.items() if value not in (None, "")},
        "settings": yaml.safe_dump(config, sort_keys=False, allow_unicode=True) if config else None,
        "tasks": [[readable(name) for name in names] for names in facts.get("tasks") or []],
    }


def _unfinished(facts: Mapping[str, Any]) -> str:
    return "" if facts.get("finished") else "not finished"


def _phases(run: Run) -> str:
    """What each phase cost over all tasks: main 12 min (25.1 M parameters), drift 41 s (19.9 M parameters)."""
    said = []
    for name in dict.fromkeys(line["phase"] for line in run.metrics if "parameters" in line):
        lines: list[Mapping[str, Any]] = [
            line for line in run.metrics if line["phase"] == name and "parameters" in line
        ]
        millions = max(line["parameters"] for line in lines) / 1e6
        said.append(f"{name} {duration(sum(line['seconds'] for line in lines))} ({millions:.1f} M parameters)")
    return ", ".join(said)
