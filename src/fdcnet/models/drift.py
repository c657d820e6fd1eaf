"""The feature drift compensation network: estimates what the change of features did to the outputs for old classes."""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fdcnet.config import OptimConfig, Section, number
from fdcnet.models.network import LocalizationNetwork, Outputs


@dataclass(frozen=True)
class DriftSettings(Section):
    """The feature drift compensation modules of `fdcnet`."""

    classes: bool = True
    """Compensate class scores (g_dc-c). The paper's ablation switches it."""
    maps: bool = True
    """Compensate localization maps (g_dc-l)."""
    epochs: int = number(10, at_least=1)  # ours, for speed; public code: 40
    """Epochs of the drift phase."""
    dc_loc: float = number(1.0, at_least=0)  # beta; public code
    """Weight of the map compensation loss."""
    new_photos: Literal["previous", "own"] = "own"  # ours: results/tuning.md; paper: previous
    """Target for photos of new classes: the previous network's outputs for old classes (paper), or the current
    network's own outputs."""
    distance: Literal["mean_square", "norm"] = "mean_square"
    """Distance of the maps: mean square (public code), or L2 norm (equation 12 as written)."""
    zero_start: bool = True  # ours: the first step then does no harm; public code: false
    """Initialize the last layer of each module with zeros."""
    place: Literal["inside", "after"] = "inside"
    """Add to the localization logits (equation 11), or to the mask after the sigmoid (public code, `loc_scale` 0.2)."""
    class_scale: float = number(1.0, at_least=0)
    """Scale of the class compensation when the model is used."""
    loc_scale: float = number(1.0, at_least=0)
    """Scale of the map compensation when the model is used."""
    optim: OptimConfig = field(  # ours, not tuned yet; public code: plain SGD, lr 0.001
        default_factory=lambda: OptimConfig(lr=0.01, head_factor=1.0, bias_factor=1.0, weight_decay=1e-4, clip_norm=1.0)
    )


class DriftModules(nn.Module):
    """g_dc: estimates from the new network's features what its outputs for old classes have lost.

    `class_drift` maps tail features to a change of the class map, `loc_drift` maps shared features to a change of the
    localization logits.
    """

    def __init__(self, network: LocalizationNetwork, num_old: int, settings: DriftSettings) -> None:
        super().__init__()
        self.num_old, self.settings = num_old, settings
        shared, tail, width = network.widths
        self.class_drift = nn.Sequential(  # the same layers as the classifier's last three
            nn.Conv2d(tail, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, num_old, 1),
        )
        self.loc_drift = nn.Sequential(  # sizes: the paper's public code
            nn.Conv2d(shared, shared, 1),
            nn.ReLU(),
            nn.Conv2d(shared, shared, 1),
            nn.ReLU(),
            nn.Conv2d(shared, num_old, 3, padding=1),
        )
        for sequence in (self.class_drift, self.loc_drift):
            for layer in sequence:
                if isinstance(layer, nn.Conv2d):
                    nn.init.xavier_uniform_(layer.weight)
                    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
            if settings.zero_start:
                nn.init.zeros_(sequence[-1].weight)  # type: ignore[arg-type]

    def changes(self, outputs: Outputs) -> tuple[Tensor | float, Tensor | float]:
        """Changes of class map and logits, in float32 because they may be smaller than a step of bfloat16."""
        class_change: Tensor | float = 0.0
        loc_change: Tensor | float = 0.0
        num_new = outputs.class_map.shape[1] - self.num_old
        if self.settings.classes:
            class_change = pad_classes(self.class_drift(outputs.tail_features).float(), num_new)
        if self.settings.maps and outputs.loc_map.shape[1]:
            loc_change = pad_classes(self.loc_drift(outputs.features).float(), num_new)
        return class_change, loc_change


def drift_of(network: LocalizationNetwork) -> DriftModules | None:
    """The compensation modules of a network, if it has any."""
    drift = getattr(network, "drift", None)
    assert drift is None or isinstance(drift, DriftModules)
    return drift


def add_drift(network: LocalizationNetwork, num_old: int, settings: DriftSettings) -> None:
    """Add new compensation modules for the first `num_old` classes."""
    drift = DriftModules(network, num_old, settings)
    device = network.localizer.weight.device
    network.drift = drift.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]


def full_compensation(network: LocalizationNetwork, outputs: Outputs) -> Outputs:
    """What the modules are trained for: the whole compensation, on class map and logits."""
    drift = drift_of(network)
    if drift is None:
        return outputs
    class_change, loc_change = drift.changes(outputs)
    return replace(outputs, class_map=outputs.class_map + class_change, loc_map=outputs.loc_map + loc_change)


def scaled_compensation(network: LocalizationNetwork, outputs: Outputs) -> Outputs:
    """Equation 11, with scales and place as set: old classes are compensated, new ones stay as they are."""
    drift = drift_of(network)
    if drift is None:
        return outputs
    settings = drift.settings
    class_change, loc_change = drift.changes(outputs)
    outputs = replace(outputs, class_map=outputs.class_map + settings.class_scale * class_change)
    if settings.place == "inside":
        return replace(outputs, loc_map=outputs.loc_map + settings.loc_scale * loc_change)
    return replace(outputs, mask_change=settings.loc_scale * loc_change)


def compensated_masks(network: LocalizationNetwork, outputs: Outputs, labels: Tensor) -> Tensor:
    """The compensated mask of one class per image, from outputs made without maps: (B, H1, W1)"""
    drift = drift_of(network)
    if drift is None or not drift.settings.maps:
        return network.masks_of(outputs, labels)
    logits = network.localizer.of_class(outputs.features, labels).float()
    changes = pad_classes(drift.loc_drift(outputs.features).float(), network.num_classes - drift.num_old)
    change = drift.settings.loc_scale * changes[torch.arange(len(labels), device=labels.device), labels, None]
    inside = drift.settings.place == "inside"
    return ((logits + change).sigmoid() if inside else logits.sigmoid() + change)[:, 0]


def pad_classes(maps: Tensor, num_new: int) -> Tensor:
    """Zero maps for classes that came later: (B, K_old, H, W) -> (B, K, H, W)"""
    return F.pad(maps, (0, 0, 0, 0, 0, num_new))
