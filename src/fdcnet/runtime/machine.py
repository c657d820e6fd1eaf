"""How much main memory there is and how it is reused, and which threads come first."""

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

LIMITS = ("sys/fs/cgroup{}/memory.max", "sys/fs/cgroup/memory{}/memory.limit_in_bytes")
"""Files with the memory limit of a group of processes, for versions 2 and 1 of control groups."""

NICENESS = 10  # predictions come first

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from glibc's malloc.h
KEPT_BYTES = 2**30


def lower_priority() -> None:
    """Lower the priority of this thread on Linux, where each has its own. Threads that it starts inherit it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def reuse_memory() -> None:
    """Let glibc keep the memory of freed tensors for the next ones.

    It returns large blocks at once, and Linux clears every page of a new one: 15 % of the time of a lesson on a CPU.
    """
    own = any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if sys.platform == "linux" and not own:
        with contextlib.suppress(AttributeError):  # another C library
            libc = ctypes.CDLL(None)
            libc.mallopt(M_MMAP_MAX, 0)
            libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def machine_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may use: the machine's memory, or the limit of its container or job. None if unknown."""
    installed = _installed_memory()
    return min([*([installed] if installed else []), *_limits(root)], default=None)


def _limits(root: Path) -> Iterator[int]:
    """The limits of the process's control groups and their ancestors. A container sees its own as the topmost."""
    groups = {PurePosixPath("/")}
    with contextlib.suppress(OSError):  # there are none
        lines = (root / "proc/self/cgroup").read_text("utf-8", "replace").splitlines()
        own = [PurePosixPath(line.rpartition(":")[2]) for line in lines]
        groups |= {ancestor for group in own for ancestor in (group, *group.parents)}
    for group in groups:
        for limit in LIMITS:
            with contextlib.suppress(OSError, ValueError):  # "max" if there is no limit
                yield int((root / limit.format(str(group).rstrip("/"))).read_text("ascii"))


def _installed_memory() -> int | None:
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    kilobytes = ctypes.c_ulonglong()
    with contextlib.suppress(AttributeError, OSError):  # `windll` exists on Windows only
        if getattr(ctypes, "windll").kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes)):  # noqa: B009
            return 1024 * kilobytes.value
    return None
