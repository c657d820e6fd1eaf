"""Triton kernels that replace PyTorch's where they are faster."""

import torch

TESTED_FROM, TESTED_BELOW = (2, 11), (2, 14)  # torch; Triton comes with it and changes with it


def was_tested_with(version: str) -> bool:
    """Whether the kernels were tested with this version of torch. With others, PyTorch's own are used."""
    major, minor = version.split(".")[:2]
    return TESTED_FROM <= (int(major), int(minor)) < TESTED_BELOW


TESTED = was_tested_with(torch.__version__)
