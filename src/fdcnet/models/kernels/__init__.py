"""Triton kernels that replace PyTorch's where they are faster: in steps that are recorded as CUDA graphs, and in
large batches without gradients.

In small batches, launching them from Python takes too long: 1016 against 1183 photos/s for a step of 64 photos on an
H200.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

TESTED_FROM, TESTED_BELOW = (2, 11), (2, 14)  # torch; Triton comes with it and changes with it

_wanted = ContextVar("own_kernels", default=False)


def was_tested_with(version: str) -> bool:
    """Whether the kernels were tested with this version of torch. With others, PyTorch's own are used."""
    major, minor = version.split(".")[:2]
    return TESTED_FROM <= (int(major), int(minor)) < TESTED_BELOW


TESTED = was_tested_with(torch.__version__)


@contextmanager
def own_kernels(wanted: bool = True) -> Iterator[None]:
    """Inside, these kernels are used wherever they can be."""
    before = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(before)


def in_use() -> bool:
    return TESTED and _wanted.get()
