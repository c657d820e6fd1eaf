"""Golden loss curves: a refactor must not change them.

A change that means to (another loss, another default) writes them anew: run this file with FDCNET_WRITE_GOLDEN=1.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fdcnet.config import Config
from fdcnet.data.records import Dataset
from fdcnet.methods import METHODS
from fdcnet.training.run import train

GOLDEN = Path(__file__).parents[1] / "golden"
KINDS = ("losses", "unweighted")  # weighted, and without weights


@pytest.mark.parametrize("name", sorted(METHODS))
def test_losses_are_what_they_were(
    name: str, small_dataset: Dataset, small_config: Callable[..., Config], tmp_path: Path
) -> None:
    train(small_config(name), small_dataset, tmp_path / "run")
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    curve = {f"{line['task']} {line['phase']} {line['epoch']}": {kind: line[kind] for kind in KINDS} for line in lines}
    file = GOLDEN / f"{name}.json"
    if os.environ.get("FDCNET_WRITE_GOLDEN"):
        file.write_text(json.dumps(curve, indent=1) + "\n")
    golden = json.loads(file.read_text())
    assert curve.keys() == golden.keys()
    for epoch, losses in golden.items():
        for kind in KINDS:
            assert curve[epoch][kind] == pytest.approx(losses[kind], rel=0.02, abs=1e-5), f"{epoch}, {kind}"
