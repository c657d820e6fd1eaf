"""Files of measured rows: results/performance.json and results/scale.json."""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from fdcnet.runtime.device import device_name
from fdcnet.store.record import commit

Row = dict[str, Any]


def made(device: torch.device) -> Row:
    """Where and how a row was measured."""
    return {"device": device_name(device), "commit": commit(), "command": f"python {' '.join(sys.argv)}"}


def merge(file: Path, rows: list[Row]) -> None:
    """Replace the rows of these names, and keep the others."""
    present = json.loads(file.read_text())["rows"] if file.exists() else []
    names = {row["name"] for row in rows}
    kept = [row for row in present if row["name"] not in names]
    file.write_text(json.dumps({"rows": [*kept, *rows]}, indent=1) + "\n")
