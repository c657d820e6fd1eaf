"""README and guides against the program: links, commands and settings exist, the toy method learns."""

import importlib
import re
import runpy
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

import fdcnet
from fdcnet import config as settings
from fdcnet.cli import app
from fdcnet.config import Config, Protocol
from fdcnet.data.records import Dataset
from fdcnet.methods import METHODS
from fdcnet.models.backbones import BACKBONES
from fdcnet.store.bundle import load_bundle
from guides import GUIDES, ROOT, blocks, shell_lines

PAGES = [*GUIDES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "results").glob("*.md"))]
DEFAULTS = settings.to_dict(settings.load()) | {"protocols": {"0": settings.to_dict(Protocol())}}
GROUPS = [name for name, value in DEFAULTS.items() if isinstance(value, dict)]
USAGE_ERROR = typer.BadParameter.__mro__[1]  # typer brings its own copy of click
on_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


COMMANDS = [
    pytest.param(words[1:], id=f"{page.name}: {' '.join(words)}")
    for page in PAGES
    for words in shell_lines(page)
    if words[0] == "fdcnet"
]


def parse(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """The verb and its parameters, as the command itself parses them; nothing is run."""
    command: Any = typer.main.get_command(app)
    path = []
    while hasattr(command, "commands"):
        assert arguments and arguments[0] in command.commands, f"no command {' '.join([*path, *arguments[:1]])!r}"
        path.append(arguments[0])
        command, arguments = command.commands[arguments[0]], arguments[1:]
    return " ".join(path), command.make_context(path[-1], list(arguments)).params


def exists(key: str) -> bool:
    """Whether a dotted key names a setting or a group of them."""
    known = [name for name, _ in settings.leaves(DEFAULTS)]
    return any(name == key or name.startswith(f"{key}.") for name in known)


def test_there_are_commands_to_check() -> None:
    assert len(PAGES) > 9
    assert len(COMMANDS) > 15


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_command_parses_and_its_settings_exist(arguments: list[str]) -> None:
    verb, given = parse(arguments)
    if verb == "evaluate":
        changes = settings.parse_overrides(given["set_"])
        settings.from_dict(Protocol, changes | ({"map": given["map_"]} if given["map_"] else {}))
    else:
        settings.load(None, given.get("set_", ()))
    assert given.get("method") in {None, *METHODS}
    assert given.get("backbone") in {None, *BACKBONES}
    recipe = given.get("recipe")
    assert recipe in {None, "mine.yaml", *settings.recipe_names()}


@pytest.mark.parametrize("wrong", ["trian x", "data chek x", "train x --bass 3", "evaluate", "evaluate m --crops many"])
def test_a_wrong_command_is_noticed(wrong: str) -> None:
    with pytest.raises((AssertionError, USAGE_ERROR)):
        parse(wrong.split())


@on_each_page
def test_other_shell_words_exist(page: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for words in shell_lines(page):
        assert words[0] in ("fdcnet", "make", "pip", ".venv/bin/pytest"), words
        if words[0] == "make":
            assert set(words[1:]) <= set(targets)
        for word in words[1:]:
            assert not word.startswith("tests/") or (ROOT / word).exists()


@on_each_page
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.M)
            assert anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings], target


def test_the_description_of_the_package_has_no_dead_links(monkeypatch: pytest.MonkeyPatch) -> None:
    described: dict[str, str] = {}
    monkeypatch.setattr("setuptools.setup", lambda **facts: described.update(facts))
    runpy.run_path(str(ROOT / "setup.py"))
    text = described["long_description"]
    assert "## Teach a model" in text
    assert "](" not in text.replace("](https://", "")
    assert "![" not in text


@on_each_page
def test_settings_and_files_in_the_text_exist(page: Path) -> None:
    for quoted in re.findall(r"`([^`\n]+)`", prose(page)):
        override = quoted.removeprefix("--set ")
        key = override.partition("=")[0]
        if re.fullmatch(rf"({'|'.join(GROUPS)})(\.\w+)+", key) and not key.endswith(".json"):
            assert exists(key), quoted
        if quoted.startswith("--set ") and "=" in quoted and "..." not in quoted:
            assert exists(key) or key in typing.get_type_hints(Protocol) or key == "key", quoted
        if re.match(r"(recipes|src|tests|results|benchmarks)/\w", quoted):
            assert (ROOT / quoted).exists(), quoted


def test_every_setting_is_on_its_page_with_its_default() -> None:
    """The tables are generated: `python docs/settings_page.py` writes them anew."""
    spec = importlib.util.spec_from_file_location("settings_page", ROOT / "docs/settings_page.py")
    assert spec and spec.loader
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    text = (ROOT / "docs/settings.md").read_text("utf-8")
    assert text == generator.page()
    rows = re.findall(r"^\| `([^`]+)` \| `[^`]*` \| (.*?) \|", text, re.M)
    assert len(rows) > 90
    assert [key for key, meaning in rows if not meaning.strip()] == []


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("methods.md", METHODS),
        ("backbones.md", BACKBONES),
        ("experiments.md", importlib.import_module("fdcnet.data.sources").FORMATS),
    ],
)
def test_a_table_is_complete(page: str, names: typing.Iterable[str]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name in names:
        assert re.search(rf"^\|.*`{name}`", text, re.M), name


def test_the_table_of_commands_is_complete() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        for verb in [f"{name} {inner}" for inner in getattr(command, "commands", {})] or [name]:
            assert f"| `fdcnet {verb}` |" in text, verb


def test_messages_of_the_troubleshooting_page_are_those_of_the_program() -> None:
    files = [file for kind in ("py", "js") for file in (ROOT / "src").rglob(f"*.{kind}")]
    source = "\n".join(file.read_text(encoding="utf-8") for file in files)
    text = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8").partition("## Photos")[2]
    rows = re.findall(r"^\| (.*?) \| .* \|$", text, re.M)
    messages = [message for row in rows for message in row.split("; ") if row not in ("message", "---")]
    assert len(messages) > 50
    for message in messages:
        pieces = [piece.strip(" ':,()") for piece in message.removeprefix("Failed: ").split("...")]
        assert all(piece in source for piece in pieces), message


@on_each_page
def test_no_page_names_a_path_of_somebody_s_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(work|tmp|root|home|Users|mnt|opt|usr|var)\b", text)


def test_the_toy_method_is_found_and_learns(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_dataset: Dataset,
    small_config: Callable[..., Config],
) -> None:
    page = ROOT / "docs" / "add-a-method.md"
    [code] = blocks(page, "python")
    [toml] = blocks(page, "toml")
    name, module, kind = re.findall(r'^(\w+) = "(\w+):(\w+)"$', toml, re.M)[0]
    site = tmp_path / "site"
    (site / "toy-1.0.dist-info").mkdir(parents=True)
    (site / f"{module}.py").write_text(code)
    (site / "toy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (site / "toy-1.0.dist-info" / "entry_points.txt").write_text(f"[fdcnet.methods]\n{name} = {module}:{kind}\n")
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()

    assert METHODS[name].name == name
    results = fdcnet.train(small_config(name), small_dataset, tmp_path / "run")
    assert [task["num_classes"] for task in results["tasks"]] == [2, 4]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [f'"{name}"' in line for line in lines] == [False, False, True, True]
    assert len(load_bundle(tmp_path / "run" / "model").memory) == 8
