"""Writes the tables of settings.md from the settings themselves: `python docs/settings_page.py`."""

import ast
import dataclasses
import inspect
import io
import re
import textwrap
import tokenize
from pathlib import Path

import yaml

from fdcnet.config import Config, load

PAGE = Path(__file__).with_name("settings.md")
MARK = "<!-- generated from here on by settings_page.py -->\n"


def tables(config: Config) -> str:
    """A table for each group: setting, default, meaning, source."""
    groups = {"": config} | dict(groups_of(config))
    for name, section in config.sections.items():
        groups |= {f"{name}.": section} | dict(groups_of(section, f"{name}."))
    return "\n".join(table(prefix, group) for prefix, group in groups.items())


def groups_of(group: object, prefix: str = "") -> list[tuple[str, object]]:
    found = []
    for field in dataclasses.fields(group):  # type: ignore[arg-type]
        value = getattr(group, field.name)
        if field.name == "protocols":
            found.append(("protocols.0.", value[0]))
        elif dataclasses.is_dataclass(value):
            found += [(f"{prefix}{field.name}.", value), *groups_of(value, f"{prefix}{field.name}.")]
    return found


def table(prefix: str, group: object) -> str:
    lines = [
        f"### {prefix.rstrip('.') or 'top level'}\n",
        "| setting | default | meaning | source |",
        "|---|---|---|---|",
    ]
    for name, (meaning, source) in notes(type(group)).items():
        value = getattr(group, name)
        if dataclasses.is_dataclass(value) or name in ("protocols", "sections"):
            continue
        default = yaml.safe_dump(list(value) if isinstance(value, tuple) else value, default_flow_style=True)
        source = source if value == getattr(type(group)(), name) else ""  # of another default
        lines.append(f"| `{prefix}{name}` | `{default.removesuffix('...' + chr(10)).strip()}` | {meaning} | {source} |")
    return "\n".join(lines) + "\n"


def notes(kind: type) -> dict[str, tuple[str, str]]:
    """For each field the text below it and the comment beside it."""
    source = textwrap.dedent(inspect.getsource(kind))
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    [body] = [node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    found = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            lines = range(node.lineno, (after.end_lineno if text else node.end_lineno) + 1)  # type: ignore[union-attr, operator]
            beside = " ".join(comments[line] for line in lines if line in comments)
            found[node.target.id] = " ".join(str(text).split()).replace("|", "\\|"), beside
    return found


def page() -> str:
    written = PAGE.read_text(encoding="utf-8")
    return re.sub(rf"(?s){MARK}.*", MARK, written) + "\n" + tables(load())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
