"""Every recipe of the project trains, shrunk to seconds: its method, losses, phases and protocols fit together."""

from pathlib import Path

import pytest

from fdcnet import config
from fdcnet.data.records import Dataset
from fdcnet.training.run import train

RECIPES = sorted(
    path for path in (Path(__file__).parents[2] / "src/fdcnet/recipes").glob("*.yaml") if path.stem.count("-") > 1
)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_trains(recipe: Path, shrunk: tuple[str, ...], small_dataset: Dataset, tmp_path: Path) -> None:
    settings = config.load(recipe, shrunk)
    results = train(settings, small_dataset, tmp_path / "run")
    assert len(results["tasks"]) == (1 if settings.method == "joint" else 2)
    assert results["protocol"]["threshold_source"] == "default"
