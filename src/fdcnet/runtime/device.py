"""Device and precision of a run."""

import contextlib
import os
from collections.abc import Iterator

import torch

from fdcnet.errors import UserError


def find_device(name: str) -> torch.device:
    """`auto`: a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"There is no device '{name}'.", "Choose auto, cpu, cuda, cuda:N or mps.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("PyTorch sees no Apple GPU (mps).", "Use --device cpu, or see 'fdcnet doctor'.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("No GPU is available to PyTorch.", "Use --device cpu, or see 'fdcnet doctor'.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"There is no GPU '{name}'.", f"PyTorch sees {torch.cuda.device_count()}, counted from cuda:0.")
    return device


def autocast_for(device: torch.device, precision: str) -> torch.autocast:
    bf16 = precision == "bf16" or (precision == "auto" and device.type == "cuda")
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16)


@contextlib.contextmanager
def tuned_kernels() -> Iterator[None]:
    """Let cuDNN try all its kernels on each new shape. That takes seconds, so it pays only for shapes that repeat."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return "Apple GPU"
    return f"CPU ({torch.get_num_threads()} of {os.cpu_count()} threads)"
