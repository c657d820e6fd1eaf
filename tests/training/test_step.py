import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from fdcnet.config import Config, OptimConfig
from fdcnet.data.records import Batch, Dataset
from fdcnet.losses.bas import shifted_masks
from fdcnet.methods import METHODS
from fdcnet.methods.base import Phase
from fdcnet.models.kernels import in_use
from fdcnet.runtime.listener import Listener
from fdcnet.training import micro_batch, optim
from fdcnet.training import step as step_module
from fdcnet.training.run import train
from fdcnet.training.step import NOT_RECORDED, RecordedStep, Step, make_step, warmed_up

NO_AUTOCAST = torch.autocast("cpu", enabled=False)
PLAIN = OptimConfig(lr=0.1, momentum=0.0, weight_decay=0.0, head_factor=1.0, schedule="constant")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def batch_of(value: float, device: str = "cpu") -> Batch:
    labels = torch.zeros(2, dtype=torch.int64, device=device)
    return Batch(torch.full((2, 3, 1, 1), value, device=device), labels, labels.bool())


def test_losses_are_weighted_in_the_sum_and_returned_unweighted() -> None:
    # loss a = w x with weight 1, b = w with weight 5; at 1/4 of a warm-up over half of the phase, b counts half
    weight = nn.Parameter(torch.tensor(1.0))
    phase = Phase(
        name="main",
        epochs=1,
        parameters={"weight": weight},
        losses=lambda batch: {"a": weight * batch.images.mean(), "b": weight * 1.0},
        training=(),
        optim=PLAIN,
        weights={"b": 5.0},
        warmup={"b": 0.5},
    )
    values = Step(optim.make_optimizer(phase), NO_AUTOCAST)(phase, batch_of(3.0), progress=0.25)
    assert values.names == ("a", "b")
    assert values.unweighted.tolist() == [3.0, 1.0]
    assert values.weights.tolist() == [1.0, 2.5]
    assert not values.unweighted.requires_grad
    assert weight.item() == pytest.approx(1 - 0.1 * (3 + 2.5))
    assert warmed_up(phase, "b", 0.5) == 1.0


def test_a_cpu_records_nothing() -> None:
    weight = nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.SGD([weight])
    step = make_step(optimizer, NO_AUTOCAST, torch.device("cpu"), 100, True, lambda text: None)
    assert type(step) is Step


def test_several_processes_on_gpus_are_told_that_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "num_processes", lambda: 2)
    optimizer, notes = torch.optim.SGD([nn.Parameter(torch.tensor(1.0))]), []
    for device, graphs in (("cuda", True), ("cuda", False), ("cpu", True)):
        assert type(make_step(optimizer, NO_AUTOCAST, torch.device(device), 100, graphs, notes.append)) is Step
    assert notes == [NOT_RECORDED]


class Notes(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@needs_gpu
@pytest.mark.parametrize("name", sorted(METHODS))
def test_recorded_steps_train_as_ordinary_ones_do(
    name: str, small_dataset: Dataset, small_config: Callable[..., Config], tmp_path: Path
) -> None:
    """Every method and phase: nothing falls back, and the loss curves agree to the rounding of atomic sums."""
    curves = []
    for graphs in ("false", "true"):
        notes = Notes()
        long = ("train.base_epochs=8", "train.step_epochs=12", "drift.epochs=8", "train.optim.clip_norm=5")
        settings = ("device=cuda", "train.precision=fp32", f"train.graphs={graphs}", *long)
        train(small_config(name, *settings), small_dataset, tmp_path / graphs, listener=notes)
        assert not [note for note in notes.notes if "CUDA graphs" in note]
        lines = (tmp_path / graphs / "metrics.jsonl").read_text().splitlines()
        curves.append([value for line in map(json.loads, lines) for value in line["losses"].values()])
    assert curves[1] == pytest.approx(curves[0], rel=0.05, abs=2e-3)


@needs_gpu
def test_a_step_that_waits_for_the_gpu_is_not_recorded_and_says_so_once() -> None:
    weight = nn.Parameter(torch.tensor(1.0, device="cuda"))
    own_kernels = []

    def losses(batch: Batch) -> dict[str, torch.Tensor]:
        own_kernels.append(in_use())
        return {"a": weight * batch.images.mean().item()}  # .item() waits

    phase = Phase("main", 1, {"weight": weight}, losses, (), PLAIN)
    notes: list[str] = []
    step = RecordedStep(optim.make_optimizer(phase), torch.autocast("cuda", enabled=False), 100, notes.append)
    for _ in range(8):
        optim.set_rate(step.optimizer, 0.0)
        step(phase, batch_of(1.0, "cuda"), 0.0)
    assert len(notes) == 1 and "cannot be recorded" in notes[0]
    assert own_kernels[:4] == [True] * 4 and not any(own_kernels[4:])  # three steps and the recording that failed
    assert weight.item() == pytest.approx(1 - 8 * 0.1, abs=1e-5)


@needs_gpu
def test_a_recorded_step_follows_rates_weights_and_photos() -> None:
    """w -= lr * 2 x, with another rate and another photo in each step: compared with the same by hand."""
    weight = nn.Parameter(torch.tensor(0.0, device="cuda"))
    phase = Phase(
        "main", 1, {"weight": weight}, lambda batch: {"a": weight * batch.images.mean()}, (), PLAIN, weights={"a": 2.0}
    )
    step = RecordedStep(optim.make_optimizer(phase), torch.autocast("cuda", enabled=False), 100)
    expected = 0.0
    for number in range(1, 9):
        rate = 0.01 * number
        step.optimizer.param_groups[0]["lr"].fill_(rate)
        step(phase, batch_of(float(number), "cuda"), 0.0)
        expected -= rate * 2 * number
    assert step.recordings
    assert weight.item() == pytest.approx(expected, rel=1e-5)


def test_parts_of_a_batch_add_up_to_its_gradient() -> None:
    # loss = w x, batch mean; images 1, 2, 3, 4, 5: mean 3 in one part and in parts of 2, 2 and 1
    images = torch.arange(1.0, 6.0).reshape(5, 1, 1, 1)
    batch = Batch(images, torch.zeros(5, dtype=torch.int64), torch.zeros(5, dtype=torch.bool))
    for size, parts in ((0, 1), (2, 3)):
        weight, seen = nn.Parameter(torch.tensor(1.0)), []

        def losses(part: Batch, weight: nn.Parameter = weight, seen: list[int] = seen) -> dict[str, torch.Tensor]:
            seen.append(len(part.labels))
            return {"a": weight * part.images.mean()}

        phase = Phase(name="main", epochs=1, parameters={"weight": weight}, losses=losses, training=(), optim=PLAIN)
        values = Step(optim.make_optimizer(phase), NO_AUTOCAST, size)(phase, batch, progress=0.0)
        assert len(seen) == parts and sum(seen) == 5
        assert values.unweighted.tolist() == pytest.approx([3.0])
        assert weight.item() == pytest.approx(1 - 0.1 * 3)


def test_photos_keep_their_mask_shifts_in_parts_of_a_batch() -> None:
    images = torch.zeros(5, 1, 1, 1)
    batch = Batch(images, torch.zeros(5, dtype=torch.int64), torch.zeros(5, dtype=torch.bool))
    for part in ((0, 1), (1, 2)):  # alone, and the second of two processes
        shared = batch._replace(part=part)
        whole = shifted_masks(shared.images, *shared.part)
        parts = [shifted_masks(own.images, *own.part) for own in micro_batch.split(shared, 2)]
        assert len(parts) == 3 and torch.equal(torch.cat(parts), whole)


def test_a_machine_with_little_memory_computes_batches_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    # 64 photos of 3 x 8 x 8 floats; the square keeps its input, 768 bytes a photo, times 1.1
    layer = nn.BatchNorm2d(3)
    phase = Phase(
        name="main",
        epochs=1,
        parameters=dict(layer.named_parameters()),
        losses=lambda batch: {"a": (batch.images * layer.weight.mean()).square().mean()},
        training=(layer,),
        optim=PLAIN,
    )
    labels = torch.zeros(64, dtype=torch.int64)
    batch = Batch(torch.randn(64, 3, 8, 8), labels, labels.bool())
    kept = micro_batch.bytes_kept(phase, batch._replace(images=batch.images[:2].clone()), NO_AUTOCAST)
    assert kept == pytest.approx(2 * 2 * 768, rel=0.1)  # the photos for the product, the product for the square
    assert layer.training and layer.num_batches_tracked == 0

    notes: list[str] = []
    monkeypatch.setattr(micro_batch, "machine_memory", lambda: round(16 * 1.1 * kept / 2 / 0.5) + 1)
    assert micro_batch.photos_at_a_time(phase, batch, NO_AUTOCAST, notes.append) == 16
    assert "computed in 4 parts" in notes[0]
    monkeypatch.setattr(micro_batch, "machine_memory", lambda: 64 * 10**9)
    assert micro_batch.photos_at_a_time(phase, batch, NO_AUTOCAST) == 64
