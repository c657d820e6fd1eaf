"""Two modules in place of one: the mixed branches of AANets, and the two networks of FOSTER side by side."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fdcnet.models.network import LocalizationNetwork


class FilterScale(nn.Module):
    """One learned factor for each slice (output channel, input channel) of a convolution's filters."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones_like(weight[:, :, :1, :1], memory_format=torch.contiguous_format))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.scale


class Mixture(nn.Module):
    """A stable and a plastic copy of a module, and the learned share of the stable one in their common output.

    The filters of the stable copy are frozen and only scaled. Training steps do not change the share: it is learned in
    evaluation mode, on other photos.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.stable = _with_fixed_filters(copy.deepcopy(module))
        self.plastic = copy.deepcopy(module)
        self.logit = nn.Parameter(torch.zeros((), device=next(module.parameters()).device))  # half and half

    def forward(self, x: Tensor) -> Tensor:
        share = torch.sigmoid(self.logit.detach() if self.training else self.logit)
        plastic = self.plastic(x)
        return plastic + share.to(plastic.dtype) * (self.stable(x) - plastic)


class SideBySide(nn.Module):
    """The same place in two networks, the channels of the first before those of the second.

    Both read the whole input, or the first one its first `split` channels and the second the rest.
    """

    def __init__(self, first: nn.Module, second: nn.Module, split: int | None = None) -> None:
        super().__init__()
        self.first, self.second, self.split = first, second, split

    def forward(self, x: Tensor) -> Tensor:
        if self.split is None:
            return torch.cat([self.first(x), self.second(x)], dim=1)
        # Slices of channels-last features are not: the fast depthwise kernels want their own copy.
        parts = (part.contiguous(memory_format=torch.channels_last) for part in x.tensor_split([self.split], dim=1))
        return torch.cat([half(part) for half, part in zip((self.first, self.second), parts, strict=True)], dim=1)


def is_mixed(network: LocalizationNetwork) -> bool:
    return isinstance(network.classifier.tail, Mixture)


def mix(network: LocalizationNetwork) -> None:
    """Replace every level by a stable and a plastic copy of itself. The outputs do not change."""
    for name, level in list(network.backbone.named_children()):
        setattr(network.backbone, name, Mixture(level))
    network.classifier.tail = Mixture(network.classifier.tail)


def _with_fixed_filters(module: nn.Module) -> nn.Module:
    for layer in list(module.modules()):
        if isinstance(layer, nn.Conv2d):
            layer.weight.requires_grad_(False)
            parametrize.register_parametrization(layer, "weight", FilterScale(layer.weight))
    return module
