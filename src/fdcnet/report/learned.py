"""Models made by `fdcnet learn` as run folders, so that the report can show them like runs."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from fdcnet.errors import UserError
from fdcnet.evaluation.held_out import evaluate_held_out
from fdcnet.runtime.listener import Listener
from fdcnet.store.bundle import has_bundle
from fdcnet.store.versions import versions


@contextlib.contextmanager
def as_run_folders(
    paths: Sequence[Path], device: str = "auto", listener: Listener | None = None
) -> Iterator[list[Path]]:
    """Replace each model by a run folder: that of the training run that made it, or a temporary one."""
    with tempfile.TemporaryDirectory(prefix="fdcnet-report-") as scratch:
        folders = []
        for number, path in enumerate(paths):
            folder = run_folder_of(path)
            if folder is None:
                folder = Path(scratch) / str(number) / path.resolve().parent.name  # tells models of the same name apart
                evaluate_held_out(path, folder, device, listener)
            folders.append(folder)
        yield folders


def run_folder_of(path: Path) -> Path | None:
    """The run folder itself, or that of the training run that made this model. None for a model of `fdcnet learn`."""
    if any((path / name).is_file() for name in ("run.json", "results.json")):
        return path
    if not has_bundle(path):
        problem = f"{path} is neither a run nor a model." if path.exists() else f"{path} does not exist."
        raise UserError(problem, "Name a run folder of 'fdcnet train', or a model made by 'fdcnet learn'.")
    was_taught = any(version.learned for version in versions(path) if version.current)
    parent = path.resolve().parent
    return parent if not was_taught and (parent / "run.json").is_file() else None
