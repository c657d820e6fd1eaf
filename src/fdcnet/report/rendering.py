"""Jinja2 templates of the report. Every value is escaped, whatever a class or file name contains."""

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fdcnet.report import text

UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")


def render(template: str, **values: Any) -> Markup:
    return Markup(ENVIRONMENT.get_template(template).render(values).strip())


def source(name: str) -> str:
    """The text of a file in `templates`, such as the style sheet."""
    assert ENVIRONMENT.loader is not None
    return ENVIRONMENT.loader.get_source(ENVIRONMENT, name)[0]


def printable(value: object) -> object:
    """Replace characters that a well-formed page cannot contain, such as those of a file name that is not UTF-8."""
    if value is None or hasattr(value, "__html__"):
        return "" if value is None else value
    return UNPRINTABLE.sub("\ufffd", str(value).encode("utf-8", "replace").decode())


ENVIRONMENT = Environment(
    loader=PackageLoader("fdcnet.report"),
    autoescape=True,
    finalize=printable,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters["show"] = text.show
ENVIRONMENT.globals |= {"GLOSSARY": text.GLOSSARY, "MISSING": text.MISSING}
