"""A suite of the smallest real runs on generated photos."""

from pathlib import Path

import pytest

from fdcnet.data.synthetic import make_synthetic

RECIPE = """
method: {method}
data: {{path: {photos}, base_classes: 2, step_classes: 2, size: 40, crop: 32}}
model: {{backbone: tiny, weights: none, head_width: 16, classifier: linear}}
train: {{base_epochs: 20, step_epochs: 2, batch_size: 4, checkpoint_minutes: 0}}
drift: {{epochs: 2}}
memory: {{budget: 9}}
"""
SUITE = """
title: Small
protocols: [{map: class, crops: 2}, {map: class, crops: 2, compensated: false}]
tables:
  - name: main
    compare: tiny-fdcnet
    runs:
      - recipes: [tiny-fdcnet.yaml, tiny-baseline.yaml]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with photos, a recipe for each method, and small.yaml."""
    make_synthetic(tmp_path / "photos", num_classes=4, train_per_class=6, test_per_class=2, size=40)
    for method in ("fdcnet", "baseline", "finetune", "joint", "rebalancing", "slda"):
        recipe = RECIPE.format(method=method, photos=tmp_path / "photos")
        (tmp_path / f"tiny-{method}.yaml").write_text(recipe)
    (tmp_path / "small.yaml").write_text(SUITE)
    monkeypatch.chdir(tmp_path)
    return tmp_path
