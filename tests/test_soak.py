"""Short forms of `make soak`: every reader gets damaged input, models get flipped bits and hostile links."""

import importlib
import importlib.metadata
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SOAK = Path(__file__).parents[1] / "benchmarks" / "soak"
OWN = {file.stem for file in SOAK.glob("*.py")} - {"__main__"}
READERS = (
    *("images", "csv", "boxes.csv", "coco", "voc", "cub", "wsol", "imagenet", "yolo", "recipe", "set"),
    *("bundle-json", "safetensors", "manifest", "learned-json", "checkpoint", "report-json"),
)


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module `readers`. Its folder is on the path only here: its names are too common."""
    monkeypatch.setattr("importlib.metadata.entry_points", importlib.metadata.entry_points)  # it puts a cache there
    monkeypatch.syspath_prepend(SOAK)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield importlib.import_module("readers")
    finally:
        for name in OWN & sys.modules.keys():
            del sys.modules[name]


@pytest.mark.parametrize("name", READERS)
def test_damaged_input_ends_in_a_message(name: str, soak: ModuleType) -> None:
    assert set(READERS) == set(soak.FUZZED)
    row = soak.fuzz(name, soak.FUZZED[name], 100, 600.0)
    assert (row.tries, row.failures) == (100, 0), row.examples


def test_flipped_bits_and_links_are_refused(soak: ModuleType) -> None:
    models = sys.modules["models"]
    row = models.flips(40, 600.0)
    assert (row.tries, row.failures) == (40, 0), row.examples
    assert models.links(1, 600.0).failures == 0
