"""What every method must do. One that must differ declares it (`one_task`, `uses_memory`) and is tested as declared."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fdcnet import methods
from fdcnet.config import Config
from fdcnet.data.cache import PixelCache
from fdcnet.data.records import Batch, Dataset, Task
from fdcnet.data.stream import make_stream
from fdcnet.errors import UserError
from fdcnet.memory import ExemplarMemory
from fdcnet.methods import find_method
from fdcnet.methods.base import State
from fdcnet.methods.fdcnet import FDCNet
from fdcnet.models.drift import scaled_compensation
from fdcnet.models.network import new_network
from fdcnet.runtime.listener import Epoch, Listener
from fdcnet.runtime.runtime import Runtime
from fdcnet.store.bundle import load_bundle
from fdcnet.training.checkpoint import read_position
from fdcnet.training.run import train
from fdcnet.training.task import learn_task

Make = Callable[..., Config]
METHODS = sorted(methods.METHODS)
INCREMENTAL = [name for name in METHODS if not find_method(name).one_task]


def tensors(run: Path) -> dict[str, torch.Tensor]:
    """Of the network and of the closed-form classifier."""
    state = load_bundle(run / "model")
    statistics = state.discriminant.state_dict() if state.discriminant else {}
    return state.network.state_dict() | {f"discriminant.{name}": value for name, value in statistics.items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_is_recorded_and_its_model_loads_again(
    name: str, small_dataset: Dataset, tmp_path: Path, small_config: Make
) -> None:
    results = train(small_config(name), small_dataset, tmp_path / "run")
    num_tasks = 1 if find_method(name).one_task else 2
    assert [task["num_classes"] for task in results["tasks"]] == [2, 4][-num_tasks:]
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == results
    second = json.loads((tmp_path / "run" / "results-topk-mean.json").read_text())
    assert second["protocol"]["map"] == "topk-mean"
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    learned = [line for line in lines if line["phase"] != "drift" and line["task"] == num_tasks]
    assert len(learned) == 2  # in one phase or two: as many epochs for every method
    terms = {"separation"} if find_method(name).closed_form else {"cls", "cls_fg", "bas", "area"}
    assert terms <= learned[0]["losses"].keys()

    state = load_bundle(tmp_path / "run" / "model")
    assert state.classes == list(small_dataset.classes)
    again = load_bundle(tmp_path / "run" / "model")
    images = torch.randn(2, 3, 32, 32)
    method = find_method(name)()
    assert torch.equal(method.outputs(state, images).scores, method.outputs(again, images).scores)
    assert method.outputs(state, images).scores.shape == (2, 4)
    assert method.outputs(state, images).masks.shape == (2, 4, 8, 8)
    assert torch.equal(method.outputs(state, images, maps=False).scores, method.outputs(state, images).scores)
    scores_only = method.outputs(state, images, maps=False)
    assert scores_only.masks.shape == (2, 0, 8, 8)
    for labels in (torch.tensor([0, 3]), torch.tensor([2, 1])):
        wanted = method.outputs(state, images).masks[torch.arange(2), labels]
        assert torch.allclose(method.masks_of(state, scores_only, labels), wanted, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_the_seed_decides_the_result(name: str, small_dataset: Dataset, tmp_path: Path, small_config: Make) -> None:
    for run, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(hash(run))  # whatever went on before must not matter
        train(small_config(name, f"seed={seed}"), small_dataset, tmp_path / run)
    assert same(tensors(tmp_path / "a"), tensors(tmp_path / "b"))
    assert not same(tensors(tmp_path / "a"), tensors(tmp_path / "c"))


class Killed(Exception):
    pass


class KillAt(Listener):
    """Dies in a step (1-based) of the epoch that follows the given number of epochs, before its checkpoint."""

    def __init__(self, epochs: int, step: int = 1) -> None:
        self.epochs, self.steps = epochs, step

    def epoch_ended(self, epoch: Epoch) -> None:
        self.epochs -= 1

    def step(self, num_images: int) -> None:
        if self.epochs == 0:
            self.steps -= 1
            if self.steps == 0:
                raise Killed


def gone_on(config: Config, dataset: Dataset, run: Path) -> dict[str, Any]:
    """What a resumed run measured: all but the note that it was resumed must be as if it had never been killed."""
    results = train(config, dataset, run, resume=True)
    assert len(results["made"].pop("resumed")) == 1
    return timeless(results)


def timeless(results: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from run to run: times and memory."""
    for name in ("seconds", "seconds_by_phase", "peak_memory_mb"):
        results["made"].pop(name, None)
    return results


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("epochs", "step"), [(1, 2), (3, 1)])
def test_a_killed_run_goes_on_exactly(
    name: str, epochs: int, step: int, small_dataset: Dataset, tmp_path: Path, small_config: Make
) -> None:
    if epochs > 2 and find_method(name).one_task:
        epochs = 1
    whole = train(small_config(name), small_dataset, tmp_path / "whole")
    with pytest.raises(Killed):
        train(small_config(name), small_dataset, tmp_path / "killed", listener=KillAt(epochs, step))
    position = read_position(tmp_path / "killed")
    assert position is not None and position.steps_done == step - 1
    resumed = gone_on(small_config(name), small_dataset, tmp_path / "killed")
    assert same(tensors(tmp_path / "whole"), tensors(tmp_path / "killed"))
    assert resumed == timeless(whole)

    def losses(run: str) -> list[Any]:
        lines = (tmp_path / run / "metrics.jsonl").read_text().splitlines()
        return [(line["task"], line["phase"], line["epoch"], line["losses"]) for line in map(json.loads, lines)]

    assert losses("whole") == losses("killed")


class RemoveOldPhotos(Listener):
    """When the second task starts, the first one's training photos are gone."""

    def __init__(self, first: Task) -> None:
        self.first = first

    def task_started(self, task: Task, num_tasks: int) -> None:
        if task.number == 2:
            for record in self.first.train:
                record.path.unlink()


@pytest.mark.parametrize("name", INCREMENTAL)
def test_old_photos_are_never_opened_again(
    name: str, small_dataset: Dataset, tmp_path: Path, small_config: Make
) -> None:
    first = make_stream(small_dataset, 2, 2)[0]
    results = train(small_config(name), small_dataset, tmp_path / "run", listener=RemoveOldPhotos(first))
    assert len(results["tasks"]) == 2


@pytest.mark.parametrize("name", METHODS)
def test_the_memory_keeps_its_budget_and_its_best(
    name: str, small_dataset: Dataset, tmp_path: Path, small_config: Make
) -> None:
    train(small_config(name), small_dataset, tmp_path / "run", listener=(snapshot := Snapshot(tmp_path / "run")))
    memory = load_bundle(tmp_path / "run" / "model").memory
    if not find_method(name).uses_memory:
        assert len(memory) == 0
        return
    assert len(memory) == 4 * (9 // 4)
    assert len(snapshot.memories[0]) == 2 * (9 // 2)
    for label in range(2):
        longer, shorter = snapshot.memories[0].names[label], memory.names[label]
        assert shorter == longer[: len(shorter)]
        assert torch.equal(memory.pixels[label], snapshot.memories[0].pixels[label][: len(shorter)])


class Snapshot(Listener):
    """The memory after each task."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.memories: list[ExemplarMemory] = []

    def task_ended(self, task: Task, summary: dict[str, Any]) -> None:
        self.memories.append(load_bundle(self.run / "model").memory)


@pytest.mark.parametrize("name", METHODS)
def test_heads_grow_and_old_outputs_stay(name: str, small_dataset: Dataset, small_config: Make) -> None:
    config = small_config(name)
    state = State(config, new_network(config.model, 0), ExemplarMemory(9))
    method = find_method(name)()
    first, second = make_stream(small_dataset, 2, 2)
    method.begin_task(state, first)
    assert state.network.num_classes == 2
    state.network.eval()
    images = torch.randn(2, 3, 32, 32)
    before = state.network(images)
    method.end_task(state, first)
    method.begin_task(state, second)
    after = state.network(images)
    assert after.scores.shape == (2, 4)
    torch.testing.assert_close(after.class_map[:, :2], before.class_map)
    torch.testing.assert_close(after.loc_map[:, :2], before.loc_map)


@pytest.mark.parametrize("name", [name for name in METHODS if issubclass(find_method(name), FDCNet)])
def test_only_the_drift_modules_change_in_the_drift_phase(
    name: str, small_dataset: Dataset, tmp_path: Path, small_config: Make
) -> None:
    for run, epochs in (("short", 1), ("long", 3)):
        train(small_config(name, f"drift.epochs={epochs}"), small_dataset, tmp_path / run)
    short, long = tensors(tmp_path / "short"), tensors(tmp_path / "long")
    changed = {key for key in short if not torch.equal(short[key], long[key])}
    assert changed
    assert all(key.startswith("drift.") for key in changed)


def test_drift_targets_chain_through_the_previous_modules(small_dataset: Dataset, small_config: Make) -> None:
    config = small_config("fdcnet", "drift.zero_start=false", "drift.new_photos=previous")
    state = State(config, new_network(config.model, 0), ExemplarMemory(9))
    method = FDCNet()
    first, second = make_stream(small_dataset, 2, 2)
    method.begin_task(state, first)
    assert state.network.drift is None
    method.begin_task(state, second)
    assert state.network.drift is not None and state.network.drift.num_old == 2
    third = replace(second, number=3, first_label=4)
    method.begin_task(state, third)
    assert state.previous is not None and state.previous.drift is not None
    assert state.network.drift.num_old == 4
    state.network.eval()
    batch = Batch(torch.randn(2, 3, 32, 32), torch.tensor([0, 5]), torch.tensor([True, False]))
    losses = method.drift_losses(state, batch)
    target = scaled_compensation(state.previous, state.previous(batch.images))
    now = scaled_compensation(state.network, state.network(batch.images))
    torch.testing.assert_close(losses["dc_cls"], (now.class_map[:, :4] - target.class_map).square().mean())
    torch.testing.assert_close(losses["dc_loc"], (now.loc_map[:, :4] - target.loc_map).square().mean())

    state.config = small_config("fdcnet", "drift.zero_start=false")  # the photo of a new class teaches: no change
    own = state.network(batch.images).loc_map[1, :4]
    expected = (
        (now.loc_map[0, :4] - target.loc_map[0]).square().mean() + (now.loc_map[1, :4] - own).square().mean()
    ) / 2
    torch.testing.assert_close(method.drift_losses(state, batch)["dc_loc"], expected)


@pytest.mark.parametrize(
    "options",
    [
        ("weights.kd_mean=1.0", "distill.average=0.3"),
        ("distill.compensated=true", "distill.softmax=all", "distill.masks=norm"),
        ("train.imprint=true", "train.sampling=balanced", "train.separate_softmax=true"),
        ("memory.features=tail", "memory.selection=ranked", "drift.place=after", "drift.loc_scale=0.2"),
        ("model.classifier=cosine", "model.learn_scale=false", "train.imprint=true"),
        ("model.classifier=cosine", "train.sampling=paired", "train.separate_softmax=true"),
        ("model.classifier=cosine", "model.feature_relu=true", "model.sharing=0", "model.localizer_start=random"),
    ],
)
def test_every_switch_of_the_family_trains_and_resumes(
    options: tuple[str, ...], small_dataset: Dataset, tmp_path: Path, small_config: Make
) -> None:
    settings = small_config("fdcnet", *options)
    whole = train(settings, small_dataset, tmp_path / "whole")
    with pytest.raises(Killed):
        train(settings, small_dataset, tmp_path / "killed", listener=KillAt(5))  # in the drift phase of task 2
    assert gone_on(settings, small_dataset, tmp_path / "killed") == timeless(whole)
    assert same(tensors(tmp_path / "whole"), tensors(tmp_path / "killed"))


@pytest.mark.parametrize("name", [name for name in INCREMENTAL if find_method(name).uses_memory])
@pytest.mark.parametrize("sampling", ["balanced", "paired"])
def test_a_lesson_may_be_about_known_classes_alone(
    name: str, sampling: str, small_dataset: Dataset, tmp_path: Path, small_config: Make
) -> None:
    """As `fdcnet learn --more` gives it: no new class, and the further photos among the exemplars."""
    train(small_config(name, f"train.sampling={sampling}"), small_dataset, tmp_path / "run")
    state, task = load_bundle(tmp_path / "run" / "model"), Task(3, (), 4, (), ())
    runtime = Runtime.of(state.config)
    nothing = PixelCache.build((), state.config.data.size, None, runtime.device)
    learn_task(state, find_method(name)(), task, nothing, runtime)
    assert len(state.classes) == 4 and not same(state.network.state_dict(), tensors(tmp_path / "run"))


class CountPhotos(Listener):
    """How many photos each task has shown."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def task_started(self, task: Task, num_tasks: int) -> None:
        self.seen.append(0)

    def phase_started(self, name: str, first_epoch: int, epochs: int, num_images: int) -> None:
        self.counts = name != "drift"  # a phase that leaves the network alone: extra, and said so

    def step(self, num_images: int) -> None:
        self.seen[-1] += num_images if self.counts else 0


@pytest.mark.parametrize("name", [name for name in INCREMENTAL if find_method(name).uses_memory])
def test_every_method_with_a_memory_sees_as_many_photos(
    name: str, small_dataset: Dataset, tmp_path: Path, small_config: Make
) -> None:
    train(small_config(name), small_dataset, tmp_path / "run", listener=(listener := CountPhotos()))
    assert listener.seen == [2 * 12, 2 * (12 + 8)]


@pytest.mark.parametrize("name", INCREMENTAL)
def test_a_base_model_of_another_method_is_taken_over(
    name: str, small_dataset: Dataset, tmp_path: Path, small_config: Make
) -> None:
    head = f"model.classifier={find_method(name).classifier or 'linear'}"
    base = small_config("finetune", head, "data.base_classes=0", "data.step_classes=0")
    train(base, small_dataset.first(2), tmp_path / "base")
    results = train(small_config(name), small_dataset, tmp_path / "run", base_model=tmp_path / "base" / "model")
    assert [task["num_classes"] for task in results["tasks"]] == [2, 4]


@pytest.mark.parametrize("name", METHODS)
def test_it_trains_in_bfloat16(name: str, small_dataset: Dataset, tmp_path: Path, small_config: Make) -> None:
    train(small_config(name, "train.precision=bf16"), small_dataset, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert all(value == value for line in lines for value in json.loads(line)["losses"].values())


@pytest.mark.parametrize("name", [name for name in METHODS if find_method(name).classifier])
def test_another_classifier_is_refused_with_what_to_set(
    name: str, small_dataset: Dataset, tmp_path: Path, small_config: Make
) -> None:
    wanted = find_method(name).classifier
    other = "linear" if wanted == "cosine" else "cosine"
    with pytest.raises(UserError, match=f"Set model.classifier={wanted}"):
        train(small_config(name, f"model.classifier={other}"), small_dataset, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("epochs", [3, 4, 5])
@pytest.mark.parametrize("name", ["aanets", "foster"])
def test_long_tasks_go_on_exactly_wherever_they_are_killed(
    name: str, epochs: int, small_dataset: Dataset, tmp_path: Path, small_config: Make
) -> None:
    """FOSTER: in boosting, at its end, in compression. AANets: with momenta of branches and shares."""
    config = small_config(
        name, "train.step_epochs=4", "aanets.outer_every=2", "data.base_classes=2", "data.step_classes=1"
    )
    whole = train(config, small_dataset, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, small_dataset, tmp_path / "killed", listener=KillAt(epochs))
    assert gone_on(config, small_dataset, tmp_path / "killed") == timeless(whole)
    assert same(tensors(tmp_path / "whole"), tensors(tmp_path / "killed"))


@pytest.mark.parametrize("backbone", ["mobilenet_v1", "inception_v3"])
@pytest.mark.parametrize("name", ["aanets", "foster"])  # those that change the network
def test_the_peers_learn_on_the_paper_s_backbones(
    name: str, backbone: str, small_dataset: Dataset, tmp_path: Path, small_config: Make
) -> None:
    larger = ("data.size=52", "data.crop=48", f"model.backbone={backbone}", "train.optim.lr=0.001")
    shorter = ("train.base_epochs=1", "train.batch_size=10", "protocols=[{map: class, crops: 1}]")
    config = small_config(name, *larger, *shorter)
    with pytest.raises(Killed):
        train(config, small_dataset, tmp_path / "run", listener=KillAt(2))
    results = train(config, small_dataset, tmp_path / "run", resume=True)
    assert [task["num_classes"] for task in results["tasks"]] == [2, 4]


def test_old_class_weights_of_rebalancing_keep_their_direction(
    small_dataset: Dataset, tmp_path: Path, small_config: Make
) -> None:
    directions = []
    for epochs in (1, 3):
        train(small_config("rebalancing", f"train.step_epochs={epochs}"), small_dataset, tmp_path / str(epochs))
        weight = tensors(tmp_path / str(epochs))["classifier.output.weight"]
        directions.append(torch.nn.functional.normalize(weight, dim=1))
    torch.testing.assert_close(directions[0][:2], directions[1][:2])
    assert not torch.allclose(directions[0][2:], directions[1][2:])


def test_aanets_learns_its_shares_on_outer_steps_alone(
    small_dataset: Dataset, tmp_path: Path, small_config: Make
) -> None:
    config = small_config("aanets", "aanets.outer_lr=0.1", "data.step_classes=1")
    train(config, small_dataset, tmp_path / "run")
    found = tensors(tmp_path / "run")
    shares = [value.item() for name, value in found.items() if name.endswith(".logit")]
    assert len(shares) == 4
    assert all(share != 0 for share in shares)
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert ["shares" in line["losses"] for line in lines] == [False, False, True, True, True, True]

    state = State(config, new_network(config.model, 0), ExemplarMemory(9))
    method = find_method("aanets")()
    first, second, _ = make_stream(small_dataset, 2, 1)
    method.begin_task(state, first)
    method.begin_task(state, second)
    state.network.train()
    batch = Batch(torch.randn(2, 3, 32, 32), torch.tensor([0, 2]), torch.tensor([True, True]))
    [main] = method.phases(state, second)
    assert main.outer is not None
    buffers = {name: value.clone() for name, value in state.network.named_buffers()}
    main.outer.losses(batch)["shares"].backward()
    moved = {name for name, value in state.network.named_parameters() if value.grad is not None}
    assert moved == set(main.outer.parameters)
    assert all(torch.equal(value, buffers[name]) for name, value in state.network.named_buffers())
    state.network.zero_grad(set_to_none=True)
    sum(main.losses(batch).values()).backward()
    moved = {name for name, value in state.network.named_parameters() if value.grad is not None}
    assert moved == set(main.parameters)
