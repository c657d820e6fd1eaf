"""From defaults, a recipe, `--set` and flags to a `Config`. Precedence: defaults < recipe < `--set a.b=c` < flags."""

import dataclasses
import reprlib
import types
import typing
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from fdcnet.config.schema import Config, Protocol
from fdcnet.config.section import Section, check_range
from fdcnet.errors import UserError
from fdcnet.files import did_you_mean, parse_yaml

RECIPES = Path(__file__).parents[1] / "recipes"
T = TypeVar("T", bound=Section)


def load(recipe: str | Path | None = None, overrides: typing.Sequence[str] = (), **flags: Any) -> Config:
    """Resolve the settings. `overrides` are `a.b=c` strings; `flags` are settings and groups of them, or None.

    Example: `load(method="fdcnet", data={"base_classes": 10}, train={"optim": {"lr": 0.002}})`
    """
    values = read_recipe(find_recipe(recipe)) if recipe else {}
    for key, value in parse_overrides(overrides).items():
        _assign(values, key, value)
    for key, value in leaves(flags):
        if value is not None:
            _assign(values, key, value)
    return from_dict(Config, values)


def changed(config: Config, changes: typing.Mapping[str, Any]) -> Config:
    """A copy of the settings with these dotted keys changed."""
    values = to_dict(config)
    for key, value in changes.items():
        _assign(values, key, value)
    return from_dict(Config, values)


def parse_overrides(overrides: typing.Sequence[str]) -> dict[str, Any]:
    """`a.b=c` strings -> dotted keys and values."""
    parsed = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator:
            raise UserError(f"--set {override!r} has no '='.", "Write it as --set train.batch_size=32.")
        parsed[key.strip()] = _parse_scalar(text)
    return parsed


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def find_recipe(recipe: str | Path) -> Path:
    """A YAML file, or one of the package's recipes by its name."""
    if Path(recipe).is_file():
        return Path(recipe)
    if str(recipe) in recipe_names():
        return RECIPES / f"{recipe}.yaml"
    hint = did_you_mean(Path(recipe).stem, recipe_names(), otherwise="")
    raise UserError(f"There is no recipe '{recipe}'.", f"{hint} 'fdcnet config list' shows all of them.".lstrip())


def read_recipe(path: Path, inside: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The settings in a YAML file, merged over those of the recipe that its key `extends` names, if any.

    That is a file, relative to this one, or one of the package's recipes by its name.
    """
    if not path.is_file():
        raise UserError(f"There is no recipe {path}.", "Name a YAML file, for instance one of those under recipes/.")
    if path.resolve() in inside:
        raise UserError(f"The recipe {path} extends itself.", "Remove one 'extends'.")
    try:
        values = parse_yaml(path.read_text(encoding="utf-8")) or {}
    except ValueError as error:
        raise UserError(f"{path} is not valid YAML: {error}", "Correct the file.") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} does not hold settings.", "A recipe is a YAML mapping such as 'method: finetune'.")
    base = str(values.pop("extends", None) or "")
    if not base:
        return values
    other = path.parent / base
    if base.removesuffix(".yaml") in recipe_names() and not other.is_file():
        other = RECIPES / f"{base.removesuffix('.yaml')}.yaml"
    return _merged(read_recipe(other, (*inside, path.resolve())), values)


def _merged(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Groups are merged, everything else is replaced."""
    merged = dict(base)
    for key, value in values.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = _merged(base[key], value) if both else value
    return merged


def to_dict(config: Section) -> dict[str, Any]:
    """Plain values, for YAML and JSON. The sections of methods lie beside the other groups."""
    values: dict[str, Any] = _plain(dataclasses.asdict(config))
    return values | values.pop("sections", {})


def leaves(values: typing.Mapping[str, Any], prefix: str = "") -> typing.Iterator[tuple[str, Any]]:
    """Nested plain values by dotted key."""
    for key, value in values.items():
        if isinstance(value, typing.Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def to_yaml(config: Config) -> str:
    return yaml.safe_dump(to_dict(config), sort_keys=False)


def from_dict(kind: type[T], values: dict[str, Any], where: str = "", base: T | None = None) -> T:
    """Build a group of settings. Refuses unknown keys, wrong types and numbers out of range.

    Keys that are not given are taken from `base`.
    """
    hints = typing.get_type_hints(kind)
    groups: dict[str, type[Section]] = {}
    if kind is Config:
        del hints["sections"]
        groups = method_sections(str(values.get("method", Config.method)), values.keys() - hints.keys())
    for key in values:
        if key not in hints and key not in groups:
            raise UserError(f"There is no setting '{where}{key}'.", _suggestion(str(key), {**hints, **groups}, where))
    if kind is Protocol and "threshold" in values:
        values = {"threshold_source": "given in the settings"} | values
    base = kind() if base is None else base
    fields = {field.name: field for field in dataclasses.fields(kind)}
    given: dict[str, Any] = {}
    for key in hints.keys() & values.keys():
        given[key] = _convert(hints[key], values[key], f"{where}{key}", getattr(base, key))
        check_range(fields[key], given[key], f"{where}{key}")
    if groups:
        given["sections"] = {name: _convert(group, values.get(name, {}), name) for name, group in groups.items()}
    return dataclasses.replace(base, **given)


def _suggestion(key: str, hints: typing.Mapping[str, Any], where: str) -> str:
    """The setting of this name one level below, or the most similar name."""
    for group, hint in hints.items():
        if dataclasses.is_dataclass(hint) and key in {field.name for field in dataclasses.fields(hint)}:
            return f"Did you mean '{where}{group}.{key}'?"
    return did_you_mean(key, hints, otherwise=f"Known keys: {', '.join(hints)}.", prefix=where)


def method_sections(method: str, wanted: typing.Collection[str] = ()) -> dict[str, type[Section]]:
    """The groups of settings that our methods and this one declare, and those of other plug-ins that are `wanted`.

    Plug-ins that are not used are neither imported nor recorded, so a saved model can be read without them.
    """
    from fdcnet.methods import METHODS  # it lies above this module

    names = dict.fromkeys([*METHODS.entries, *([method] if method in METHODS else [])])
    found = {key: section for name in names for key, section in METHODS[name].sections.items()}
    if set(wanted) <= found.keys():
        return found
    every = {key: section for kind in METHODS.values() for key, section in kind.sections.items()}
    return {key: section for key, section in every.items() if key in found or key in wanted}


def _convert(hint: Any, value: Any, key: str, default: Any = None) -> Any:
    """`default`: where the keys of a group that are not given come from."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, hint):
            return value
        if not isinstance(value, dict):
            raise UserError(
                f"'{key}' is a group of settings, not {reprlib.repr(value)}.",
                f"Set its keys, such as {key}.{_first_key(hint)}.",
            )
        return from_dict(hint, value, f"{key}.", default)
    origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise UserError(
                f"'{key}' cannot be {reprlib.repr(value)}.", f"Choose one of: {', '.join(map(str, choices))}."
            )
        return value
    if origin is tuple:
        gap = next((n for i, n in enumerate(value) if n != str(i)), None) if isinstance(value, dict) else None
        if gap is not None:
            raise UserError(
                f"There is no {key.removesuffix('s')} {gap}: they count from 0.", f"The next is {key}.{len(value) - 1}."
            )
        items = value.values() if isinstance(value, dict) else value
        if isinstance(items, str) or not hasattr(items, "__iter__"):
            raise UserError(f"'{key}' must be a list, not {reprlib.repr(value)}.", f"Write {key}=[...].")
        inner = typing.get_args(hint)[0]
        return tuple(_convert(inner, item, f"{key}.{i}") for i, item in enumerate(items))
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(typing.get_args(hint)[0], value, key)
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise UserError(
            f"'{key}' must be {_kind_name(hint)}, not {reprlib.repr(value)}.", f"Set it like {key}={_example(hint)}."
        )
    return value


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested plain values; a number addresses an entry of a list."""
    *groups, last = key.split(".")
    for i, name in enumerate(groups):
        inner = values.get(name)
        if isinstance(inner, (list, tuple)):
            inner = {str(n): entry for n, entry in enumerate(inner)}
        elif inner is None and name == "protocols":
            inner = {"0": {}}
        elif inner is None:
            inner = {}
        elif not isinstance(inner, dict):
            raise UserError(f"'{'.'.join(groups[: i + 1])}' is a single value.", f"It has no key '{last}'.")
        values[name] = inner
        values = inner
    values[last] = value


def _parse_scalar(text: str) -> Any:
    try:
        value = parse_yaml(text)
    except ValueError:  # such as a lone bracket or @: plain text
        return text
    if isinstance(value, str):  # YAML reads 1e-3 as text
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(inner) for inner in value]
    return value


def _first_key(kind: type) -> str:
    return dataclasses.fields(kind)[0].name


def _kind_name(hint: Any) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(hint, str(hint))


def _example(hint: Any) -> str:
    return {int: "10", float: "0.1", bool: "true", str: "name"}.get(hint, "...")
