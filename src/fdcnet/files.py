"""One writer at a time in a folder, in this process or any other; readers go on."""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from fdcnet.errors import UserError

if sys.platform != "win32":
    import fcntl

LOCK = "lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Refuses where somebody else is writing. The lock of a dead process is void."""
    file = _take(folder / LOCK)
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        file.close()


def _take(path: Path) -> TextIO:
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            if sys.platform != "win32":
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                break
            file.close()  # its last holder has just removed it: take a new one
        except BlockingIOError as error:
            file.seek(0)
            who = file.read().strip() or "another process"
            file.close()
            raise UserError(
                f"{path.parent} is being changed by {who}.", "Wait until it is done, then try again."
            ) from error
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
    except OSError:  # a full disk
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            file.close()
        raise
    return file
