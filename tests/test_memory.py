import pytest
import torch

from fdcnet.errors import UserError
from fdcnet.memory import ExemplarMemory, herd, rank_by_distance


def test_herding_takes_what_keeps_the_mean() -> None:
    # Unit vectors at 0, 90 and 30 degrees. Mean of all: (0.6220, 0.5). Alone, 30 degrees is nearest to it; with it,
    # 90 degrees gives mean (0.433, 0.75), distance 0.313; 0 degrees gives (0.933, 0.25), distance 0.399.
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3**0.5 / 2, 0.5]])
    assert herd(features, 3) == [2, 1, 0]


def test_a_shorter_selection_begins_a_longer_one() -> None:
    features = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    assert herd(features, 20)[:7] == herd(features, 7)
    assert sorted(herd(features, 99)) == list(range(30))


def test_herding_beats_a_random_choice() -> None:
    features = torch.nn.functional.normalize(torch.randn(100, 16, generator=torch.Generator().manual_seed(1)), dim=1)
    mean = features.mean(0)
    herded = (features[herd(features, 10)].mean(0) - mean).norm()
    assert herded < (features[:10].mean(0) - mean).norm() / 2


def test_ranking_takes_the_nearest_to_the_mean_first() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3**0.5 / 2, 0.5]])  # 0, 90 and 30 degrees; the mean: 38.8
    assert rank_by_distance(features, 3) == [2, 0, 1]
    assert rank_by_distance(features, 1) == [2]


def photos(count: int, value: int = 0) -> torch.Tensor:
    return torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(-1, 4, 4, 3) + value


def test_the_budget_holds_at_every_moment() -> None:
    memory = ExemplarMemory(10)
    for label in range(2):
        memory.add(label, photos(memory.quota(2)), [f"{label}-{rank}" for rank in range(5)])
    assert len(memory) == 10
    with pytest.raises(AssertionError):
        memory.add(2, photos(3), ["a", "b", "c"])
    memory.trim(3)
    assert len(memory) == 6
    memory.add(2, photos(3), ["a", "b", "c"])
    assert len(memory) == 9
    assert memory.names[0] == ["0-0", "0-1", "0-2"]
    assert memory.pixels[0][:, 0, 0, 0].tolist() == [0, 1, 2]
    assert memory.all_labels().tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert memory.all_pixels().shape == (9, 4, 4, 3)


def test_a_budget_below_one_photo_per_class_is_refused() -> None:
    with pytest.raises(UserError, match="cannot hold one of each"):
        ExemplarMemory(3).quota(4)


def test_trimming_frees_the_pixels() -> None:
    memory = ExemplarMemory(10)
    memory.add(0, photos(10), [str(i) for i in range(10)])
    before = memory.megabytes
    memory.trim(5)
    assert memory.megabytes == pytest.approx(before / 5)
    assert memory.pixels[0].untyped_storage().nbytes() == memory.pixels[0].nbytes
