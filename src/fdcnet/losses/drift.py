"""Drift compensation: equations 12 and 13 of the paper. Each pulls the compensated maps towards the previous ones."""

import torch.nn.functional as F
from torch import Tensor


def drift_classes(class_map: Tensor, old_class_map: Tensor) -> Tensor:
    """L_dc-c (equation 12): mean squared difference of the class maps of old classes. (B, K_old, H, W) each"""
    return F.mse_loss(class_map.float(), old_class_map.float())


def drift_maps(loc_map: Tensor, old_loc_map: Tensor) -> Tensor:
    """L_dc-l (equation 12): mean squared difference of the localization logits of old classes. (B, K_old, H, W) each"""
    return F.mse_loss(loc_map.float(), old_loc_map.float())
