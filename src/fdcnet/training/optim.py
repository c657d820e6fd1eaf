"""The optimizer: SGD in four groups (pretrained or head, weight or bias), and its learning rate over a phase."""

import math
from typing import Any

import torch
from torch import Tensor

from fdcnet.config import OptimConfig
from fdcnet.methods.base import Phase


def make_optimizer(phase: Phase) -> torch.optim.SGD:
    """One optimizer for the phase and its outer phase. Each step updates only the parameters that have gradients."""
    groups = [group for part in (phase, phase.outer) if part for group in _groups(part)]
    on_gpu = all(parameter.is_cuda for parameter in all_parameters(phase).values())
    if on_gpu:  # rates in tensors, so that recorded steps read the current values
        device = next(iter(all_parameters(phase).values())).device
        groups = [group | {"lr": torch.tensor(group["lr"], device=device)} for group in groups]
    return torch.optim.SGD(groups, fused=on_gpu)


def _groups(phase: Phase) -> list[dict[str, Any]]:
    config = phase.optim
    groups: dict[float, list[torch.nn.Parameter]] = {}
    for name, parameter in phase.parameters.items():
        factor = phase.rate_of(name) * (config.head_factor if phase.is_head(name) else 1.0)
        factor *= config.bias_factor if name.endswith("bias") else 1.0
        groups.setdefault(factor, []).append(parameter)
    common = {
        "optim": config,
        "lr": config.lr,
        "momentum": config.momentum,
        "nesterov": config.nesterov and config.momentum > 0,
        "weight_decay": config.weight_decay,
    }
    return [{"params": parameters, "factor": factor, **common} for factor, parameters in groups.items()]


def all_parameters(phase: Phase) -> dict[str, torch.nn.Parameter]:
    return phase.parameters | (phase.outer.parameters if phase.outer else {})


def rate(progress: float, config: OptimConfig) -> float:
    """The learning rate at this point (0..1) of the phase."""
    if progress < config.warmup:
        return config.lr * progress / config.warmup
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * (progress - config.warmup) / (1 - config.warmup)))
    if config.schedule == "step":
        return config.lr * 0.1 ** sum(progress >= share for share in config.decay_at)
    return config.lr


def set_rate(optimizer: torch.optim.Optimizer, progress: float) -> float:
    """Set the rates of all groups and return that of the phase itself."""
    for group in optimizer.param_groups:
        value = rate(progress, group["optim"]) * group["factor"]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value
    return rate(progress, optimizer.param_groups[0]["optim"])


def momenta(optimizer: torch.optim.Optimizer, phase: Phase) -> dict[str, Tensor]:
    """Momentum buffers by parameter name, for the checkpoint."""
    parameters = all_parameters(phase).items()
    buffers = {name: optimizer.state[parameter].get("momentum_buffer") for name, parameter in parameters}
    return {name: buffer for name, buffer in buffers.items() if buffer is not None}


@torch.no_grad()
def restore_momenta(optimizer: torch.optim.Optimizer, phase: Phase, buffers: dict[str, Tensor]) -> None:
    for name, buffer in buffers.items():
        parameter = all_parameters(phase)[name]
        optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffer)
