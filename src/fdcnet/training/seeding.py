"""Seeds that depend only on the current step, so that a resumed run draws the same numbers."""

import hashlib

import torch


def seed_of(*key: int | str) -> int:
    """A 63-bit seed for a key such as (seed, "grow", task); the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big") >> 1


def seed_torch(*key: int | str) -> None:
    torch.manual_seed(seed_of(*key))
