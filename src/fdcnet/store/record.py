"""The record of a run on disk: settings, epochs and results. Plain JSON, readable without this package.

- run.json: command, resolved settings, commit, versions, device, data, how photos are cached, class order, seed
- metrics.jsonl: a line per epoch
- results.json, and results-<map>.json for each further protocol
- examples/task-1.json ...: a few test photos after each task, with their maps
"""

import hashlib
import importlib.metadata
import io
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fdcnet.errors import UserError
from fdcnet.files import is_temporary, write_bytes

SCHEMA = 1
PACKAGES = ("fdcnet", "torch", "numpy", "Pillow", "scipy", "safetensors")
SOURCE = Path(__file__).resolve().parents[1]
COMMIT_VARIABLE = "FDCNET_COMMIT"

Example = tuple[str, NDArray[np.uint8], NDArray[Any], Mapping[str, Any]]  # id, photo (H, W, 3), map (H, W), facts


@dataclass(frozen=True)
class RunRecord:
    """One run folder: training writes through it, the report reads through it."""

    folder: Path

    @classmethod
    def create(cls, run_dir: Path, facts: Mapping[str, Any], resume: bool = False) -> "RunRecord":
        """Start a record in an empty or new folder. With `resume`, continue an existing run, if any."""
        record = cls(Path(run_dir))
        if record.exists():
            if not resume:
                if record.run().get("finished"):
                    raise record.is_complete()
                remedy = "Choose another folder, or continue it with --resume."
                raise UserError(f"{run_dir} already holds an unfinished run.", remedy)
            record._note_resume(facts)
            return record
        if record.folder.exists() and not record.folder.is_dir():
            raise UserError(f"{run_dir} is a file.", "Choose a folder for the run.")
        if record.folder.is_dir() and any(not is_temporary(entry) for entry in record.folder.iterdir()):
            raise UserError(f"{run_dir} is not empty and is not a run.", "Choose an empty or a new folder.")
        record.folder.mkdir(parents=True, exist_ok=True)
        record._replace_run({"schema": SCHEMA, **facts, "started": now(), "finished": None, "seconds": None})
        return record

    @classmethod
    def open(cls, run_dir: Path) -> "RunRecord":
        record = cls(Path(run_dir))
        if not record.exists():
            raise UserError(f"{run_dir} is not a run: it has no run.json.", "Use the folder that 'fdcnet train' wrote.")
        schema = record.run().get("schema")
        if schema != SCHEMA:
            problem = f"{run_dir} has record schema {schema!r}; this version reads {SCHEMA}."
            raise UserError(problem, "Use the version of fdcnet that wrote it.")
        return record

    def exists(self) -> bool:
        return (self.folder / "run.json").is_file()

    def is_complete(self) -> UserError:
        """The error for those who would train on. A kill may have come before the report."""
        no_report = not (self.folder / "report.html").exists()
        remedy = f"Write its report with 'fdcnet report {self.folder}', or choose" if no_report else "Choose"
        return UserError(f"{self.folder} is already complete.", f"{remedy} another folder.")

    def run(self) -> dict[str, Any]:
        return read_mapping(self.folder / "run.json")

    def write_run(self, **facts: Any) -> None:
        """Add or replace these keys in run.json."""
        self._replace_run({**self.run(), **facts})

    def finish(self, seconds: float | None = None) -> None:
        """Mark the run as complete. `seconds` defaults to the time since the start."""
        if seconds is None:
            seconds = (datetime.now(UTC) - datetime.fromisoformat(self.run()["started"])).total_seconds()
        self.write_run(finished=now(), seconds=round(seconds, 1))

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(plain(line), allow_nan=False) + "\n"
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        return list(_read_lines(self.folder / "metrics.jsonl"))

    def write_results(self, results: Mapping[str, Any], name: str = "results") -> None:
        write_json(self.folder / f"{name}.json", results)

    def results(self) -> dict[str, dict[str, Any]]:
        """Results by file name: `results` first, then `results-<map>`."""
        paths = sorted(self.folder.glob("results-*.json"))
        main = self.folder / "results.json"
        return {path.stem: read_mapping(path) for path in ([main] if main.is_file() else []) + paths}

    def write_examples(self, task: int, examples: Iterable[Example]) -> None:
        """Store photos, maps and facts. The list is written last, so it never names a missing file."""
        listed = []
        for name, photo, heat, facts in examples:
            assert photo.shape == (*heat.shape, 3), "photo and map must have the same height and width"
            stem = file_stem(name)
            image, heat_map = f"examples/images/{stem}.jpg", f"examples/task-{task}/{stem}.png"
            write_bytes(self.folder / image, _encode(photo, "JPEG", quality=92))
            write_bytes(self.folder / heat_map, _encode(_grey(heat), "PNG"))
            listed.append({"image": image, "map": heat_map, **facts})
        write_json(self.folder / "examples" / f"task-{task}.json", listed)

    def examples(self) -> dict[int, list[dict[str, Any]]]:
        """Examples by task number."""
        numbered = ((re.fullmatch(r"task-(\d+)", path.stem), path) for path in self.folder.glob("examples/task-*.json"))
        found = {int(match[1]): read_json(path) for match, path in numbered if match}
        return dict(sorted(found.items()))

    def _replace_run(self, facts: Mapping[str, Any]) -> None:
        write_json(self.folder / "run.json", facts)

    def _note_resume(self, facts: Mapping[str, Any]) -> None:
        """Keep the facts of the first start and add those of this one."""
        note = {"time": now(), **{key: facts[key] for key in ("command", "commit", "device", "cache") if key in facts}}
        self.write_run(resumed=[*self.run().get("resumed", []), note])


def truncate_metrics(run_dir: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Drop the lines that a resumed run will write again, and a line that was cut off by a kill."""
    path = Path(run_dir) / "metrics.jsonl"
    if path.is_file():
        kept = [json.dumps(line) + "\n" for line in _read_lines(path) if keep(line)]
        write_bytes(path, "".join(kept).encode())


def environment(device: str) -> dict[str, Any]:
    """Device and package versions, for run.json."""
    import torch

    # The metadata of torch often lacks the build, such as +cpu or +cu130.
    packages = _package_versions() | {"torch": str(torch.__version__)}
    return {"device": device, "versions": {"python": platform.python_version(), **packages}}


def commit(folder: Path = SOURCE) -> str | None:
    """The commit of this source, with `-dirty` if it was modified; None outside of a checkout.

    The environment variable FDCNET_COMMIT takes precedence, for copies without git.
    """
    if given := os.environ.get(COMMIT_VARIABLE):
        return given
    try:
        # An installed copy may lie inside another project's checkout, whose commit is unrelated.
        if Path(_git(folder, "rev-parse", "--show-toplevel")).resolve() / "src" / folder.name != folder.resolve():
            return None
        head = _git(folder, "rev-parse", "HEAD")
        return f"{head}-dirty" if _git(folder, "status", "--porcelain", "--", ".") else head
    except (OSError, subprocess.SubprocessError):
        return None


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(plain(value), indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    if not path.is_file():
        raise UserError(f"There is no {path}.", "Use a run folder that contains this file.")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}.", "Restore the file, or train again.") from error


def read_mapping(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} does not hold a JSON object.", "Restore the file, or train again.")
    return value


def plain(value: Any) -> Any:
    """Convert to JSON types: numpy values become plain ones, NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def file_stem(name: str) -> str:
    """A safe file name for any id. A digest is added where characters were replaced, so names stay unique."""
    safe = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:80]
    return safe if safe == name else f"{safe}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read_lines(path: Path) -> Iterable[dict[str, Any]]:
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):  # cut off by a kill, or damaged
            continue
        if isinstance(value, dict):
            yield value


def _grey(heat: NDArray[Any]) -> NDArray[np.uint8]:
    if heat.dtype == np.uint8:
        return heat
    return np.rint(255 * np.clip(np.nan_to_num(heat), 0, 1)).astype(np.uint8)


def _encode(pixels: NDArray[np.uint8], kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def _package_versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name.lower()] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git(folder: Path, *arguments: str) -> str:
    # Inside a git hook, GIT_DIR and similar variables point at the hook's repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=10)
    return done.stdout.decode("utf-8", "replace").strip()
