"""Temporary files of a running server. A killed server cannot remove its own; the next one does."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fdcnet.errors import UserError
from fdcnet.files import LOCK, locked

PREFIX = "fdcnet-serve-"
LESSON = "lesson.json"


class Workspace:
    """A private temporary folder, locked while the server runs."""

    def __init__(self, model: Path) -> None:
        self._model = str(model.resolve())
        self.lost_lesson = self._sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._resources = contextlib.ExitStack()
        self._resources.enter_context(locked(self.folder))

    def new_folder(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))

    def note_lesson(self, classes: list[str]) -> None:
        """For the next server, if this one is killed during the lesson."""
        facts = json.dumps({"model": self._model, "classes": classes})
        (self.folder / LESSON).write_text(facts, encoding="utf-8")

    def forget_lesson(self) -> None:
        (self.folder / LESSON).unlink(missing_ok=True)

    def close(self) -> None:
        self._resources.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _sweep(self) -> list[str]:
        """Remove what killed servers left. -> classes of a lesson of this model that was interrupted"""
        lost: list[str] = []
        for folder in _abandoned():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                facts = json.loads((folder / LESSON).read_text(encoding="utf-8"))
                if facts["model"] == self._model:
                    lost = [str(name) for name in facts["classes"]]
            shutil.rmtree(folder, ignore_errors=True)
        return lost


def _abandoned() -> Iterator[Path]:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, UserError):  # UserError: its server is running
            if _is_own(folder) and (folder / LOCK).exists():
                with locked(folder):
                    yield folder


def _is_own(folder: Path) -> bool:
    """Other accounts may create folders in the temporary folder, too. Windows has one for each account."""
    return not folder.is_symlink() and (os.name == "nt" or folder.stat().st_uid == os.getuid())
