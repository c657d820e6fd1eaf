"""The interface of a method: the phases of a task and their losses. The base class is plain fine-tuning of BAS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fdcnet.config import ClassifierChoice, Config, OptimConfig, Section
from fdcnet.data.records import Batch, Task
from fdcnet.losses import bas
from fdcnet.memory import ExemplarMemory, HeldOut
from fdcnet.models.discriminant import Discriminant
from fdcnet.models.network import LocalizationNetwork, Outputs

Losses = dict[str, Tensor]
ViewMap = Callable[[Tensor, Tensor], Tensor]
"""Shared features (B, C, H, W) and labels (B,) -> (B, H, W)"""

# ours: results/tuning.md, masks after few steps
MATURITY = 0.2  # steps x learning rate / classes after which masks have the right size
FASTEST = {"recognized": 1 / 500, "all": 1 / 3000}  # learning rate / classes; `all`: faster, masks become empty or full


@dataclass
class State:
    """Everything that passes from task to task."""

    config: Config
    network: LocalizationNetwork
    memory: ExemplarMemory
    classes: list[str] = field(default_factory=list)
    task_sizes: list[int] = field(default_factory=list)  # number of classes of each finished task
    previous: LocalizationNetwork | None = None  # frozen, while a task is being learned
    held_out: HeldOut | None = None
    photo_history: dict[str, bool] = field(default_factory=dict)
    """Every photo that `fdcnet learn` was given, by its identity: true for training photos, false for held-out ones."""
    task_modules: nn.ModuleDict = field(default_factory=nn.ModuleDict)
    """Modules that are trained in a task but not kept. Checkpoints store them, the saved model does not."""
    discriminant: Discriminant | None = None
    """The closed-form classifier. If there is one, it decides the class, and the head only serves training."""

    def class_scores(self, outputs: Outputs, classifier: ClassifierChoice = "auto") -> Tensor:
        """Scores of the discriminant or of the classifier head: (B, K). "auto": the discriminant if there is one."""
        if classifier == "head" or (classifier == "auto" and self.discriminant is None):
            return outputs.scores
        assert self.discriminant is not None, "there is no discriminant"
        scores = self.discriminant.scores(outputs.pooled(self.discriminant.layer))
        return scores.float().to(outputs.features.device)

    def is_unfamiliar(self, outputs: Outputs) -> Tensor:
        """Whether a photo may show none of the classes; false without a discriminant: (B,) bool"""
        if self.discriminant is None:
            return torch.zeros(len(outputs.features), dtype=torch.bool)
        return self.discriminant.is_unfamiliar(outputs.pooled(self.discriminant.layer))

    @property
    def needs_head(self) -> bool:
        """Whether `class_scores` reads more than the tail's features."""
        return self.discriminant is None or self.discriminant.layer != "tail"

    @property
    def task_numbers(self) -> list[int]:
        """The task (1-based) that introduced each class."""
        return [number for number, size in enumerate(self.task_sizes, start=1) for _ in range(size)]


DataKind = Literal["new+memory", "balanced", "paired", "exemplars"]
"""new+memory: each photo once. balanced: all classes equally often. exemplars: the memory and as many photos of
each new class. paired: half of each batch new photos, half exemplars. All are epochs of the same number of photos."""

SAMPLING: dict[str, DataKind] = {"natural": "new+memory", "balanced": "balanced", "paired": "paired"}


@dataclass(frozen=True)
class Phase:
    """One optimization run. This is all that the trainer knows about a method."""

    name: str
    epochs: int
    parameters: dict[str, nn.Parameter]
    losses: Callable[[Batch], Losses]  # named and unweighted
    training: tuple[nn.Module, ...]  # modules in train mode; the mode of others does not change
    optim: OptimConfig
    is_head: Callable[[str], bool] = lambda name: True  # parameters that train at the higher rate
    rate_of: Callable[[str], float] = lambda name: 1.0  # relative to the others of its kind
    weights: dict[str, float] = field(default_factory=dict)  # of the losses; 1 unless given
    data: DataKind = "new+memory"
    warmup: Mapping[str, float] = field(default_factory=dict)  # loss -> fraction of the phase
    after: Callable[[], None] = lambda: None  # called after the last epoch
    outer: "Phase | None" = None  # bilevel: every `outer_every`-th step is a step of this phase
    outer_every: int = 10

    def at(self, step: int) -> "Phase":
        """The phase that a step (0-based) of an epoch belongs to: this one or the outer one."""
        return self.outer if self.outer and step % self.outer_every == 1 else self


class Method:
    """Subclasses override only what makes them different."""

    name: ClassVar[str] = "finetune"
    summary: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    uses_memory: ClassVar[bool] = False
    keeps_previous: ClassVar[bool] = False  # needs the network from before the task
    one_task: ClassVar[bool] = False  # gets the data of all tasks at once
    closed_form: ClassVar[bool] = False  # classifies by a discriminant of frozen features, fitted before the phases
    light: ClassVar[bool] = False  # can train with a frozen backbone (train.views)
    sections: ClassVar[Mapping[str, type[Section]]] = {}  # its own settings, by the name of their section
    imprints: ClassVar[bool] = False  # initialize new classes with the mean features of their photos
    classifier: ClassVar[Literal["linear", "cosine"] | None] = None  # the one it needs; None: any

    def begin_task(self, state: State, task: Task) -> None:
        """Add the new classes to the heads. The outputs for old classes do not change."""
        if self.keeps_previous and task.num_old:
            state.previous = state.network.frozen_copy()
        state.network.grow(len(task.classes))

    def phases(self, state: State, task: Task) -> list[Phase]:
        train = state.config.train
        rate = train.step_lr if task.num_old and train.step_lr else train.optim.lr
        epochs = train.step_epochs if task.num_old else train.base_epochs
        mask_rate = localizer_rate(state, task, epochs)
        return [
            Phase(
                name="main",
                epochs=epochs,
                parameters=dict(state.network.named_parameters()),
                losses=lambda batch: self.losses(state, state.network(batch.images, batch.labels), batch),
                training=(state.network,),
                optim=replace(train.optim, lr=rate),
                is_head=state.network.is_head,
                rate_of=lambda name: mask_rate if name.startswith("localizer.") else 1.0,
                weights=self.weights(state, task),
                warmup=dict.fromkeys(("cls_fg", "bas", "area"), 0.0 if task.num_old else train.loc_warmup),
                data=SAMPLING[train.sampling] if task.num_old else "new+memory",
            )
        ]

    def view_map(self, state: State) -> ViewMap | None:
        """In light training, what computes a further channel of `batch.images`: once for each view of each photo."""
        return None

    def losses(self, state: State, outputs: Outputs, batch: Batch) -> Losses:
        """Named and unweighted. A loss of weight 0 need not be computed."""
        return wsol_losses(state, outputs, batch)

    def weights(self, state: State, task: Task) -> dict[str, float]:
        """Weights of the losses; 1 for those not named."""
        weights = state.config.weights
        return {"cls_fg": weights.cls_fg, "bas": weights.bas, "area": weights.area}

    def end_task(self, state: State, task: Task) -> None:
        state.previous, state.task_modules = None, nn.ModuleDict()

    def outputs(self, state: State, images: Tensor, maps: bool = True, head: bool = True) -> Outputs:
        """The outputs of the finished model for all classes so far. Without `maps` or `head`, these are empty."""
        return self.finish(state, state.network(images, maps=maps, head=head))

    def finish(self, state: State, outputs: Outputs) -> Outputs:
        """Change the network's outputs when the model is used, for example by compensation.

        Maps and scores that are not needed are empty: (B, 0, H, W).
        """
        return outputs

    def masks_of(self, state: State, outputs: Outputs, labels: Tensor) -> Tensor:
        """The masks of one class per image, from outputs made without maps: (B, H1, W1)"""
        return state.network.masks_of(outputs, labels)


def wsol_losses(
    state: State,
    outputs: Outputs,
    batch: Batch,
    *,
    network: LocalizationNetwork | None = None,
    excluded: Tensor | None = None,
    divisor: Tensor | float = 1.0,
) -> Losses:
    """L_wsol (equation 6), term by term and unweighted.

    `network`: the network that made the outputs, if it is not `state.network`. In both softmaxes, scores are divided by
    `divisor`, and a photo does not compete with the classes in `excluded` (B, K).
    """
    weights, train = state.config.weights, state.config.train
    masks = bas.shifted_masks(outputs.loc_map, *batch.part) if train.mask_shifts else outputs.masks
    pressure: Tensor | float = 1.0
    if excluded is None and train.separate_softmax and state.previous is not None:
        excluded = excluded_old(batch, state.previous.num_classes, outputs)
    losses = {"cls": bas.classification(outputs.scores / divisor, batch.labels, train.label_smoothing, excluded)}
    if weights.cls_fg:
        foreground = bas.foreground_scores(outputs.activation_map, masks) / divisor
        if train.foreground == "recognized":
            losses["cls_fg"] = bas.recognized_foreground(foreground, outputs.scores / divisor, batch.labels, excluded)
        else:
            losses["cls_fg"] = bas.classification(foreground, batch.labels, excluded=excluded)
    if weights.bas:
        own_statistics = train.erased_statistics == "batch"
        background = (network or state.network).background_score(outputs.features, masks, batch.labels, own_statistics)
        share = bas.background_share(background, bas.class_score(outputs.activation_map, batch.labels))
        losses["bas"] = bas.background_suppression(share)
        if train.allowed_background < 1:
            pressure = bas.area_pressure(share, train.allowed_background)
    losses["area"] = bas.area(masks, pressure)  # always: it shows whether masks are empty or full
    return losses


def localizer_rate(state: State, task: Task, epochs: int) -> float:
    """How fast the localizer learns, relative to other heads.

    Each of its rows learns from the photos of one class. If there are few classes, those are many, and at the full rate
    masks would become full or empty before the classifier has learned anything. In the first task masks begin grey; if
    it is short, they need a higher rate to become decided.
    """
    train, num_classes = state.config.train, state.network.num_classes
    if not train.full_rate_classes:
        return 1.0
    rate = min(1.0, num_classes / train.full_rate_classes)
    if task.num_old:
        return rate
    num_steps = max(1, epochs * len(task.train) // train.batch_size)
    per_class = num_classes / (train.optim.lr * train.optim.head_factor)
    return min(max(rate, MATURITY / num_steps * per_class), FASTEST[train.foreground] * per_class)


def excluded_old(batch: Batch, num_old: int, outputs: Outputs) -> Tensor:
    """Separated softmax: photos of new classes do not compete with old classes, unless they are exemplars.

    -> (B, K) bool
    """
    photos = (batch.labels >= num_old) & ~batch.from_memory
    return photos[:, None] & (torch.arange(outputs.class_map.shape[1], device=photos.device) < num_old)
