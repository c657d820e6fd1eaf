import torch

from fdcnet.data.records import Task
from fdcnet.training.imprint import imprinted_rows


def test_rows_point_to_the_class_mean_and_are_as_long_as_the_old_ones() -> None:
    task = Task(2, ("c", "d"), 2, (), ())
    weight = torch.tensor([[3.0, 4.0], [0.0, 1.0], [9.0, 9.0], [9.0, 9.0]])  # old norms 5 and 1: mean 3
    features = torch.tensor([[2.0, 0.0], [0.0, 7.0], [0.0, -1.0]])
    rows = imprinted_rows(features, torch.tensor([2, 2, 3]), task, weight)
    half = 3 / 2**0.5
    torch.testing.assert_close(rows, torch.tensor([[half, half], [0.0, -3.0]]))
