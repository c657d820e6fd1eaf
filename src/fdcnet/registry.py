"""Names of parts (methods, backbones, data formats) and where each lives, so that listing them imports nothing."""

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fdcnet.errors import UserError
from fdcnet.files import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Entry(NamedTuple):
    place: str
    """`module:attribute`, or `module` for the module itself."""
    summary: str

    def load(self) -> Any:
        module, _, attribute = self.place.partition(":")
        loaded = importlib.import_module(module)
        return getattr(loaded, attribute) if attribute else loaded


class Registry(Mapping[str, T]):
    """Name -> part, imported when it is looked up. Parts of other packages come from an entry-point group."""

    def __init__(self, unknown: str, entries: Mapping[str, Entry], group: str | None = None, hint: str = "") -> None:
        """For an unknown name, `unknown` begins the message and `hint` ends the remedy."""
        self.unknown, self.entries, self.group, self.hint = unknown, dict(entries), group, hint

    def __getitem__(self, name: str) -> T:
        if name in self.entries:
            return self.entries[name].load()
        return self._plugins()[name].load()

    def __iter__(self) -> Iterator[str]:
        return iter({**self.entries, **self._plugins()})

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self.entries or name in self._plugins()

    def summaries(self) -> dict[str, str]:
        """One line about each part; for a plug-in, the package that it comes from."""
        own = {name: entry.summary for name, entry in self.entries.items()}
        return own | {name: f"from {_package(point)}" for name, point in self._plugins().items()}

    def find(self, name: str) -> T:
        if name in self:
            return self[name]
        remedy = did_you_mean(name, self, otherwise=f"Choose one of: {', '.join(self)}.")
        raise UserError(f"{self.unknown} '{name}'.", " ".join(filter(None, (remedy, self.hint))))

    def _plugins(self) -> "dict[str, EntryPoint]":
        """Entry points, not loaded. A plug-in adds a name and never replaces one of ours."""
        if self.group is None:
            return {}
        from importlib.metadata import entry_points

        return {point.name: point for point in entry_points(group=self.group) if point.name not in self.entries}


def _package(point: "EntryPoint") -> str:
    return point.dist.name if point.dist else point.value
