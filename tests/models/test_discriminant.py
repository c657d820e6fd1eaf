"""The closed-form classifier: values computed by hand, and that the order of photos does not matter."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fdcnet.models.discriminant import STIFFNESS, Discriminant, affine_drift, fit_temperature

# Two classes in the plane, means (1, 0) and (5, 2); within them x varies by 1, -1 and y by 2, -2.
FEATURES = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 0.0], [5.0, 4.0]])
LABELS = torch.tensor([0, 0, 1, 1])


def fitted(features: Tensor = FEATURES, labels: Tensor = LABELS, **settings: object) -> Discriminant:
    found = Discriminant(features.shape[1], **settings)  # type: ignore[arg-type]
    found.add(features, labels)
    return found


def random_photos(num: int = 60, dim: int = 7, num_classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(num) % num_classes
    centres = 2 * torch.randn(num_classes, dim, generator=generator)
    return centres[labels] + torch.randn(num, dim, generator=generator), labels


def test_weights_and_bias_by_hand() -> None:
    """Scatter diag(2, 8) over 4 - 2 degrees of freedom: covariance diag(1, 4)."""
    found = fitted(shrinkage=0)
    torch.testing.assert_close(found.covariance(), torch.tensor([[1.0, 0], [0, 4]]).double())
    solution = found.solve()
    torch.testing.assert_close(solution.weight, torch.tensor([[1.0, 0], [5, 0.5]]).double())
    torch.testing.assert_close(solution.bias, torch.tensor([-0.5, -13]).double())
    torch.testing.assert_close(found.scores(torch.tensor([[3.0, 2.0]])), torch.tensor([[2.5, 3.0]]).double())


def test_distances_by_hand() -> None:
    distances = fitted(shrinkage=0).distances(torch.tensor([[3.0, 2.0], [1.0, 6.0]]))
    torch.testing.assert_close(distances, torch.tensor([[5.0, 4.0], [9.0, 20.0]]).double())
    nearest = fitted(shrinkage=0).nearest_distance(torch.tensor([[3.0, 2.0], [1.0, 6.0]]))
    torch.testing.assert_close(nearest, torch.tensor([2.0, 3.0]).double())


def test_a_transformation_by_hand() -> None:
    """Axes swapped, the new first one doubled, then one step along it: (1, 0) goes to (1, 1), and (5, 2) to (5, 5)."""
    found = fitted(shrinkage=0)
    found.transform(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(found.solve().means, torch.tensor([[1.0, 1.0], [5.0, 5.0]]).double())
    torch.testing.assert_close(found.covariance(), torch.tensor([[16.0, 0], [0, 1]]).double())
    assert found.counts.tolist() == [2.0, 2.0]


def test_a_removed_photo_leaves_no_trace() -> None:
    features, labels = random_photos()
    found, expected = fitted(features, labels), fitted(features[20:], labels[20:])
    found.remove(features[:20], labels[:20])
    torch.testing.assert_close(found.covariance(), expected.covariance())
    torch.testing.assert_close(found.solve().means, expected.solve().means)
    assert found.counts.tolist() == expected.counts.tolist()


def test_removed_features_may_be_rounded_otherwise() -> None:
    """Another batch size is enough. With more features than photos and no shrinkage, the covariance is singular."""
    features, labels = random_photos(dim=70)
    found = fitted(features, labels, shrinkage=0)
    noise = 1e-4 * torch.randn(50, 70, generator=torch.Generator().manual_seed(2))
    found.remove(features[10:] + noise, labels[10:])
    found.add(features[10:], labels[10:])
    assert found.solve().weight.isfinite().all()
    found.remove(features + 1e-4, labels)
    assert not found.counts.any() and not found.sums.any()


def test_transformed_statistics_are_those_of_transformed_photos() -> None:
    features, labels = random_photos()
    generator = torch.Generator().manual_seed(5)
    matrix, offset = torch.randn(7, 7, generator=generator), torch.randn(7, generator=generator)
    found = fitted(features, labels)
    found.transform(matrix, offset)
    expected = fitted(features.double() @ matrix.double() + offset.double(), labels)
    torch.testing.assert_close(found.covariance(), expected.covariance())
    torch.testing.assert_close(found.sums, expected.sums)


def test_a_saved_discriminant_is_transformed_exactly_alike() -> None:
    """So that a resumed run goes on exactly: the file holds one half of the scatter matrix."""
    found = fitted(*random_photos())
    loaded = Discriminant.from_state_dict(found.state_dict())
    for each in (found, loaded):
        each.transform(torch.eye(7) + 0.1, torch.ones(7))
    assert torch.equal(found.solve().weight, loaded.solve().weight)


def test_the_drift_of_features_by_hand() -> None:
    """x was -1 or 1 and is now 3 times as large; y is 2 higher. The ridge of x is half its moment (STIFFNESS 1)."""
    assert STIFFNESS == 1
    before = torch.tensor([[-1.0, 5.0], [1.0, 5.0]])
    matrix, offset = affine_drift(before, torch.tensor([[-3.0, 7.0], [3.0, 7.0]]))
    torch.testing.assert_close(matrix, torch.tensor([[1 + 2 * 2 / 3, 0.0], [0.0, 1.0]]).double())
    torch.testing.assert_close(offset, torch.tensor([0.0, 2.0]).double())


def test_many_photos_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = random_photos()
    after = features @ torch.randn(7, 7, generator=torch.Generator().manual_seed(6))
    drift, scatter = affine_drift(features, after), fitted(features, labels).scatter
    monkeypatch.setattr("fdcnet.models.discriminant.AT_ONCE", 17)
    for found, expected in zip(affine_drift(features, after), drift, strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(fitted(features, labels).scatter, scatter)


def test_features_that_did_not_move_stay() -> None:
    features, _ = random_photos()
    matrix, offset = affine_drift(features, features)
    torch.testing.assert_close(matrix, torch.eye(7).double())
    torch.testing.assert_close(offset, torch.zeros(7).double())


def test_shrinkage_by_hand() -> None:
    """Half-way to 2.5 times the identity."""
    factor = fitted(shrinkage=0.5).solve().factor
    torch.testing.assert_close(factor @ factor.T, torch.tensor([1.75, 3.25]).double().diag())


def test_the_class_means_are_whitened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a prediction does not grow with the classes times the square of the features."""
    found, features = fitted(), torch.tensor([[3.0, 2.0]])
    expected, lengths = found.distances(features), []
    solve_triangular = torch.linalg.solve_triangular

    def counting(factor: Tensor, vectors: Tensor, *, upper: bool) -> Tensor:
        lengths.append(vectors.shape[1])
        return solve_triangular(factor, vectors, upper=upper)

    monkeypatch.setattr(torch.linalg, "solve_triangular", counting)
    assert torch.equal(found.distances(features), expected) and lengths == [1]
    found.add(FEATURES + 1, LABELS)
    assert not torch.equal(found.distances(features), expected)


def test_the_order_of_photos_and_classes_over_calls_does_not_matter() -> None:
    features, labels = random_photos()
    at_once = fitted(features, labels)
    in_parts = Discriminant(7)
    for part in torch.randperm(60, generator=torch.Generator().manual_seed(1)).split(11):
        in_parts.add(features[part], labels[part])
    torch.testing.assert_close(in_parts.solve().means, at_once.solve().means)
    torch.testing.assert_close(in_parts.covariance(), at_once.covariance())
    torch.testing.assert_close(in_parts.scores(features), at_once.scores(features))


def test_temperature_divides_the_scores() -> None:
    torch.testing.assert_close(fitted(temperature=4.0).scores(FEATURES), fitted().scores(FEATURES) / 4)


def test_a_class_without_photos_is_never_chosen() -> None:
    found = fitted(labels=torch.tensor([0, 0, 2, 2]))
    assert found.num_classes == 3
    probabilities = found.scores(FEATURES).softmax(1)
    assert probabilities[:, 1].eq(0).all() and probabilities.isfinite().all()
    assert found.distances(FEATURES)[:, 1].isinf().all()


@pytest.mark.parametrize("num", [1, 2])
def test_hardly_any_photos_still_give_finite_scores(num: int) -> None:
    assert fitted(FEATURES[:num], LABELS[:num]).scores(FEATURES).isfinite().all()


def test_leaving_a_photo_out_is_as_if_it_had_never_been_added() -> None:
    features, labels = random_photos()
    shortcut = fitted(features, labels, shrinkage=0.0).distances_left_out(features, labels)
    for row in (0, 17, 42):
        rest = torch.arange(60) != row
        without = fitted(features[rest], labels[rest], shrinkage=0.0)
        expected = without.distances(features[row : row + 1])[0] * (60 - 4) / (59 - 4)  # one degree of freedom less
        torch.testing.assert_close(shortcut[row], expected)


def test_left_out_a_photo_is_farther_from_its_class() -> None:
    features, labels = random_photos(num=12)
    found, own = fitted(features, labels), labels[:, None]
    assert (found.distances_left_out(features, labels).gather(1, own) > found.distances(features).gather(1, own)).all()
    alone = fitted(torch.cat([features, features[:1] + 9]), torch.cat([labels, torch.tensor([4])]))
    assert alone.distances_left_out(features[:1] + 9, torch.tensor([4]))[0, 4].isinf()


def test_temperature_that_makes_probabilities_true() -> None:
    """Three of four right at a margin of 2: log(3) = 2 / T."""
    scores = torch.tensor([[2.0, 0.0]]).repeat(4, 1)
    assert fit_temperature(scores, torch.tensor([0, 0, 0, 1])) == pytest.approx(2 / math.log(3), rel=0.01)


def test_saved_and_loaded_it_goes_on(tmp_path: Path) -> None:
    features, labels = random_photos()
    found = fitted(features[:30], labels[:30], shrinkage=0.2, temperature=3.0, layer="class")
    save_file(found.state_dict(), tmp_path / "discriminant.safetensors")
    loaded = Discriminant.from_state_dict(load_file(tmp_path / "discriminant.safetensors"))
    for one in (found, loaded):
        one.add(features[30:], labels[30:])
    assert torch.equal(loaded.scores(features), found.scores(features))
    assert (loaded.shrinkage, loaded.temperature, loaded.layer) == (0.2, 3.0, "class")
