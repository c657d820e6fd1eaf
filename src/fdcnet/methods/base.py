"""What a method is: the phases of a task and their named losses. The base class is naive fine-tuning of BAS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fdcnet.config import Config, OptimConfig
from fdcnet.data.records import Batch, Task
from fdcnet.losses import bas
from fdcnet.memory import ExemplarMemory, HeldOut
from fdcnet.models.network import LocalizationNetwork, Outputs

Losses = dict[str, Tensor]


@dataclass
class State:
    """What passes from task to task."""

    config: Config
    network: LocalizationNetwork
    memory: ExemplarMemory
    classes: list[str] = field(default_factory=list)
    task_sizes: list[int] = field(default_factory=list)  # number of classes of each finished task
    previous: LocalizationNetwork | None = None  # frozen, while a task is being learned
    held_out: HeldOut | None = None

    @property
    def task_numbers(self) -> list[int]:
        """The task (1-based) in which each class came."""
        return [number for number, size in enumerate(self.task_sizes, start=1) for _ in range(size)]


@dataclass(frozen=True)
class Phase:
    """One optimisation run: all that the trainer knows about a method."""

    name: str
    epochs: int
    parameters: dict[str, nn.Parameter]
    losses: Callable[[Batch], Losses]  # named and weighted: the loop sums, logs and backpropagates
    training: tuple[nn.Module, ...]  # in train mode; everything else stays as it is
    optim: OptimConfig
    is_head: Callable[[str], bool] = lambda name: True  # learned from scratch, so at the higher rate
    data: Literal["new+memory", "balanced"] = "new+memory"
    warmup: Mapping[str, float] = field(default_factory=dict)  # loss -> share of the phase over which it rises


class Method:
    """Subclasses say what makes them different and nothing else."""

    name: ClassVar[str] = "finetune"
    summary: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    uses_memory: ClassVar[bool] = False
    one_task: ClassVar[bool] = False  # sees the data of all tasks at once

    def begin_task(self, state: State, task: Task) -> None:
        """Grow the heads; the outputs for old classes stay unchanged."""
        state.network.grow(len(task.classes))

    def phases(self, state: State, task: Task) -> list[Phase]:
        train = state.config.train
        rate = train.step_lr if task.num_old and train.step_lr else train.optim.lr
        return [
            Phase(
                name="main",
                epochs=train.base_epochs if task.number == 1 else train.step_epochs,
                parameters=dict(state.network.named_parameters()),
                losses=lambda batch: self.losses(state, state.network(batch.images, batch.labels), batch),
                training=(state.network,),
                optim=replace(train.optim, lr=rate),
                is_head=state.network.is_head,
                warmup=dict.fromkeys(("cls_fg", "bas", "area"), 0.0 if task.num_old else train.loc_warmup),
                data="balanced" if train.sampling == "balanced" and task.num_old else "new+memory",
            )
        ]

    def losses(self, state: State, outputs: Outputs, batch: Batch) -> Losses:
        return wsol_losses(state, outputs, batch)

    def end_task(self, state: State, task: Task) -> None:
        state.previous = None

    def outputs(self, state: State, images: Tensor, maps: bool = True) -> Outputs:
        """What the finished model says about images, for all classes so far; without `maps` no localization."""
        return self.finish(state, state.network(images, maps=maps))

    def finish(self, state: State, outputs: Outputs) -> Outputs:
        """What the method adds to the network's own outputs."""
        return outputs

    def masks_of(self, state: State, outputs: Outputs, labels: Tensor) -> Tensor:
        """The masks that `outputs` would have had for one class per image, where it was called without `maps`."""
        return state.network.masks_of(outputs, labels)


def wsol_losses(state: State, outputs: Outputs, batch: Batch) -> Losses:
    """L_wsol (equation 6), term by term."""
    weights, train = state.config.weights, state.config.train
    masks = outputs.masks
    apart = None
    if train.separate_softmax and state.previous is not None:
        apart = other_side(batch.labels, state.previous.num_classes, outputs.class_map.shape[1])
    losses = {
        "cls": bas.classification(outputs.scores, batch.labels, train.label_smoothing, apart),
        "area": weights.area * bas.area(masks),
    }
    if weights.cls_fg:
        foreground = bas.foreground_scores(outputs.activation_map, masks)
        losses["cls_fg"] = weights.cls_fg * bas.classification(foreground, batch.labels, apart=apart)
    if weights.bas:
        background = state.network.background_score(outputs.features, masks, batch.labels)
        image = bas.class_score(outputs.activation_map, batch.labels)
        losses["bas"] = weights.bas * bas.background_suppression(background, image)
    return losses


def other_side(labels: Tensor, num_old: int, num_classes: int) -> Tensor:
    """Separated softmax: for each photo of a new class, the old classes, with which it does not compete. (B, K) bool"""
    return (labels >= num_old)[:, None] & (torch.arange(num_classes, device=labels.device) < num_old)
