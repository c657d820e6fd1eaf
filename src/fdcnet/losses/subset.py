"""The mean over some photos of a batch, which several processes may share."""

import torch
import torch.distributed as dist
from torch import Tensor


def mean_over(values: Tensor, chosen: Tensor) -> Tensor:
    """Mean of `values` (B,) over the photos that are `chosen` (B,) bool; 0 if none is.

    Where processes share a batch, their losses are averaged by their numbers of photos. Here the numbers of chosen
    photos count, so each process corrects for the difference.
    """
    count = chosen.sum()  # no indexing by `chosen`: that would wait for the GPU
    if not dist.is_initialized():
        return (values * chosen).sum() / count.clamp(min=1)
    counts = torch.stack([count, torch.ones_like(chosen).sum()]).float()
    own = counts[1].clone()
    dist.all_reduce(counts)
    return (values * chosen).sum() / counts[0].clamp(min=1) * (counts[1] / own)
