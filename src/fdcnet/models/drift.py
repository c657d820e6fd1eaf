"""The feature drift compensation network: what the change of features did to the outputs for old classes."""

from torch import nn


class DriftModules(nn.Module):
    """g_dc: estimates from the new network's features what its outputs for old classes have lost.

    `class_drift` maps tail features to a change of the class map, `loc_drift` shared features to one of the logits.
    """

    def __init__(self, shared_channels: int, tail_channels: int, width: int, num_old: int, zero_start: bool) -> None:
        super().__init__()
        self.num_old = num_old
        self.class_drift = nn.Sequential(  # the classifier's last three layers, once more
            nn.Conv2d(tail_channels, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, num_old, 1),
        )
        self.loc_drift = nn.Sequential(  # sizes: the paper's public code
            nn.Conv2d(shared_channels, shared_channels, 1),
            nn.ReLU(),
            nn.Conv2d(shared_channels, shared_channels, 1),
            nn.ReLU(),
            nn.Conv2d(shared_channels, num_old, 3, padding=1),
        )
        for sequence in (self.class_drift, self.loc_drift):
            for layer in sequence:
                if isinstance(layer, nn.Conv2d):
                    nn.init.xavier_uniform_(layer.weight)
                    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
            if zero_start:  # the first step then does no harm
                nn.init.zeros_(sequence[-1].weight)  # type: ignore[arg-type]
