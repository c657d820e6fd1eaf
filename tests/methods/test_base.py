import torch
from torch import Tensor

from fdcnet.data.records import Batch
from fdcnet.methods.base import excluded_old
from fdcnet.models.network import Outputs


def outputs_for(num_photos: int, num_classes: int) -> Outputs:
    maps = torch.zeros(num_photos, num_classes, 1, 1)
    return Outputs(maps, maps, maps, maps, maps, maps)


def test_only_new_photos_of_new_classes_leave_old_classes_alone() -> None:
    labels, from_memory = torch.tensor([0, 0, 2, 2]), torch.tensor([True, False, True, False])
    batch = Batch(torch.zeros(4, 3, 8, 8), labels, from_memory)
    apart: Tensor = excluded_old(batch, 2, outputs_for(4, 3))
    # More photos of class 0 (the second) must compete with it: it is their own.
    assert apart.tolist() == [[False] * 3, [False] * 3, [False] * 3, [True, True, False]]
