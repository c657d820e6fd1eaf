"""A group of settings: a frozen dataclass whose numbers are checked where they are declared."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from fdcnet.errors import UserError


@dataclass(frozen=True)
class Range:
    """Limits of a number; None: no limit."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None

    def holds(self, value: float) -> bool:
        return (
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
        )

    def __str__(self) -> str:
        words = {"above": "more than", "at_least": "at least", "below": "less than", "at_most": "at most"}
        limits = [f"{text} {getattr(self, name):g}" for name, text in words.items() if getattr(self, name) is not None]
        return " and ".join(limits)


def number(default: Any, **limits: float) -> Any:
    """A field with limits: `number(0.5, above=0, at_most=1)`."""
    return dataclasses.field(default=default, metadata={"range": Range(**limits)})


def check_range(field: "dataclasses.Field[Any]", value: Any, key: str) -> None:
    """Refuse a number outside of the limits of its field."""
    limits: Range | None = field.metadata.get("range")
    if limits and value is not None and not limits.holds(value):
        raise UserError(f"{key} cannot be {value:g}.", f"Set it to {limits}.")


@dataclass(frozen=True)
class Section:
    """Base class of all groups of settings, those of methods included."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_range(field, getattr(self, field.name), field.name)
