"""Closed-form learning: what calibrates the classifier."""

import pytest
import torch
from torch import Tensor

from fdcnet.models.discriminant import Discriminant
from fdcnet.training import statistics
from fdcnet.training.statistics import count_photos


def test_a_bounded_number_of_photos_calibrates_the_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """All photos times all classes would not fit into memory. All of them are added."""
    labels = torch.arange(400) % 4
    photos = torch.randn(400, 6, generator=torch.Generator().manual_seed(0)) + 2 * labels[:, None].float()
    features, judged = photos[:, None].expand(-1, 2, -1), []
    every = Discriminant(6)
    count_photos(every, features, labels)
    distances_left_out = Discriminant.distances_left_out

    def counting(own: Discriminant, some: Tensor, own_labels: Tensor) -> Tensor:
        judged.append(own_labels.bincount().tolist())
        return distances_left_out(own, some, own_labels)

    monkeypatch.setattr(Discriminant, "distances_left_out", counting)
    monkeypatch.setattr(statistics, "MOST_JUDGED", 150)
    found = Discriminant(6)
    count_photos(found, features, labels)
    assert judged == [[34, 33, 33, 34]]  # every third photo
    assert torch.equal(found.counts, every.counts) and torch.equal(found.scatter, every.scatter)
    assert found.temperature == pytest.approx(every.temperature, rel=0.3)
    assert found.max_distance == pytest.approx(every.max_distance, rel=0.1)
