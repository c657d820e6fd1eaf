"""The end of the report: every number, how it was measured, and all that is needed to do it again."""

import shlex
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from fdcnet.errors import count
from fdcnet.report.charts import swatch
from fdcnet.report.comparable import first_task
from fdcnet.report.markup import Markup, join, tag
from fdcnet.report.runs import Run, all_results
from fdcnet.report.tables import results_table, summary_table, to_html
from fdcnet.report.words import duration, moment, protocol_in_words, readable


def numbers(runs: Sequence[Run]) -> Markup:
    named = all_results(runs)
    if not named:
        return Markup("")
    protocols = {label: _protocol(results) for label, results in named.items()}
    common = next(iter(protocols.values())) if len(set(protocols.values())) == 1 else None
    caption = "Side by side: average over the tasks, all else after the last one"
    full = []
    for label, results in named.items():
        table = results_table({label: results})
        own = to_html(table.select(range(1, len(table.columns))))
        full += [tag("h3", label), own, None if common else protocols[label]]
    return join(
        tag(
            "p",
            "All in percent, forgetting in percentage points. Old and new: the classes of all earlier tasks, and those "
            "of the task just learned; groups of old classes are averaged with their number of classes as weights.",
        ),
        common,
        to_html(summary_table(named), caption) if len(named) > 1 else None,
        full,
    )


def making(runs: Sequence[Run]) -> Markup:
    return join(
        tag("article", tag("h3", swatch(run.style), " ", run.label), _facts(run), _folded(run), class_="making")
        for run in runs
    )


def _protocol(results: Mapping[str, Any]) -> Markup | None:
    said = protocol_in_words(results.get("protocol") or {})
    return tag("p", tag("b", "How it was measured. "), said) if said else None


def _facts(run: Run) -> Markup:
    facts, data = run.facts, run.facts.get("data") or {}
    speeds = [line["images_per_second"] for line in run.metrics if line.get("images_per_second")]
    peak = max((line["gpu_memory_mb"] for line in run.metrics if line.get("gpu_memory_mb")), default=None)
    kinds = (("num_train", "training photo"), ("num_test", "test photo"))
    photos = [count(data[key], kind) for key, kind in kinds if data.get(key) is not None]
    resumed = [moment(note.get("time")) for note in facts.get("resumed") or []]
    versions = [f"{name} {version}" for name, version in (facts.get("versions") or {}).items()]
    memory = facts.get("memory_images")
    rows = {
        "Command": tag("code", shlex.join(map(str, facts["command"]))) if facts.get("command") else None,
        "First task": _first_task(facts),
        "Commit": tag("code", facts["commit"]) if facts.get("commit") else None,
        "Seed": facts.get("seed"),
        "Device": facts.get("device"),
        "Started": moment(facts["started"]) if facts.get("started") else None,
        "Resumed": ", ".join(resumed) or None,
        "Duration": duration(facts["seconds"]) if facts.get("seconds") else "not finished",
        "Speed": f"{statistics.median(speeds):,.0f} images/s (median over epochs)" if speeds else None,
        "Phases": _phases(run) or None,
        "GPU memory": f"{peak / 1000:.1f} GB at most" if peak else None,
        "Memory of old photos": count(memory, "photo") if memory is not None else None,
        "Data": ", ".join([str(name) for name in [run.data_name] if name] + photos) or None,
        "Data fingerprint": tag("code", data["fingerprint"]) if data.get("fingerprint") else None,
        "Versions": ", ".join(versions) or None,
    }
    shown = [join(tag("dt", name), tag("dd", value)) for name, value in rows.items() if value is not None]
    return tag("dl", shown, class_="facts-list")


def _first_task(facts: Mapping[str, Any]) -> Markup | None:
    """Where it came from, if another run has learned it."""
    if not facts.get("base_model"):
        return None
    other = ", ".join(f"{key} {value}" for key, value in first_task(facts).items())
    return join("taken over from ", tag("code", facts["base_model"]), f", learned with {other}" if other else None)


def _phases(run: Run) -> str:
    """What each phase costs, over all tasks: main 12 min (25.1 M parameters), drift 41 s (19.9 M parameters)."""
    said = []
    for name in dict.fromkeys(line["phase"] for line in run.metrics if "parameters" in line):
        lines = [line for line in run.metrics if line["phase"] == name and "parameters" in line]
        millions = max(line["parameters"] for line in lines) / 1e6
        said.append(f"{name} {duration(sum(line['seconds'] for line in lines))} ({millions:.1f} M parameters)")
    return ", ".join(said)


def _folded(run: Run) -> Markup:
    """Long lists that only some readers want."""
    tasks, broken = run.facts.get("tasks") or [], (run.facts.get("data") or {}).get("broken") or []
    config = run.facts.get("config")
    settings = tag("pre", yaml.safe_dump(config, sort_keys=False, allow_unicode=True), tabindex="0") if config else None
    classes = tag("ol", [tag("li", _names(names)) for names in tasks], class_="classes") if tasks else None
    unread = tag("ul", [tag("li", item) for item in broken]) if broken else None
    lists = {"Settings": settings, "Classes, task by task": classes, f"Unreadable files: {len(broken)}": unread}
    return join(tag("details", tag("summary", name), shown) for name, shown in lists.items() if shown)


def _names(names: Sequence[str]) -> Markup:
    return join([", " if i else None, tag("bdi", readable(name))] for i, name in enumerate(names))
