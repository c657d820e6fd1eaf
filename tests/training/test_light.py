"""Light training: what learns and what does not, the views, and that a run with it is as good as any other."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fdcnet.config import Config
from fdcnet.data.records import Dataset
from fdcnet.memory import ExemplarMemory
from fdcnet.methods.base import State
from fdcnet.models.network import new_network
from fdcnet.runtime.listener import Epoch, Listener
from fdcnet.runtime.runtime import Runtime
from fdcnet.store.bundle import load_bundle
from fdcnet.training import light
from fdcnet.training.light import frozen_backbone, shared_views
from fdcnet.training.run import train
from fdcnet.training.seeding import seed_of

Make = Callable[..., Config]


@pytest.fixture
def state(small_config: Make) -> State:
    config = small_config("baseline", "train.views=3")
    network = new_network(config.model, 0)
    network.grow(2)
    return State(config, network, ExemplarMemory(9))


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.randint(0, 256, (5, 40, 40, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("method", ["baseline", "fdcnet"])
def test_only_the_heads_learn(small_dataset: Dataset, small_config: Make, method: str, tmp_path: Path) -> None:
    config = small_config(method, "train.views=2")
    train(config, small_dataset, tmp_path / "run")
    learned = load_bundle(tmp_path / "run" / "model").network.state_dict()
    for name, start in new_network(config.model, seed_of(config.seed, "new")).state_dict().items():
        held = name.startswith(("backbone.", "classifier.tail."))
        if held:
            assert torch.equal(learned[name], start), name
        elif name.startswith("classifier.hidden."):
            assert not torch.equal(learned[name], start), name


@pytest.mark.parametrize("sampling", ["natural", "paired"])
def test_a_stopped_light_run_goes_on_exactly(
    sampling: str, small_dataset: Dataset, small_config: Make, tmp_path: Path
) -> None:
    class Stop(Listener):
        count = 0

        def epoch_ended(self, epoch: Epoch) -> None:
            self.count += 1
            if self.count == 3:
                raise InterruptedError

    config = small_config("baseline", "train.views=2", f"train.sampling={sampling}")
    whole = train(config, small_dataset, tmp_path / "whole")
    with pytest.raises(InterruptedError):
        train(config, small_dataset, tmp_path / "stopped", listener=Stop())
    assert train(config, small_dataset, tmp_path / "stopped", resume=True)["tasks"] == whole["tasks"]
    first, second = (load_bundle(tmp_path / run / "model").network.state_dict() for run in ("whole", "stopped"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_networks_are_whole_again_afterwards(state: State) -> None:
    state.previous = state.network.frozen_copy()
    before = [dict(network.named_modules()).keys() for network in (state.network, state.previous)]
    with suppress(RuntimeError), frozen_backbone(state):
        assert not list(state.network.backbone.parameters())
        assert not list(state.network.classifier.tail.parameters())
        raise RuntimeError
    assert [dict(network.named_modules()).keys() for network in (state.network, state.previous)] == before
    assert all(parameter.requires_grad for parameter in state.network.parameters())


def test_inside_features_give_what_images_give_outside(state: State, pixels: torch.Tensor) -> None:
    runtime, labels = Runtime.of(state.config), torch.arange(5) % 2
    views = shared_views(state, runtime, state.network.backbone, pixels, labels, labels > 5, (0,))
    images = torch.rand(2, 3, 32, 32)
    state.network.eval()
    outside = state.network(images)
    with frozen_backbone(state):
        inside = state.network(outside.features)
    assert torch.equal(inside.scores, outside.scores)
    assert views.features.shape[:2] == (3, 5)


def test_the_first_views_are_the_whole_photo_and_its_mirror_image(state: State, pixels: torch.Tensor) -> None:
    state.network.backbone = torch.nn.Sequential()  # so that features are the images themselves
    labels = torch.arange(5) % 2
    views = shared_views(
        state, Runtime.of(state.config), state.network.backbone, pixels, labels, labels > 5, (0,)
    ).features
    assert torch.equal(views[1], views[0].flip(2))
    assert not torch.equal(views[2], views[0])


def test_an_epoch_shows_each_photo_once_and_can_be_repeated(state: State, pixels: torch.Tensor) -> None:
    labels = torch.arange(5)
    views = shared_views(state, Runtime.of(state.config), state.network.backbone, pixels, labels, labels > 2, (0,))
    order = [torch.tensor([4, 0]), torch.tensor([2, 1, 3])]
    first, again = list(views.batches(order, (1,))), list(views.batches(order, (1,)))
    assert [batch.labels.tolist() for batch in first] == [[4, 0], [2, 1, 3]]
    assert first[0].from_memory.tolist() == [True, False]
    assert all(torch.equal(a.images, b.images) for a, b in zip(first, again, strict=True))
    others = [batch for epoch in range(2, 6) for batch in views.batches(order, (epoch,))]
    assert any(not torch.equal(first[0].images, other.images) for other in others[::2])


def test_the_map_of_a_view_is_the_last_channel(state: State, pixels: torch.Tensor) -> None:
    state.network.backbone = torch.nn.Sequential()  # so that features are the images themselves
    runtime, labels = Runtime.of(state.config), torch.arange(5)
    arguments = (state, runtime, state.network.backbone, pixels, labels, labels > 2, (0,))
    views = shared_views(*arguments, lambda features, own: features[:, 1] + own[:, None, None])
    [batch] = views.batches([torch.tensor([3, 1])], (1,))
    [plain] = shared_views(*arguments).batches([torch.tensor([3, 1])], (1,))
    assert torch.equal(batch.images[:, :-1], plain.images)
    expected = plain.images[:, 1] + torch.tensor([3, 1])[:, None, None]
    torch.testing.assert_close(batch.images[:, -1], expected, rtol=0, atol=0.01)  # kept in half precision


def test_what_does_not_fit_into_memory_goes_to_a_file(
    state: State, pixels: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = torch.arange(5)
    runtime = replace(Runtime.of(state.config), cache_dir=tmp_path / "cache")
    in_memory = shared_views(state, runtime, state.network.backbone, pixels, labels, labels > 2, (0,))
    monkeypatch.setattr(light, "IN_MEMORY", 0)
    in_file = shared_views(state, runtime, state.network.backbone, pixels, labels, labels > 2, (0,))
    assert torch.equal(in_file.features, in_memory.features)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_no_step_waits_for_features(state: State, pixels: torch.Tensor) -> None:
    runtime, labels = Runtime.of(replace(state.config, device="cuda")), torch.arange(5)
    runtime.place(state.network)
    views = shared_views(state, runtime, state.network.backbone, pixels, labels, labels > 2, (0,))
    assert views.features.is_cuda
    batches = views.batches([torch.tensor([4, 0]), torch.tensor([2, 1, 3])], (1,))
    next(batches)  # moves the indices of all steps
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert len(next(batches).labels) == 3
    finally:
        torch.cuda.set_sync_debug_mode("default")
