"""What the writers share: a context manager that takes one photo after another."""

import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, Self

from fdcnet.errors import UserError
from fdcnet.files import replacing
from fdcnet.inference.prediction import Prediction

ESCAPED = "backslashreplace"  # file names that are not valid UTF-8 become escapes that JSON can read back


class Writer:
    """Writes one photo after another. Files appear when the `with` block ends without an error."""

    def __init__(self, path: Path, classes: Sequence[str]) -> None:
        self.path, self.classes = path, classes
        self.label_of = {name: label for label, name in enumerate(classes)}
        self.skipped: list[str] = []  # photos that could not be written, and why

    def add(self, photo: Prediction) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class FileWriter(Writer):
    """Writes one file, which appears once it is complete, or grows line by line if it is `streamed`.

    `-` is standard output.
    """

    streamed = False

    def __enter__(self) -> Self:
        self.closing = ExitStack()
        self.to_stdout = str(self.path) == "-"
        self.file: IO[str] = sys.stdout if self.to_stdout else self._open()
        if not reader_is_open(self.begin):
            self.begin()  # again, now that standard output leads nowhere
        return self

    def _open(self) -> IO[str]:
        make_folder(self.path.parent)
        if self.path.is_dir():
            raise UserError(f"{self.path} is a folder.", "Name a file.")
        opened: AbstractContextManager[BinaryIO] = self.path.open("wb") if self.streamed else replacing(self.path)
        content = self.closing.enter_context(opened)
        return io.TextIOWrapper(content, encoding="utf-8", errors=ESCAPED, newline="")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.closing.__exit__(kind, error, trace)
            return
        with self.closing:
            if self.to_stdout:
                reader_is_open(self._finish)
            else:
                self._finish()

    def _finish(self) -> None:
        self.end()
        self.file.flush()

    def begin(self) -> None: ...

    def end(self) -> None: ...


class JsonList:
    """A JSON list that is written item by item."""

    def __init__(self, file: IO[str]) -> None:
        self.file, self.opener = file, "["

    def add(self, item: Any) -> None:
        self.file.write(f"{self.opener}\n{as_json(item)}")
        self.opener = ","

    def end(self) -> None:
        self.file.write("[]" if self.opener == "[" else "\n]")


def reader_is_open(write: Callable[[], object]) -> bool:
    """Write, and return False if nobody reads standard output any longer (`| head`). It is then discarded."""
    try:
        write()
    except (BrokenPipeError, SystemExit):  # rich turns the first into the second
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return False
    return True


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"{folder} is a file.", "Name a folder, or a path that is free.") from error
