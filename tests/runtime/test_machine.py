"""The memory that a process may use, on real files in the layout of Linux, and how it is reused."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from fdcnet.runtime.machine import machine_memory

INSTALLED = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "ascii")


def test_without_limits_it_is_the_memory_of_the_machine(tmp_path: Path) -> None:
    assert machine_memory(tmp_path) == INSTALLED
    write(tmp_path / "proc/self/cgroup", "0::/user.slice\n")
    write(tmp_path / "sys/fs/cgroup/user.slice/memory.max", "max\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert machine_memory(tmp_path) == INSTALLED


def test_the_limit_of_a_container(tmp_path: Path) -> None:
    write(tmp_path / "sys/fs/cgroup/memory.max", "8000000\n")
    assert machine_memory(tmp_path) == 8_000_000


def test_the_limit_of_a_job_counts_for_the_groups_inside(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "5:cpu:/\n4:memory:/slurm/job_7/step_0\n")
    write(tmp_path / "sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", "6000000\n")
    write(tmp_path / "sys/fs/cgroup/memory/slurm/job_7/step_0/memory.limit_in_bytes", "7000000\n")
    write(tmp_path / "sys/fs/cgroup/memory/slurm/job_8/memory.limit_in_bytes", "1000000\n")
    assert machine_memory(tmp_path) == 6_000_000


def test_a_system_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sysconf")
    assert machine_memory(tmp_path) is None


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_freed_memory_is_kept_for_the_next_tensor() -> None:
    code = """
import ctypes, resource, sys
PR_SET_THP_DISABLE = 41
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # a huge page counts as one
from fdcnet.runtime.machine import reuse_memory
if "reuse" in sys.argv:
    reuse_memory()
for _ in range(20):
    b"x" * 2**26
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""
    ours = ("MALLOC_", "GLIBC_TUNABLES")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}

    def page_faults(*arguments: str, **settings: str) -> int:
        command = [sys.executable, "-c", code, *arguments]
        return int(subprocess.run(command, env=environment | settings, capture_output=True, check=True).stdout)

    kept = page_faults("reuse")
    assert page_faults() > 4 * kept
    assert page_faults("reuse", MALLOC_MMAP_THRESHOLD_="1000000") > 4 * kept, "the user's own setting wins"
