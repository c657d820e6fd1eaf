"""The layers that grow with the classes: linear and cosine class scores, and the localizer."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LinearScores(nn.Module):
    """1x1 convolution from class features to one score map per class."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, channels))
        self.bias = nn.Parameter(torch.empty(0))

    @property
    def num_classes(self) -> int:
        return self.weight.shape[0]

    def grow(self, num_new: int) -> None:
        channels = self.weight.shape[1]
        bound = math.sqrt(6 / (channels + num_new))  # Xavier; BAS
        self.weight = _append(self.weight, torch.empty(num_new, channels).uniform_(-bound, bound))
        self.bias = _append(self.bias, torch.zeros(num_new))

    def read(self, class_features: Tensor) -> Tensor:
        """What the rows are multiplied with at each location: (B, D, H, W) -> (B, D, H, W)"""
        return class_features

    def forward(self, class_features: Tensor) -> Tensor:
        """(B, D, H, W) -> (B, K, H, W)"""
        return F.conv2d(class_features, self.weight[:, :, None, None], self.bias)

    def activation(self, class_features: Tensor) -> Tensor:
        """The map whose magnitude BAS suppresses: here the scores themselves."""
        return self(class_features)

    def activation_of(self, class_features: Tensor, labels: Tensor) -> Tensor:
        """Only the map of each sample's own class: (B, D, H, W), (B,) -> (B, H, W)"""
        return _rows_times(self.weight[labels], class_features) + self.bias[labels, None, None]


class CosineScores(nn.Module):
    """Cosine between features and class weights at each location, times one learned scale."""

    def __init__(
        self, channels: int, scale: float = 10.0, learn_scale: bool = True, normalized_activation: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, channels))
        self.scale = nn.Parameter(torch.tensor(scale), requires_grad=learn_scale)
        self.normalized_activation = normalized_activation
        self.num_fixed = 0
        """Number of leading classes whose weight directions are frozen. Weight decay only shortens them."""

    @property
    def num_classes(self) -> int:
        return self.weight.shape[0]

    @property
    def directions(self) -> Tensor:
        """(K, D), each of length one"""
        weight: Tensor = self.weight
        if self.num_fixed:
            weight = torch.cat([weight[: self.num_fixed].detach(), weight[self.num_fixed :]])
        return F.normalize(weight, dim=1)

    def grow(self, num_new: int) -> None:
        channels = self.weight.shape[1]
        bound = 1 / math.sqrt(channels)  # LUCIR
        self.weight = _append(self.weight, torch.empty(num_new, channels).uniform_(-bound, bound))

    def read(self, class_features: Tensor) -> Tensor:
        """What the rows are multiplied with at each location: (B, D, H, W) -> (B, D, H, W)"""
        return F.normalize(class_features, dim=1)

    def forward(self, class_features: Tensor) -> Tensor:
        """(B, D, H, W) -> (B, K, H, W)"""
        return self.scale * F.conv2d(self.read(class_features), self.directions[:, :, None, None])

    def activation(self, class_features: Tensor) -> Tensor:
        """Without feature normalization, which would cancel the change of magnitude that a mask causes.

        The foreground loss reads it too: bounded scores would push its mask over the whole image.
        """
        if self.normalized_activation:
            return self(class_features)
        return F.conv2d(class_features, self.directions[:, :, None, None])

    def activation_of(self, class_features: Tensor, labels: Tensor) -> Tensor:
        """Only the map of each sample's own class: (B, D, H, W), (B,) -> (B, H, W)"""
        rows = F.normalize(self.weight[labels], dim=1)
        if self.normalized_activation:
            return self.scale * _rows_times(rows, self.read(class_features))
        return _rows_times(rows, class_features)


class LocalizerHead(nn.Module):
    """3x3 convolution from shared features to the localization logits of each class."""

    def __init__(
        self, channels: int, sharing: float = 0.0, zero_start: bool = False, random_later: bool = False
    ) -> None:
        super().__init__()
        self.sharing, self.zero_start, self.random_later = sharing, zero_start, random_later
        self.weight = nn.Parameter(torch.empty(0, channels, 3, 3))
        self.bias = nn.Parameter(torch.empty(0))

    @property
    def num_classes(self) -> int:
        return self.weight.shape[0]

    def grow(self, num_new: int) -> None:
        channels = self.weight.shape[1]
        if self.num_classes and not self.random_later:  # random rows hardly learn a usable mask in a later task
            rows = self.weight.detach().mean(0, keepdim=True).repeat(num_new, 1, 1, 1).cpu()
            biases = self.bias.detach().mean().repeat(num_new).cpu()
        else:
            rows, biases = torch.zeros(num_new, channels, 3, 3), torch.zeros(num_new)
            if self.num_classes or not self.zero_start:
                nn.init.xavier_uniform_(rows)  # BAS
        self.weight = _append(self.weight, rows)
        self.bias = _append(self.bias, biases)

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, K, H, W)"""
        weight, bias = self._shared(self.weight, self.weight), self._shared(self.bias, self.bias)
        return F.conv2d(features, weight, bias, padding=1)

    def of_class(self, features: Tensor, labels: Tensor) -> Tensor:
        """Only the map of each sample's own class, at a cost that does not grow with the classes: -> (B, 1, H, W)

        A product of each sample's nine taps with its features, then a convolution that shifts and adds the nine maps.
        """
        weight = self._shared(self.weight[labels], self.weight)  # (B, C, 3, 3)
        taps = weight.flatten(2).transpose(1, 2)  # (B, 9, C)
        maps = torch.bmm(taps, features.flatten(2)).unflatten(2, features.shape[2:])  # (B, 9, H, W)
        shift_and_add = torch.eye(9, device=maps.device, dtype=maps.dtype).view(1, 9, 3, 3)
        bias = self._shared(self.bias[labels], self.bias)
        return F.conv2d(maps, shift_and_add, padding=1) + bias[:, None, None, None]

    def _shared(self, rows: Tensor, all_rows: Tensor) -> Tensor:
        """Mix rows with the mean of all. The mean learns as fast as without sharing, the differences more slowly."""
        return rows.lerp(all_rows.mean(0, keepdim=True), self.sharing) if self.sharing else rows


def _rows_times(rows: Tensor, features: Tensor) -> Tensor:
    """(B, D), (B, D, H, W) -> (B, H, W)"""
    return torch.bmm(rows[:, None], features.flatten(2)).unflatten(2, features.shape[2:]).squeeze(1)


def _append(parameter: nn.Parameter, rows: Tensor) -> nn.Parameter:
    rows = rows.to(parameter)
    # Not of nothing and rows: on the meta device, torch.cat imports PyTorch's compiler, which takes seconds.
    return nn.Parameter(torch.cat([parameter.detach(), rows]) if len(parameter) else rows)
