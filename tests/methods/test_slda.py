"""What the masks of `slda` are trained against."""

import torch
from torch import nn

from fdcnet.methods.slda import evidence_map


def test_evidence_lies_where_the_class_is() -> None:
    features = torch.zeros(2, 3, 4, 4)
    features[0, 0, :2, :2] = 1.0  # what speaks for the class
    features[0, 1, 2:] = 1.0  # what speaks against it
    tail = nn.Conv2d(3, 3, 1)
    nn.init.eye_(tail.weight[:, :, 0, 0])
    rows = torch.tensor([[1.0, -1.0, 0.0]]).repeat(2, 1)

    evidence = evidence_map(tail, features, rows)

    assert evidence.shape == (2, 4, 4)
    expected = torch.zeros(4, 4)
    expected[:2, :2] = 4.0  # a quarter of the cells, and a mean of one
    torch.testing.assert_close(evidence[0], expected)
    assert not evidence[1].any(), "an erased photo has none"
    assert tail.weight.grad is None, "the tail is not trained"


def test_channels_against_the_class_do_not_cancel_those_for_it() -> None:
    features = torch.tensor([[3.0, 1.0], [1.0, 2.0], [3.0, 0.0]]).T[None, :, None]  # (1, 2, 1, 3): three cells
    tail = nn.Conv2d(2, 2, 1)
    nn.init.eye_(tail.weight[:, :, 0, 0])

    evidence = evidence_map(tail, features, torch.tensor([[1.0, -1.0]]))

    # Tail: 2, -1, 3, so 2, 0, 3 with mean 5/3. Gradient: 3, 1, 3 with mean 7/3. Half of each.
    expected = torch.tensor([[[3 / 5 + 9 / 14, 3 / 14, 9 / 10 + 9 / 14]]])
    torch.testing.assert_close(evidence, expected)
