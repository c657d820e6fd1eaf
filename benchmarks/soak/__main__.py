"""Try to break fdcnet: damaged and hostile inputs for every reader, flipped bits, links, kills. `make soak` runs it.

Each row is bounded by a number of tries and by seconds, and is merged into results/reliability.json. A failure is an
exception that is not a message for the user, a result from damaged input where damage must be noticed, more than
10 seconds, or more than 1 GB of memory for one try.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from kills import kill_learn, kill_train
from readers import FUZZED, fuzz
from rows import Row
from server import kill_server, schemathesis, server_load, server_memory

from fdcnet.store.record import commit
from models import flips, links

RESULTS = Path(__file__).parents[2] / "results" / "reliability.json"
OTHERS: dict[str, tuple[Callable[[int, float], Row], int]] = {
    "bit-flips": (flips, 1000),
    "hostile-links": (links, 1),
    "kill-train": (kill_train, 120),
    "kill-learn": (kill_learn, 80),
    "kill-server": (kill_server, 20),
    "server-memory": (server_memory, 50),
    "server-load": (server_load, 10**9),  # as long as --seconds
    "schemathesis": (schemathesis, 200),  # for each operation
}


def rows(wanted: str | None) -> Iterator[str]:
    names = [*(f"fuzz-{name}" for name in FUZZED), *OTHERS]
    if wanted and wanted not in names:
        sys.exit(f"There is no row {wanted}. Choose one of: {', '.join(names)}.")
    yield from [wanted] if wanted else names


def merge(row: Row, seconds: float) -> None:
    report: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"rows": []}
    kept = [other for other in report["rows"] if other["name"] != row.name]
    facts = {"name": row.name, "tries": row.tries, "failures": row.failures, "seconds": round(seconds, 1)}
    facts |= {"commit": commit()} | ({"note": row.note} if row.note else {})
    report["rows"] = sorted([*kept, facts], key=lambda other: other["name"])
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", help="run one row only")
    parser.add_argument("--tries", type=int, help="instead of 50,000 (readers), 1,000 (flips) or 120 (kills)")
    parser.add_argument("--seconds", type=float, default=1800, help="limit for each row")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Pillow warns about damaged metadata
    failures = 0
    for name in rows(options.row or None):
        started = time.monotonic()
        if name in OTHERS:
            run, tries = OTHERS[name]
            row = run(options.tries or tries, options.seconds)
        else:
            row = fuzz(name, FUZZED[name.removeprefix("fuzz-")], options.tries or 50_000, options.seconds)
        seconds = time.monotonic() - started
        merge(row, seconds)
        print(f"{row.name}: {row.tries} tries, {row.failures} failures, {seconds:.0f} s. {row.note}", flush=True)
        for example in row.examples:
            print(f"  {example}", flush=True)
        failures += row.failures
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
