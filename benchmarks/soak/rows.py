"""What a row counts, and what counts as a failure."""

import resource
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fdcnet.data.decode import BadImage
from fdcnet.errors import UserError

MAX_SECONDS, MAX_GROWTH_MB = 10.0, 1000
IN_MEMORY = Path("/dev/shm")  # where there is one, files cost nothing


@dataclass
class Row:
    name: str
    tries: int = 0
    failures: int = 0
    note: str = ""
    examples: list[str] = field(default_factory=list)

    def fail(self, what: str) -> None:
        self.failures += 1
        if len(self.examples) < 5:
            self.examples.append(what)


def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fdcnet-soak-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None)


def attempt(row: Row, call: Callable[[], object], describe: Callable[[], str]) -> bool:
    """Whether the call returned normally."""
    row.tries += 1
    before, started = _peak_mb(), time.process_time()
    done = False
    try:
        call()
        done = True
    except (UserError, BadImage):
        pass
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        row.fail(
            f"{type(error).__name__}: {str(error)[:200]} at {Path(where.filename).name}:{where.lineno} {describe()}"
        )
    if time.process_time() - started > MAX_SECONDS:
        row.fail(f"{time.process_time() - started:.0f} s {describe()}")
    if _peak_mb() - before > MAX_GROWTH_MB:
        row.fail(f"{_peak_mb() - before:.0f} MB {describe()}")
    return done


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
