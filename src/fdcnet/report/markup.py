"""HTML and SVG that are safe by construction: text is escaped, and only `tag` makes markup."""

import html
import re
from collections.abc import Generator

VOID = {"img", "meta", "br", "path", "line", "rect", "circle"}
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")


class Markup(str):
    """Text that is already markup and must not be escaped again."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """Any text, also from a file name that is not UTF-8, as text of a well-formed page."""
    text = str(value).encode("utf-8", "replace").decode()
    return Markup(html.escape(UNPRINTABLE.sub("\ufffd", text)))


def join(*children: object) -> Markup:
    """Lists and generators are flattened, None is left out, and everything that is not markup is escaped."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, (list, tuple, Generator)):
            parts.append(join(*child))
        elif child is not None:
            parts.append(escape(child))
    return Markup("".join(parts))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element. `class_` stands for class, `stroke_width` for stroke-width; None and False leave an attribute out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{"" if value is True else escape(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")
