"""NVIDIA's Multi-Process Service, which lets several runs compute on one GPU at the same time."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

CONTROL = "nvidia-cuda-mps-control"
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
TIMEOUT_SECONDS = 30


@contextlib.contextmanager
def shared_gpu(wanted: bool = True) -> Iterator[dict[str, str]]:
    """Environment variables for the runs; empty where the service is missing, running already or does not start."""
    if not wanted or not shutil.which(CONTROL) or PIPE in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="fdcnet-mps-") as folder:
        variables = {PIPE: folder, LOG: folder}
        try:
            _control(variables, "-d")
        except (OSError, subprocess.SubprocessError):
            yield {}
            return
        try:
            yield variables
        finally:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                _control(variables, said="quit\n")


def _control(variables: dict[str, str], *arguments: str, said: str = "") -> None:
    quiet = subprocess.DEVNULL  # the daemon keeps what it inherits open
    subprocess.run(
        [CONTROL, *arguments],
        env=os.environ | variables,
        input=said.encode(),
        stdout=quiet,
        stderr=quiet,
        check=True,
        timeout=TIMEOUT_SECONDS,
    )
