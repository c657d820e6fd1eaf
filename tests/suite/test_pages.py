"""The pages of results say what the JSON files say."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_pages", ROOT / "docs/results_pages.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_those_of_the_results(generator: ModuleType) -> None:
    """`make results` writes them anew."""
    pages = generator.files()
    assert {path.name for path in pages} >= {"README.md", "results.md"}
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, path
    assert "<!-- results: main -->\nCUB-200" in pages[ROOT / "README.md"]


def test_earlier_results_stay_readable_with_their_commit(generator: ModuleType) -> None:
    text = generator.files()[ROOT / "results/README.md"]
    [row] = [line for line in text.splitlines() if line.startswith("| fdcnet | 3 seeds | 67.22")]
    assert "67.22 ±\xa00.20 / 66.36 ±\xa00.16" in row
    assert row.endswith("| `275fbfa` |")
