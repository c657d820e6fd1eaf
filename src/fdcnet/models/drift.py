"""The feature drift compensation network: what the change of features did to the outputs for old classes."""

from torch import Tensor, nn


class DriftModules(nn.Module):
    """g_dc: estimates from the new network's features what its outputs for old classes have lost."""

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

    def forward(self, features: Tensor, tail_features: Tensor) -> tuple[Tensor, Tensor]:
        """-> what to add to the class map (B, K_old, H2, W2) and to the localization map (B, K_old, H1, W1)"""
        return self.class_drift(tail_features), self.loc_drift(features)
