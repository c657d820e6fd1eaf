import torch

from fdcnet.models.backbones import build_backbone


@torch.no_grad()
def test_what_is_erased_says_nothing() -> None:
    """No bias and no batch norm may bring back a score where a mask has erased the features."""
    backbone = build_backbone("tiny").train()
    nothing = torch.zeros(2, backbone.shared_channels, 16, 16)
    assert backbone.tail(nothing).abs().max() == 0
    features = torch.rand(2, backbone.shared_channels, 16, 16)
    torch.testing.assert_close(backbone.tail(0.5 * features), 0.5 * backbone.tail(features))


@torch.no_grad()
def test_features_start_sparse() -> None:
    """Standard normal values above 1 are 16 % of all; without the low start it would be half."""
    torch.manual_seed(0)
    features = build_backbone("tiny").train().shared(torch.randn(8, 3, 64, 64))
    assert 0.1 < (features > 0).float().mean() < 0.22
