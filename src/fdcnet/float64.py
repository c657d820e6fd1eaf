"""Float64 on devices that may not have it."""

import torch
from torch import Tensor

HAVE_FLOAT64 = ("cpu", "cuda")


def float64_device(device: torch.device) -> torch.device:
    """The device itself, or the CPU: Apple's GPUs have no float64."""
    return device if device.type in HAVE_FLOAT64 else torch.device("cpu")


def as_float64(values: Tensor) -> Tensor:
    """Moves the values to the CPU if their device has no float64."""
    return values.to(float64_device(values.device)).double()
