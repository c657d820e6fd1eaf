import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fdcnet.config import OptimConfig
from fdcnet.data.records import Batch
from fdcnet.methods.base import Losses, Phase
from fdcnet.runtime.listener import Epoch
from fdcnet.training import optim
from fdcnet.training.loop import GUARD_EVERY, Diverged, Done, Sums, doubtful_masks, run_phase
from fdcnet.training.step import Step

NO_AUTOCAST = torch.autocast("cpu", enabled=False)
PLAIN = OptimConfig(lr=0.1, momentum=0.0, weight_decay=0.0, head_factor=1.0, schedule="constant")


def batches_of(*values: float, size: int = 2) -> Callable[[int], Iterator[Batch]]:
    def epoch(number: int) -> Iterator[Batch]:
        for value in values:
            images = torch.full((size, 3, 1, 1), value)
            yield Batch(images, torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.bool))

    return epoch


def phase_of(
    weight: nn.Parameter, losses: Callable[[Batch], Losses], config: OptimConfig = PLAIN, epochs: int = 1
) -> Phase:
    return Phase("main", epochs, {"weight": weight}, losses, (), config)


def run(phase: Phase, values: tuple[float, ...], done: Done | None = None) -> tuple[list[Epoch], list[int]]:
    epochs: list[Epoch] = []
    steps: list[int] = []
    run_phase(
        phase,
        batches_of(*values),
        len(values),
        Step(optim.make_optimizer(phase), NO_AUTOCAST),
        done,
        on_step=lambda num_images, done: steps.append(num_images),
        on_epoch=epochs.append,
    )
    return epochs, steps


def test_the_named_losses_are_summed_and_their_means_told() -> None:
    # "a" is w * x, "b" is 3 w: the gradient is x + 3. w: 1 -> 1 - 0.1 (1 + 3) = 0.6 -> 0.6 - 0.1 (2 + 3) = 0.1
    weight = nn.Parameter(torch.tensor(1.0))
    phase = phase_of(weight, lambda batch: {"a": weight * batch.images[0, 0, 0, 0], "b": 3 * weight})
    [epoch], steps = run(phase, (1.0, 2.0))
    assert weight.item() == pytest.approx(0.1)
    assert epoch.number == 1
    assert epoch.losses == pytest.approx({"a": (1 * 1 + 0.6 * 2) / 2, "b": (3 * 1 + 3 * 0.6) / 2})
    assert epoch.lr == pytest.approx(0.1)
    assert epoch.images_per_second > 0
    assert steps == [2, 2]


def test_the_rate_follows_the_steps_of_the_whole_phase() -> None:
    # cosine over 2 epochs of 2 steps: the shares at the end of the epochs are 1/4 and 3/4
    weight = nn.Parameter(torch.tensor(1.0))
    cosine = OptimConfig(lr=0.1, momentum=0.0, head_factor=1.0)
    epochs, _ = run(phase_of(weight, lambda batch: {"a": 0 * weight}, cosine, epochs=2), (1.0, 1.0))
    assert [epoch.lr for epoch in epochs] == pytest.approx([0.0853553, 0.0146447], abs=1e-6)


def test_it_begins_where_it_is_told() -> None:
    weight = nn.Parameter(torch.tensor(1.0))
    phase = phase_of(weight, lambda batch: {"a": weight}, epochs=3)
    epochs, _ = run(phase, (1.0,), Done(epochs=2))
    assert [epoch.number for epoch in epochs] == [3]
    assert run(phase, (1.0,), Done(epochs=3))[0] == []  # all done before the kill


def test_it_continues_inside_an_epoch_with_the_losses_so_far() -> None:
    # Step 1 of epoch 2 has been done with a loss of 7; the others are w x = 2 and 4, so their mean is 13 / 3.
    weight = nn.Parameter(torch.tensor(1.0))
    phase = replace(
        phase_of(weight, lambda batch: {"a": weight * batch.images[0, 0, 0, 0]}, epochs=2),
        weights={"a": 0.0},
    )
    so_far = Sums({'["a"]': torch.tensor([[0.0], [7.0], [1.0]])})
    [epoch], steps = run(phase, (1.0, 2.0, 4.0), Done(1, 1, so_far))
    assert epoch.number == 2
    assert epoch.losses == {"a": 0.0}
    assert epoch.unweighted == pytest.approx({"a": 13 / 3})
    assert steps == [2, 2]


def test_every_step_says_how_far_the_phase_has_come() -> None:
    weight, seen = nn.Parameter(torch.tensor(1.0)), []
    phase = phase_of(weight, lambda batch: {"a": weight}, epochs=2)
    run_phase(
        phase,
        batches_of(1.0, 1.0),
        2,
        Step(optim.make_optimizer(phase), NO_AUTOCAST),
        on_step=lambda num_images, done: seen.append((done.epochs, done.steps)),
    )
    assert seen == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_only_the_named_modules_are_in_train_mode() -> None:
    learning, other = nn.BatchNorm2d(3).eval(), nn.BatchNorm2d(3).eval()
    seen: list[tuple[bool, bool]] = []

    def losses(batch: Batch) -> Losses:
        seen.append((learning.training, other.training))
        return {"a": learning(batch.images).sum()}

    phase = Phase("main", 1, dict(learning.named_parameters()), losses, (learning,), PLAIN)
    run(phase, (1.0,))
    assert seen == [(True, False)]
    assert not learning.training


def test_clip_norm_limits_the_whole_gradient() -> None:
    # gradient (3, 4) has norm 5; clipped to 1 it is (0.6, 0.8)
    weight = nn.Parameter(torch.zeros(2))
    config = OptimConfig(lr=1.0, momentum=0.0, weight_decay=0.0, head_factor=1.0, schedule="constant", clip_norm=1.0)
    run(phase_of(weight, lambda batch: {"a": 3 * weight[0], "b": 4 * weight[1]}, config), (1.0,))
    assert weight.tolist() == pytest.approx([-0.6, -0.8], abs=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_guard_names_the_terms_and_stops(bad: float) -> None:
    weight = nn.Parameter(torch.tensor(1.0))
    seen: list[float] = []

    def losses(batch: Batch) -> Losses:
        value: Tensor = batch.images[0, 0, 0, 0]
        seen.append(value.item())
        return {"cls": 0 * weight + 0.5, "area": weight * value}

    epochs: list[Epoch] = []
    phase = phase_of(weight, losses)
    with pytest.raises(Diverged) as error:
        run_phase(
            phase,
            batches_of(bad, *[1.0] * 99),
            100,
            Step(optim.make_optimizer(phase), NO_AUTOCAST),
            on_epoch=epochs.append,
        )
    assert "cls 0.5" in str(error.value)
    assert f"area {bad:.4g}" in str(error.value)
    assert "phase main, epoch 1, step 0" in str(error.value)
    assert len(seen) == 1
    assert epochs == []  # so no checkpoint is written


def test_the_guard_looks_at_the_end_of_an_epoch_too() -> None:
    weight = nn.Parameter(torch.tensor(1.0))
    phase = phase_of(weight, lambda batch: {"a": weight * batch.images[0, 0, 0, 0]})
    assert GUARD_EVERY > 3
    with pytest.raises(Diverged, match="epoch 1"):
        run(phase, (1.0, 1.0, math.nan))


def test_the_advice_of_the_guard_can_be_followed() -> None:
    """A run cannot be resumed with another rate: the advice must not say so."""
    weight = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(Diverged) as error:
        run(phase_of(weight, lambda batch: {"a": weight * math.nan}), (1.0,))
    assert "train.optim.lr" in str(error.value)
    assert "--resume" not in str(error.value)


def test_a_loss_that_warms_up_counts_by_its_share_of_the_phase() -> None:
    # Four steps, "b" rises over the first half: it counts 0, 1/2, 1, 1. The gradient of "a" is 1, that of "b" 2.
    weight = nn.Parameter(torch.tensor(0.0))
    phase = replace(phase_of(weight, lambda batch: {"a": weight * 1, "b": weight * 2}), warmup={"b": 0.5})
    run(phase, (0.0, 0.0, 0.0, 0.0))
    assert weight.item() == pytest.approx(-0.1 * (1 + 2 + 3 + 3))


def test_an_outer_step_has_its_own_losses_parameters_and_rate() -> None:
    inner, shares = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(1.0))
    slow = replace(PLAIN, lr=0.01)
    outer = Phase("outer", 1, {"shares": shares}, lambda batch: {"s": 2 * shares}, (), slow)
    phase = replace(phase_of(inner, lambda batch: {"a": 1 * inner}), outer=outer, outer_every=2)
    [epoch], _ = run(phase, (1.0, 1.0, 1.0, 1.0))
    assert inner.item() == pytest.approx(1 - 2 * 0.1)  # steps 1 and 3
    assert shares.item() == pytest.approx(1 - 2 * 0.01 * 2)  # steps 2 and 4
    assert epoch.losses == pytest.approx({"a": (1 + 0.9) / 2, "s": (2 + 2 * 0.98) / 2})
    assert epoch.lr == pytest.approx(0.1)


@pytest.mark.parametrize(("area", "word"), [(0.002, "nothing"), (0.99, "whole"), (0.3, None)])
def test_masks_that_empty_or_fill_the_photo_are_reported(area: float, word: str | None) -> None:
    warning = doubtful_masks({"cls": 2.0, "area": area}, is_last=False)
    assert warning is None if word is None else warning and word in warning


def test_masks_that_separate_nothing_are_reported_in_the_end() -> None:
    assert doubtful_masks({"separation": -0.5}, is_last=True) is None
    assert doubtful_masks({"separation": 0.0}, is_last=False) is None  # so it begins
    assert "do not separate" in str(doubtful_masks({"separation": 0.0}, is_last=True))
