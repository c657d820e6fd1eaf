"""Drift compensation: equations 12 and 13 of the paper. Each pulls the compensated maps towards the previous ones."""

import torch.nn.functional as F
from torch import Tensor


def drift_classes(class_map: Tensor, old_class_map: Tensor, distance: str = "mean_square") -> Tensor:
    """L_dc-c (equation 12): difference of the class maps of old classes. (B, K_old, H, W) each"""
    return _difference(class_map.float(), old_class_map.float(), distance)


def drift_maps(loc_map: Tensor, old_loc_map: Tensor, distance: str = "mean_square") -> Tensor:
    """L_dc-l (equation 12): difference of the localization logits of old classes. (B, K_old, H, W) each"""
    return _difference(loc_map.float(), old_loc_map.float(), distance)


def _difference(now: Tensor, before: Tensor, distance: str) -> Tensor:
    """The "mean_square" of all cells, or the mean L2 "norm" of the maps of a photo."""
    if distance == "mean_square":
        return F.mse_loss(now, before)
    return ((now - before).square().sum((1, 2, 3)) + 1e-12).sqrt().mean()
