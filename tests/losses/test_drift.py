"""Equation 12 against numbers worked out by hand."""

import pytest
from torch import tensor

from fdcnet.losses import drift


@pytest.mark.parametrize("loss", [drift.drift_classes, drift.drift_maps])
def test_drift_losses_are_mean_squares(loss) -> None:  # type: ignore[no-untyped-def]
    now, before = tensor([1.0, 2.0]).reshape(1, 2, 1, 1), tensor([1.0, 5.0]).reshape(1, 2, 1, 1)
    assert loss(now, before).item() == pytest.approx(4.5)


@pytest.mark.parametrize("loss", [drift.drift_classes, drift.drift_maps])
def test_drift_losses_as_printed_are_norms(loss) -> None:  # type: ignore[no-untyped-def]
    """One photo differs by 3 and 4, the other by nothing: (5 + 0) / 2."""
    now = tensor([[3.0, 4.0], [1.0, 1.0]]).reshape(2, 2, 1, 1)
    before = tensor([[0.0, 0.0], [1.0, 1.0]]).reshape(2, 2, 1, 1)
    assert loss(now, before, "norm").item() == pytest.approx(2.5, abs=1e-5)
