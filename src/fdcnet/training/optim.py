"""The optimizer: SGD in four groups (pretrained or head, weight or bias), and its learning rate over a phase."""

import math

import torch
from torch import Tensor

from fdcnet.config import OptimConfig
from fdcnet.methods.base import Phase


def make_optimizer(phase: Phase) -> torch.optim.SGD:
    config = phase.optim
    groups: dict[float, list[torch.nn.Parameter]] = {}
    for name, parameter in phase.parameters.items():
        factor = config.head_factor if phase.is_head(name) else 1.0
        factor *= config.bias_factor if name.endswith("bias") else 1.0
        groups.setdefault(factor, []).append(parameter)
    return torch.optim.SGD(
        [{"params": parameters, "factor": factor} for factor, parameters in groups.items()],
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov and config.momentum > 0,
        weight_decay=config.weight_decay,
        fused=all(parameter.is_cuda for parameter in phase.parameters.values()),
    )


def rate(progress: float, config: OptimConfig) -> float:
    """The learning rate at this share (0..1) of the phase."""
    if progress < config.warmup:
        return config.lr * progress / config.warmup
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * (progress - config.warmup) / (1 - config.warmup)))
    if config.schedule == "step":
        return config.lr * 0.1 ** sum(progress >= share for share in config.decay_at)
    return config.lr


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group["factor"]


def momenta(optimizer: torch.optim.Optimizer, phase: Phase) -> dict[str, Tensor]:
    """The optimizer's memory by parameter name, for the checkpoint."""
    buffers = {name: optimizer.state[parameter].get("momentum_buffer") for name, parameter in phase.parameters.items()}
    return {name: buffer for name, buffer in buffers.items() if buffer is not None}


@torch.no_grad()
def restore_momenta(optimizer: torch.optim.Optimizer, phase: Phase, buffers: dict[str, Tensor]) -> None:
    for name, buffer in buffers.items():
        parameter = phase.parameters[name]
        optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffer)
