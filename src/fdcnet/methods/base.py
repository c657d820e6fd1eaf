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
from fdcnet.models.discriminant import Discriminant
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
    photo_history: dict[str, bool] = field(default_factory=dict)
    """Every photo that `fdcnet learn` has had, by its `holdout.identity`: whether it taught (else it measured)."""
    scaffold: nn.ModuleDict = field(default_factory=nn.ModuleDict)
    """What else learns in a task and is not kept: in its checkpoints, not in the saved model."""

    discriminant: Discriminant | None = None
    """The closed-form classifier. Where there is one, it decides the class; the head then only trains the localizer."""

    def class_scores(self, outputs: Outputs) -> Tensor:
        """By the discriminant where there is one, else by the classifier head: (B, K)"""
        if self.discriminant is None:
            return outputs.scores
        scores = self.discriminant.scores(outputs.pooled(self.discriminant.layer))
        return scores.to(outputs.features.device, torch.float32)

    def is_unfamiliar(self, outputs: Outputs) -> Tensor:
        """Whether a photo may show none of the classes; false without a discriminant: (B,) bool"""
        if self.discriminant is None:
            return torch.zeros(len(outputs.features), dtype=torch.bool)
        return self.discriminant.is_unfamiliar(outputs.pooled(self.discriminant.layer))

    @property
    def task_numbers(self) -> list[int]:
        """The task (1-based) in which each class came."""
        return [number for number, size in enumerate(self.task_sizes, start=1) for _ in range(size)]


DataKind = Literal["new+memory", "balanced", "paired", "exemplars"]
"""new+memory: each photo once. balanced: all classes equally often. exemplars: the memory and as many photos of
each new class. paired: half of each batch new photos, half exemplars. All are epochs of the same number of photos."""

SAMPLING: dict[str, DataKind] = {"natural": "new+memory", "balanced": "balanced", "paired": "paired"}


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
    data: DataKind = "new+memory"
    warmup: Mapping[str, float] = field(default_factory=dict)  # loss -> share of the phase over which it rises
    after: Callable[[], None] = lambda: None  # what follows its last epoch
    outer: "Phase | None" = None  # bilevel: each `outer_every`-th step has this one's photos, losses and parameters
    outer_every: int = 10

    def at(self, step: int) -> "Phase":
        """The phase to which a step (from 0) of an epoch belongs: this one, or the outer one (never the first)."""
        return self.outer if self.outer and step % self.outer_every == 1 else self


class Method:
    """Subclasses say what makes them different and nothing else."""

    name: ClassVar[str] = "finetune"
    summary: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    uses_memory: ClassVar[bool] = False
    keeps_previous: ClassVar[bool] = False  # needs the network as it was before the task
    one_task: ClassVar[bool] = False  # sees the data of all tasks at once
    imprints: ClassVar[bool] = False  # new classes start with the mean features of their photos as weights
    classifier: ClassVar[Literal["linear", "cosine"] | None] = None  # the one it needs; None: either will do

    def begin_task(self, state: State, task: Task) -> None:
        """Grow the heads; the outputs for old classes stay unchanged."""
        if self.keeps_previous and task.num_old:
            state.previous = state.network.frozen_copy()
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
                data=SAMPLING[train.sampling] if task.num_old else "new+memory",
            )
        ]

    def losses(self, state: State, outputs: Outputs, batch: Batch) -> Losses:
        return wsol_losses(state, outputs, batch)

    def end_task(self, state: State, task: Task) -> None:
        state.previous, state.scaffold = None, nn.ModuleDict()

    def outputs(self, state: State, images: Tensor, maps: bool = True) -> Outputs:
        """What the finished model says about images, for all classes so far; without `maps` no localization."""
        return self.finish(state, state.network(images, maps=maps))

    def finish(self, state: State, outputs: Outputs) -> Outputs:
        """What the method adds to the network's own outputs."""
        return outputs

    def masks_of(self, state: State, outputs: Outputs, labels: Tensor) -> Tensor:
        """The masks that `outputs` would have had for one class per image, where it was called without `maps`."""
        return state.network.masks_of(outputs, labels)


def wsol_losses(
    state: State,
    outputs: Outputs,
    batch: Batch,
    *,
    network: LocalizationNetwork | None = None,
    apart: Tensor | None = None,
    divisor: Tensor | float = 1.0,
) -> Losses:
    """L_wsol (equation 6), term by term; of another `network` than the one that is kept, if given.

    In both softmaxes, a photo does not compete with the classes in `apart` (B, K), and scores are divided by `divisor`.
    """
    weights, train = state.config.weights, state.config.train
    masks = outputs.masks
    if apart is None and train.separate_softmax and state.previous is not None:
        apart = old_apart(batch, state.previous.num_classes, outputs)
    losses = {
        "cls": bas.classification(outputs.scores / divisor, batch.labels, train.label_smoothing, apart),
        "area": weights.area * bas.area(masks),
    }
    if weights.cls_fg:
        foreground = bas.foreground_scores(outputs.activation_map, masks) / divisor
        losses["cls_fg"] = weights.cls_fg * bas.classification(foreground, batch.labels, apart=apart)
    if weights.bas:
        background = (network or state.network).background_score(outputs.features, masks, batch.labels)
        image = bas.class_score(outputs.activation_map, batch.labels)
        losses["bas"] = weights.bas * bas.background_suppression(background, image)
    return losses


def old_apart(batch: Batch, num_old: int, outputs: Outputs) -> Tensor:
    """Separated softmax: a photo of a new class, unless it is there as an exemplar, does not compete with old classes.

    -> (B, K) bool
    """
    photos = (batch.labels >= num_old) & ~batch.from_memory
    return photos[:, None] & (torch.arange(outputs.class_map.shape[1], device=photos.device) < num_old)
