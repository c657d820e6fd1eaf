import hashlib

import torch

from fdcnet.training.seeding import seed_of, seed_torch


def test_a_seed_is_the_digest_of_its_key() -> None:
    digest = hashlib.sha256(b"(1, 'grow', 2)").digest()
    assert seed_of(1, "grow", 2) == int.from_bytes(digest[:8], "big") // 2


def test_every_part_of_the_key_counts() -> None:
    keys: list[tuple[int | str, ...]] = [
        (0,),
        (1,),
        ("1",),
        (0, "new"),
        (0, "grow", 1),
        (0, "grow", 2),
        (1, "grow", 1),
        (0, 1, "grow"),
    ]
    seeds = {seed_of(*key) for key in keys}
    assert len(seeds) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)  # what torch takes


def test_torch_draws_the_same_whatever_went_before() -> None:
    seed_torch(0, "grow", 1)
    first = torch.randn(4)
    torch.randn(100)
    seed_torch(0, "grow", 1)
    assert torch.equal(torch.randn(4), first)
    seed_torch(0, "grow", 2)
    assert not torch.equal(torch.randn(4), first)
