import pytest
import torch
from torch import nn

from fdcnet.config import OptimConfig
from fdcnet.methods.base import Phase
from fdcnet.training import optim

NAMES = ("backbone.conv.weight", "backbone.conv.bias", "classifier.output.weight", "classifier.output.bias")


def phase_of(config: OptimConfig, **parameters: nn.Parameter) -> Phase:
    named = parameters or {name: nn.Parameter(torch.ones(2)) for name in NAMES}
    return Phase(
        name="main",
        epochs=1,
        parameters=named,
        losses=lambda batch: {},
        training=(),
        optim=config,
        is_head=lambda name: name.startswith("classifier."),
    )


@pytest.mark.parametrize(
    ("progress", "expected"),
    [(0.0, 0.1), (0.25, 0.0853553), (0.5, 0.05), (0.75, 0.0146447), (1.0, 0.0)],  # 0.05 (1 + cos(pi progress))
)
def test_cosine_falls_from_the_rate_to_zero(progress: float, expected: float) -> None:
    assert optim.rate(progress, OptimConfig(lr=0.1)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("progress", "expected"), [(0.0, 0.1), (0.49, 0.1), (0.5, 0.01), (0.79, 0.01), (0.8, 0.001)])
def test_step_falls_tenfold_at_each_share(progress: float, expected: float) -> None:
    config = OptimConfig(lr=0.1, schedule="step", decay_at=(0.5, 0.8))
    assert optim.rate(progress, config) == pytest.approx(expected)


def test_constant_stays() -> None:
    assert [optim.rate(share, OptimConfig(lr=0.1, schedule="constant")) for share in (0.0, 0.5, 0.99)] == [0.1] * 3


@pytest.mark.parametrize(
    ("schedule", "progress", "expected"),
    [
        ("cosine", 0.0, 0.0),
        ("cosine", 0.1, 0.05),
        ("cosine", 0.2, 0.1),
        ("cosine", 0.6, 0.05),  # half of what is left after the warm-up
        ("constant", 0.05, 0.025),
        ("constant", 0.2, 0.1),
        ("step", 0.1, 0.05),
        ("step", 0.9, 0.01),
    ],
)
def test_warmup_rises_in_a_straight_line(schedule: str, progress: float, expected: float) -> None:
    config = OptimConfig(lr=0.1, schedule=schedule, warmup=0.2)  # type: ignore[arg-type]
    assert optim.rate(progress, config) == pytest.approx(expected)


def test_four_groups_have_four_rates() -> None:
    phase = phase_of(OptimConfig(lr=0.01, head_factor=10, bias_factor=2))
    optimizer = optim.make_optimizer(phase)
    assert optim.set_rate(optimizer, progress=0.0) == 0.01
    rates = {id(parameter): group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    found = [rates[id(phase.parameters[name])] for name in NAMES]
    assert found == pytest.approx([0.01, 0.02, 0.1, 0.2])
    assert len(rates) == 4


def test_one_step_by_hand() -> None:
    # gradient 2 + weight decay 0.1 * 1 = 2.1; Nesterov at the first step: 2.1 + 0.9 * 2.1 = 3.99; 1 - 0.1 * 3.99
    weight = nn.Parameter(torch.tensor([1.0]))
    phase = phase_of(OptimConfig(lr=0.1, weight_decay=0.1), **{"backbone.weight": weight})
    optimizer = optim.make_optimizer(phase)
    (2 * weight).sum().backward()
    optimizer.step()
    assert weight.item() == pytest.approx(0.601)


def test_nesterov_without_momentum_is_plain_descent() -> None:
    weight = nn.Parameter(torch.tensor([1.0]))
    phase = phase_of(OptimConfig(lr=0.1, momentum=0.0, nesterov=True, weight_decay=0.0), **{"backbone.weight": weight})
    optimizer = optim.make_optimizer(phase)
    (2 * weight).sum().backward()
    optimizer.step()
    assert weight.item() == pytest.approx(0.8)
    assert optim.momenta(optimizer, phase) == {}


def test_restored_momenta_go_on_to_the_last_bit() -> None:
    def walk(phase: Phase, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            sum((p * p * (i + step + 1)).sum() for i, p in enumerate(phase.parameters.values())).backward()  # type: ignore[union-attr]
            optimizer.step()

    config = OptimConfig(lr=0.01)
    whole = phase_of(config)
    optimizer = optim.make_optimizer(whole)
    walk(whole, optimizer, range(3))
    values = {name: nn.Parameter(value.detach().clone()) for name, value in whole.parameters.items()}
    saved = {name: buffer.clone() for name, buffer in optim.momenta(optimizer, whole).items()}
    walk(whole, optimizer, range(3, 5))

    resumed = phase_of(config, **values)
    fresh = optim.make_optimizer(resumed)
    optim.restore_momenta(fresh, resumed, saved)
    assert list(optim.momenta(fresh, resumed)) == list(NAMES)
    walk(resumed, fresh, range(3, 5))
    for name in NAMES:
        assert torch.equal(whole.parameters[name], resumed.parameters[name])
