"""The directions of DESIGN: what each part of the package may import. Read from the source, so nothing escapes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fdcnet

SOURCE = Path(fdcnet.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
BOTTOM = {"config", "errors", "files", "float64", "geometry", "registry", "data", "losses", "models"}
LAYERS = ("memory", "methods", "runtime", "store", "evaluation", "training", "inference", "teaching")
"""From low to high: each may import itself, the layers before it, and the bottom."""

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "registry": {"errors", "files"},
    "files": {"errors"},
    "float64": set(),
    "config": {"config", "errors", "files"},
    "geometry": {"errors"},
    "data": {"config", "errors", "files", "geometry", "registry", "data"},
    "losses": {"config", "errors", "losses"},
    "models": {"config", "errors", "files", "float64", "registry", "models"},
    **{layer: BOTTOM | set(LAYERS[: i + 1]) for i, layer in enumerate(LAYERS)},
    "report": {"config", "errors", "files", "runtime", "evaluation", "store", "inference", "report"},
}
"""Parts that are not named here (the command, the page, what is built on all the rest) may import any of these."""

EXCEPT = {"inference/localizer.py imports fdcnet.teaching.learn." + name for name in ("LearnReport", "learn")}
EXCEPT |= {"config/loading.py imports fdcnet.methods.METHODS"}
"""Imported when called: `Localizer.learn` is an alias, and a method's settings are declared beside it."""

NEVER = {"torchvision", "cv2", "matplotlib", "skimage"}


def part_of(file: Path) -> str:
    return file.relative_to(SOURCE).with_suffix("").parts[0]


def imports(file: Path) -> Iterator[str]:
    """Full names: `from fdcnet import geometry` counts as fdcnet.geometry."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            if node.module == "fdcnet":
                yield from (f"fdcnet.{alias.name}" for alias in node.names)
            else:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(file: Path) -> Iterator[tuple[str, str]]:
    """(part, full name)"""
    for name in imports(file):
        if name.startswith("fdcnet."):
            yield name.split(".")[1], name


def broken_rules(part: str, allowed: set[str]) -> list[str]:
    files = [file for file in FILES if part_of(file) == part]
    assert files, f"there is no {part}"
    broken = [
        f"{file.relative_to(SOURCE)} imports {name}"
        for file in files
        for imported, name in own_imports(file)
        if imported not in allowed
    ]
    return [rule for rule in broken if rule not in EXCEPT]


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_what_lies_below(part: str) -> None:
    assert broken_rules(part, MAY_IMPORT[part]) == []


def test_the_rule_can_be_broken() -> None:
    """That the reading of imports finds what it should: training does import methods."""
    assert any("fdcnet.methods" in found for found in broken_rules("training", {"training"}))
    assert any("fdcnet.geometry" in found for found in broken_rules("evaluation", {"evaluation"}))


def test_methods_know_records_but_no_readers() -> None:
    allowed = "fdcnet.data.records."
    names = [name for file in FILES if part_of(file) == "methods" for part, name in own_imports(file) if part == "data"]
    assert names
    assert [name for name in names if not name.startswith(allowed)] == []


def test_nothing_imports_the_command_or_the_page() -> None:
    outside = [file for file in FILES if part_of(file) not in ("cli", "web", "__main__")]
    assert [(file.name, name) for file in outside for part, name in own_imports(file) if part in ("cli", "web")] == []


def test_no_module_is_called_anything_goes() -> None:
    names = {part for file in FILES for part in file.relative_to(SOURCE).with_suffix("").parts}
    assert names & {"utils", "util", "helpers", "helper", "common", "misc"} == set()


def test_the_library_does_not_print() -> None:
    calls = [
        f"{file.relative_to(SOURCE)}:{node.lineno}"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert calls == []


def test_the_core_does_without_heavy_or_fragile_packages() -> None:
    found = [(file.name, name) for file in FILES for name in imports(file) if name.split(".")[0] in NEVER]
    assert found == []


def test_few_modules_lie_at_the_root_and_none_is_long() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 8
    assert [file.name for file in FILES if len(file.read_text(encoding="utf-8").splitlines()) > 400] == []
