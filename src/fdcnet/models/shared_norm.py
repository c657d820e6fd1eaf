"""Batch norm over a batch that several processes share: its statistics are those of the whole batch.

Unlike `nn.SyncBatchNorm` it also works on CPUs, and with gloo.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class SharedBatchNorm2d(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        assert self.momentum is not None
        values = x.float()
        variance, mean = torch.var_mean(values, (0, 2, 3), correction=0)
        own = torch.full_like(mean, values.numel() / values.shape[1])
        # In double precision, because the mean square minus the squared mean loses digits.
        count, total, squares = SumOverProcesses.apply(
            torch.stack([own, own * mean, own * (variance + mean.square())]).double()
        )
        mean = total / count
        variance = squares / count - mean.square()
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            unbiased = variance * count / (count - 1)
            self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var), self.momentum)
        scale = self.weight * (variance + self.eps).rsqrt().float()
        shift = self.bias - mean.float() * scale
        return (values * scale[:, None, None] + shift[:, None, None]).to(x.dtype)


class SumOverProcesses(torch.autograd.Function):
    """The gradient is summed as well: every process's statistics change every other's losses."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.contiguous().clone()
        dist.all_reduce(total)
        return total


def share_statistics(module: nn.Module) -> None:
    """Let all batch norms in `module` use the statistics of the whole batch."""
    for part in module.modules():
        if type(part) is nn.BatchNorm2d:
            part.__class__ = SharedBatchNorm2d
